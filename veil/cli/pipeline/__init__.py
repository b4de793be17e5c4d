"""`veil pipeline`: the jobs on Spark, each in a file of its own that is imported when it is called."""
