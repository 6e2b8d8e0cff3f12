"""What the sources of a flow hold, asked through Spark, and where a start lies in them.

One module a format beside the look that they share.
"""
