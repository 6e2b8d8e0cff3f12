"""A flow moves to a cluster: its recovery's step and its driver run there, by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from tests.oracle import first_per
from tests.worlds.clusters.standalone import Cluster, standalone
from tests.worlds.drivers import has_said
from tests.worlds.flow_world import Flowbed, pipeline, running_driver
from tools.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path) as running:
        yield running


def test_a_full_refresh_runs_its_step_and_the_driver_on_the_cluster_with_what_the_flow_declares(
    bed: Flowbed, cluster: Cluster
) -> None:
    conf = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": 3}
    bed.declare(pipeline().replace('target="events",', f'target="events", spark_conf={conf},'))
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    asked = ["recover", "full_refresh", "--table", "events", "--yes", "--master", cluster.master]
    done = subprocess.run(
        [sys.executable, "-m", "streamkeeper", *asked],
        env={**os.environ, **bed.settings.as_environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    bed.holds(first_per(bed.events, ["event_id"]))
    [step, driver] = wait_until(
        lambda: names if len(names := cluster.finished()) == 2 else None,
        60,
        "the master knows both as finished",
    )
    assert (step.endswith(" empty_tables"), driver) == (True, "events.clean_events")
    assert (
        "Shuffles and state have 3 partitions (spark.sql.shuffle.partitions), as declared. The checkpoint"
        " keeps that" in done.stdout
    )
    assert {operator.partitions for operator in bed.checkpoint(2).operators()} == {3}


def test_a_driver_that_the_cluster_forgot_ends_and_the_next_one_goes_on(
    bed: Flowbed, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    bed.settings = replace(bed.settings, executors_timeout=10.0)
    command = submit.driver(bed.settings, [bed.flow()], cluster.master).command()
    bed.arrive(1, 2, 3)
    with running_driver(bed.settings, command, bed.root / "forgotten.log") as driver:
        driver.until(partial(has_said, bed, 0))
        cluster.replace_master()
        wait_until(lambda: cluster.state()["aliveworkers"] == 1 or None, 120, "the worker is there again")
        bed.arrive(3, 4)
        assert driver.wait() == Outcome.FAILED, driver.said()[-3000:]
        assert "had no executor for" in driver.said()
    with running_driver(bed.settings, command, bed.root / "next.log") as driver:
        driver.until(partial(has_said, bed, 1))
    bed.holds(first_per(bed.events, ["event_id"]))
