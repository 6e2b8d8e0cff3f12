"""Spark's own UI and event log of a driver: linked while it runs, kept for a history server after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from streamkeeper.flows import leases
from streamkeeper.health.details import look
from streamkeeper.health.flows import look_at_all
from streamkeeper.manifest.manifest import declared
from tests.worlds.flow_world import NAME, Flowbed, heartbeat, wait_until
from tools.ports import free_ports

pytestmark = pytest.mark.long


def answer(url: str) -> str | None:
    """Return what an address answers; None while nobody is there."""
    try:
        with urllib.request.urlopen(url, timeout=10) as found:
            text: str = found.read().decode()
            return text
    except OSError:
        return None


def test_a_killed_drivers_event_log_is_shown_by_sparks_history_server(bed: Flowbed, tmp_path: Path) -> None:
    logs, (port,) = tmp_path / "events", free_ports(1)
    logs.mkdir()
    bed.settings = replace(
        bed.settings, spark_ui=True, event_log=str(logs), history_server=f"http://127.0.0.1:{port}"
    )
    bed.arrive(1, 2)
    with bed.driver() as driver:
        driver.until(lambda: (beat := heartbeat(bed)) is not None and beat.batch is not None)
        manifest = declared(bed.settings)
        (row,) = look_at_all(bed.home.storage, manifest)
        spark = look(bed.settings, manifest.find(NAME), row)["spark"]
        page = answer(spark["ui"])
        assert page is not None and "Spark Jobs" in page
        beat = leases.present_heartbeat(bed.home)
        assert beat is not None
        application = beat.application_id
        driver.kill()
    assert spark["history"] == f"http://127.0.0.1:{port}/history/{application}/"
    (row,) = look_at_all(bed.home.storage, manifest)
    assert look(bed.settings, manifest.find(NAME), row)["spark"]["ui"] is None, "it is gone with its driver"
    home = Path(pyspark.__file__).parent
    server = subprocess.Popen(
        [home / "bin" / "spark-class", "org.apache.spark.deploy.history.HistoryServer"],
        env={
            **os.environ,
            "SPARK_HISTORY_OPTS": f"-Dspark.history.fs.logDirectory=file:{logs}"
            f" -Dspark.history.ui.port={port}",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        listed = f"http://127.0.0.1:{port}/api/v1/applications/{application}"
        found = json.loads(wait_for(lambda: answer(listed)))
        assert (found["id"], found["name"]) == (application, NAME)
        jobs = json.loads(wait_for(lambda: answer(f"{listed}/jobs")))
        assert {job["status"] for job in jobs} == {"SUCCEEDED"}
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def wait_for(found: Callable[[], str | None]) -> str:
    """Return an answer once it is there."""
    got: list[str] = []
    wait_until(lambda: got.append(text) or True if (text := found()) is not None else False)
    return got[0]
