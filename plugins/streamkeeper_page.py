"""The page *Streams* in Airflow's UI, and a tab on each DAG and run.

Every process of Airflow imports this file, so what serves the page is imported when the API server asks.
Airflow asks for listeners while it runs other DAGs, and what is raised there fails their runs: a part
that cannot be made is left out, and the log says why.

An installation offers the plugin by its entry point, a checkout by its plugins folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/streamkeeper"

log = logging.getLogger(__name__)
_reasons: set[str] = set()


def part(make: Callable[[Any], list[Any]]) -> Any:
    """Return a property with a part of the plugin; the part is empty where it cannot be made. Each reason is
    logged once in a process.
    """

    def made(plugin: Any) -> list[Any]:
        try:
            return make(plugin)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with ours, other people's DAGs must run
            reason = f"{type(error).__name__}: {error}"
            if reason not in _reasons:
                _reasons.add(reason)
                log.error("Streamkeeper's plugin is left out of this process. %s", reason)
            return []

    return cached_property(made)


class StreamkeeperPage(AirflowPlugin):
    """One application that reads, and one script that draws: in the navigation, and as tabs."""

    name = "streamkeeper"

    @part
    def listeners(self) -> list[Any]:
        """What looks at Airflow's settings when one of its parts starts."""
        from streamkeeper_airflow.flow import airflow_settings

        return [airflow_settings]

    @part
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """The application that serves the numbers and the script."""
        from streamkeeper_airflow.page.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Streamkeeper"}]

    @part
    def react_apps(self) -> list[dict[str, Any]]:
        """The list in the navigation, and the tab of a flow's or a recovery's DAG and run."""
        from streamkeeper_airflow.page.app import script_url

        script = script_url(PREFIX)
        tab = {"name": "Stream", "bundle_url": script, "url_route": "stream"}
        return [
            {"name": "Streams", "bundle_url": script, "url_route": "streams", "destination": "nav"},
            {**tab, "destination": "dag"},
            {**tab, "name": "Stream of the run", "url_route": "stream_run", "destination": "dag_run"},
        ]


def __getattr__(name: str) -> Any:
    """Return ``entry_point``: the plugin, or None if Airflow has it from its plugins folder, where it looks
    first; a second plugin of one name would be an error.

    :raises ImportError: the file in the plugins folder is a copy, which an upgrade does not change.
    """
    if name != "entry_point":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow.configuration import conf

    file = Path(__file__).resolve()
    folder = Path(conf.get("core", "plugins_folder")).resolve()
    if not file.is_relative_to(folder):
        return StreamkeeperPage
    package = find_spec("streamkeeper_airflow")
    if package is not None and package.origin is not None:
        code = Path(package.origin).resolve().parent
        if code.parent == file.parent:
            return None
        raise ImportError(
            f"{file} is a copy of Streamkeeper's plugin, which Airflow loads instead of the installed one,"
            f" and which an upgrade does not change; the rest comes from {code}. Delete {file}, and the"
            f" folder {file.parent / 'streamkeeper_airflow'} if it is there, and start Airflow again."
        )
    return None
