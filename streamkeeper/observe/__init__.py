"""Where a flow stands: committed position, past positions, state, one value that is read once for a look."""
