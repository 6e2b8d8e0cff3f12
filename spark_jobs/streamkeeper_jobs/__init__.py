"""The driver of a flow: what runs inside spark-submit.

It computes; its decisions are made in ``streamkeeper``.
"""
