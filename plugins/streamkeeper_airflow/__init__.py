"""Connects Streamkeeper to Airflow: the tasks that gate, run and recover flows.

Airflow puts ``plugins/`` on the path of each of its components. Each file in ``dags/`` imports this package
first, so an Airflow that is too old has one import error that says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow import __version__

from streamkeeper.distribution.versions import AIRFLOW

if TYPE_CHECKING:
    from streamkeeper_airflow.dag_files import all_dags as all_dags
    from streamkeeper_airflow.table_asset import table_asset as table_asset

OLDEST = tuple(map(int, AIRFLOW.split(".")))

if tuple(map(int, re.findall(r"\d+", __version__)[:2])) < OLDEST:
    raise ImportError(
        f"Streamkeeper needs Airflow {AIRFLOW} or later; this is Airflow {__version__}. Upgrade"
        " it. Until then Streamkeeper's DAGs and page are left out; other DAGs are not affected."
    )


def __getattr__(name: str) -> Any:
    # Later, since the plugin, which every process of Airflow imports, needs no DAG.
    if name == "all_dags":
        from streamkeeper_airflow.dag_files import all_dags

        return all_dags
    if name == "table_asset":
        from streamkeeper_airflow.table_asset import table_asset

        return table_asset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
