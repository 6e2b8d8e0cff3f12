"""The demo: a real Airflow with real flows on this machine, and the story that it tells."""
