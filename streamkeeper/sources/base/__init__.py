"""What a format of source must answer: where a start lies, what it costs, what waits.

The formats themselves are one class each (:mod:`streamkeeper.sources.formats`).
"""
