"""Sources of files: options, listing, and the cost of a start.

Positions are sets of files that were read.
"""
