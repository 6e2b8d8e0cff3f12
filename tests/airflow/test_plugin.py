"""An Airflow in which the plugin cannot work: other people's DAGs run, and the log says why ours do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT
from tests.worlds.suites import long_after

FACTS = """
import runpy, sys, airflow, airflow.sdk
lazy = vars(airflow.sdk)["__lazy_imports"]
if sys.argv[1]:
    airflow.__version__ = sys.argv[1]
for name in sys.argv[2].split(","):
    del lazy[name]
    vars(airflow.sdk).pop(name, None)
from airflow import plugins_manager
from airflow.listeners.listener import get_listener_manager
hook = get_listener_manager().hook
hook.on_dag_run_failed(dag_run=None, msg="")
hook.on_dag_run_success(dag_run=None, msg="")
(plugin,) = plugins_manager._get_plugins()[0]
print("PARTS", plugin.listeners, plugin.fastapi_apps, plugin.react_apps, flush=True)
runpy.run_path(sys.argv[3])
"""
NEW_IN_3_3 = "RetryDecision,RetryPolicy"
NEW_IN_3_2 = f"{NEW_IN_3_3},conf,SkipMixin,CronTriggerTimetable"


@pytest.mark.parametrize(
    ("version", "missing", "reason"),
    long_after(
        2,
        [
            ("3.1.8", NEW_IN_3_2, "Streamkeeper needs Airflow 3.3 or later; this is Airflow 3.1.8."),
            ("", NEW_IN_3_3, "cannot import name 'RetryDecision' from 'airflow.sdk'"),
            ("3.2.2", NEW_IN_3_3, "Streamkeeper needs Airflow 3.3 or later; this is Airflow 3.2.2."),
        ],
    ),
    ids=["3.1", "a part is gone", "3.2"],
)
def test_where_the_plugin_cannot_work_other_dags_run_and_the_reason_is_said_once(
    version: str, missing: str, reason: str, project: Path
) -> None:
    command = [sys.executable, "-c", FACTS, version, missing, str(PROJECT / "dags/flows.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert ("PARTS [] [] []" if version else "PARTS [] [{'app'") in done.stdout, output
    assert output.count(f"is left out of this process. ImportError: {reason}") == 1
    assert reason in done.stderr.strip().splitlines()[-1], "the DAG file's import error"
