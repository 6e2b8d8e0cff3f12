"""The Airflow assets of the tables that flows write, for schedules of batch DAGs."""

from __future__ import annotations

from airflow.sdk import Asset

from streamkeeper.settings import dag_id


def table_asset(table: str) -> Asset:
    """Return the asset of a table, by its name or ``schema.name``; its events come from the monitor.

    Name and URI are ``streamkeeper://tables/<table>``, whatever folder the table lies in, with the prefix of
    Streamkeeper's DAGs before the table if there is one.
    """
    return Asset(f"streamkeeper://tables/{dag_id(table)}")
