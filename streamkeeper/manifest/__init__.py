"""What all pipeline files declare, read in a process of its own.

Airflow, the command line and drivers read this instead of user code."""
