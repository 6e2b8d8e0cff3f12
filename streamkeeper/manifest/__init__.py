"""Declarations of all pipeline files, imported in a process of their own.

Airflow, the command line and drivers read the manifest instead of user code.
"""
