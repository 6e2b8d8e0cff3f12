"""The driver of a flow: what runs inside spark-submit. It computes; what it decides by is in
``streamkeeper``.
"""
