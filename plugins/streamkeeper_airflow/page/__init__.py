"""What Airflow's UI shows of flows and recoveries: an application that only reads, and the script that draws.

What a person starts there goes through Airflow's own API, with that person's rights.
"""
