"""Spark itself: its session, its Java, the Python of its workers, and what `spark-submit` takes."""
