"""The steps of recoveries that need Spark.

One module for each kind, named as in streamkeeper/recover/kinds.
"""
