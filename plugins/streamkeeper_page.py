"""The page *Streams* in Airflow's UI, and a tab on each DAG and run.

Every process of Airflow imports this file, so what serves the page is imported when the API server asks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/streamkeeper"


class StreamkeeperPage(AirflowPlugin):
    """One application that reads, and one script that draws: in the navigation, and as tabs."""

    name = "streamkeeper"

    @cached_property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """What looks at Airflow's settings when one of its parts starts."""
        from streamkeeper_airflow.flow import airflow_settings

        return [airflow_settings]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application that serves the numbers and the script."""
        from streamkeeper_airflow.page.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Streamkeeper"}]

    @cached_property
    def react_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The list in the navigation, and the tab of a flow's or a recovery's DAG and run."""
        from streamkeeper_airflow.page.app import script_url

        script = script_url(PREFIX)
        tab = {"name": "Stream", "bundle_url": script, "url_route": "stream"}
        return [
            {"name": "Streams", "bundle_url": script, "url_route": "streams", "destination": "nav"},
            {**tab, "destination": "dag"},
            {**tab, "name": "Stream of the run", "url_route": "stream_run", "destination": "dag_run"},
        ]
