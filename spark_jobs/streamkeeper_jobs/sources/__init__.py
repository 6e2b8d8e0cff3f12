"""Contents of a flow's sources, as Spark sees them, and the position of a start in them.

One module for each format, and the look that they share.
"""
