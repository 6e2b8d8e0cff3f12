"""Connects Streamkeeper to Airflow: the tasks that gate, run and recover flows.

Airflow puts ``plugins/`` on the path of each of its components. Each file in ``dags/`` imports this package
first, so an Airflow that is too old has one import error that says so.
"""

import re

from airflow import __version__

OLDEST = (3, 3)
"""The first Airflow with retry policies (``airflow.sdk.RetryPolicy``), by which drivers are tried again."""

if tuple(map(int, re.findall(r"\d+", __version__)[:2])) < OLDEST:
    raise ImportError(
        f"Streamkeeper needs Airflow {OLDEST[0]}.{OLDEST[1]} or later; this is Airflow {__version__}. Upgrade"
        " it. Until then Streamkeeper's DAGs and page are left out; other DAGs are not affected."
    )
