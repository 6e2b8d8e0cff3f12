"""Log of a Delta table, read without a JVM: history, versions, summaries, copies of files. Knows no flows."""
