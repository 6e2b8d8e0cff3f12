"""One streaming query: its job, readers, DataFrame and watch.

Knows no table and no generation.
"""
