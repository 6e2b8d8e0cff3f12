"""Connects Streamkeeper to Airflow: the tasks that gate, run and recover flows.

Airflow puts ``plugins/`` on the path of each of its components.
"""
