"""Requests of recoveries: one module for each kind, named as its DAG.

:mod:`streamkeeper.recover.requests.form` is the mechanism.
"""
