"""What the distribution is made for, by versions, and what Airflow is told of it."""
