"""The steps of recoveries that need Spark.

One module a kind, named as in streamkeeper/recover/kinds."""
