"""The Airflow of a demo, a test or a container: its processes, and its API."""
