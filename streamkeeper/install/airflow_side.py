"""Airflow as doctor and setup reach it: a process of Airflow's own packages, which answers in rows.

No part of Streamkeeper's core imports Airflow, and an Airflow that hangs or is broken must not take the other
answers along.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from streamkeeper.install.probes import FAIL, OK, WARN, Row
from streamkeeper.settings import PROJECT
from streamkeeper.web import ask

MODULE = "streamkeeper_airflow.flow.installation"
SECONDS = 150.0
"""Seconds that Airflow's packages may take to answer; a probe of the doctor has a little more."""
MARK = "STREAMKEEPER ROWS "
"""What the answer's line begins with: plugins and providers print lines of their own."""
PAGE = "/streamkeeper/static/streams.js"
"""What the API server serves to anybody while it has the plugin."""


def look() -> list[Row]:
    """Ask Airflow what of Streamkeeper it has; without an Airflow in this Python one row says so."""
    if find_spec("airflow") is None:
        detail = "is not installed in this Python, so nothing of it was looked at"
        advice = "On a host that only runs drivers that is right; else run this with Airflow's Python."
        return [Row("airflow", WARN, detail, advice)]
    return _airflow_rows({"act": "look"})


def set_up(request: Mapping[str, Any]) -> list[Row]:
    """Let Airflow make what Streamkeeper needs there and it lacks; the rows say what was done."""
    if find_spec("airflow") is None:
        detail = f"is not installed for {sys.executable}"
        return [
            Row("airflow", FAIL, detail, "Run setup with Airflow's Python, where `airflow` commands work.")
        ]
    return _airflow_rows({"act": "setup", **request})


def page(server: str) -> Row:
    """Return whether an API server has the plugin: it loads plugins at its start alone, and this process may
    have one that was installed since.

    :param server: its address, such as ``http://airflow:8080``.
    """
    try:
        script = ask(f"{server}{PAGE}", by_proxy=False)
    except OSError as error:
        advice = "Start `airflow api-server`, or correct the connection."
        return Row("page", WARN, f"{server} does not answer: {error}", advice)
    if script.lstrip().startswith(b"<"):  # Airflow's own page, which it has for each unknown path
        advice = "Start the API server again, with this installation. `airflow plugins` there says more."
        return Row("page", FAIL, f"{server} has not loaded the plugin, so there is no page Streams", advice)
    return Row("page", OK, f"is served by {server}")


def _airflow_rows(request: Mapping[str, Any]) -> list[Row]:
    """Run Airflow's side; the request goes by standard input, since others can read arguments."""
    path = [str(PROJECT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            # Not the folder that this is run in, whose code or metadata may be another installation's.
            [sys.executable, "-P", "-m", MODULE],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore"},
        )
    except subprocess.TimeoutExpired:
        advice = "Try `airflow version` and `airflow db check` here; the database may not answer."
        return [Row("airflow", FAIL, f"There was no answer within {SECONDS:g} s.", advice)]
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            return [Row.from_json(value) for value in json.loads(line.removeprefix(MARK))]
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
    advice = "Try `airflow version` with the same environment."
    return [Row("airflow", FAIL, f"ended with exit code {done.returncode}: {last.strip()}", advice)]
