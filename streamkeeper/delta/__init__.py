"""What a Delta table's log says, read without a JVM.

Knows no flow: history, versions, summaries and copies of files."""
