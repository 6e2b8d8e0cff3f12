"""What is looked at when a part of Airflow starts: scheduler, triggerer, DAG processor."""

from __future__ import annotations

from airflow.listeners import hookimpl

from streamkeeper.settings import Settings
from streamkeeper_airflow.flow.airflow_settings import log_wrong_settings


@hookimpl
def on_starting(component: object) -> None:
    """Log the settings that do not hold; a task's process, which starts too, refuses them by itself."""
    if type(component).__name__ == "Job":
        log_wrong_settings(Settings.from_environment())
