"""Sources of files: options, listing, and the impact of a start. Positions are sets of read files."""
