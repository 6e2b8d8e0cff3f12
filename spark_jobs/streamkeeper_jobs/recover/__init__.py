"""The steps of recoveries that need Spark: a module a kind, named as in streamkeeper/recover/kinds."""
