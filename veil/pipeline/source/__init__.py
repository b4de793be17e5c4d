"""A queue as a Spark source: every micro-batch keeps its messages invisible while it runs, and deletes them when its result
is safe."""
