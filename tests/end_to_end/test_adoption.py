"""The checkpoint of a plain Spark job is adopted through Airflow's API: the flow goes on where the job stood,
with the state it had.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.tables import count_rows, read_rows
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import FlowHome
from tests.end_to_end import plain_job
from tests.end_to_end.world import ENDING, STARTING, World, arrive
from tools.waiting import wait_until

pytestmark = pytest.mark.long

FLOW, ADOPT, TABLE = "guests.clean_guests", "adopt", "guests"
PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("guests_raw", format="json", path="{data}/guests", schema="id INT, name STRING")
dp.create_streaming_table("guests")

@dp.append_flow(name="clean_guests", target="guests", sources=["guests_raw"], trigger="2 seconds")
def clean_guests(guests):
    return guests.dropDuplicates(["id"])
"""


@pytest.fixture
def home(world: World) -> FlowHome:
    return FlowHome(world.home.storage, "guests", "clean_guests")


@pytest.fixture
def checkpoint(world: World, tmp_path: Path) -> str:
    """The checkpoint of a job that read two files."""
    arrive(world, "1.json", 1, 2, folder="guests")
    arrive(world, "2.json", 2, 3, folder="guests")
    folder = tmp_path / "of an old job"
    files = str(Path(world.settings.data) / "guests")
    job = [
        sys.executable,
        plain_job.__file__,
        world.settings.jars,
        files,
        world.settings.table_path(TABLE),
        str(folder),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(job, env=environment, capture_output=True, text=True, check=False, timeout=ENDING)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(folder)


@pytest.fixture
def declared(world: World, home: FlowHome) -> Iterator[None]:
    """The flow as its owner declares it: held, until its checkpoint is adopted."""
    holds.put(home, holds.person("ada"), "its checkpoint is to be adopted", "ada")
    world.declare("guests", PIPELINE)
    yield
    holds.put(home, holds.person("ada"), "the test is over", "ada")
    world.withdraw("guests")


def trigger(world: World, **values: object) -> str:
    return world.trigger(ADOPT, {"flow": FLOW, "old_job_is_stopped": True, **values})


@pytest.mark.usefixtures("declared")
def test_a_plain_jobs_checkpoint_is_adopted_and_the_flow_goes_on_with_its_state(
    world: World, home: FlowHome, checkpoint: str
) -> None:
    dry = trigger(world, checkpoint=checkpoint, dry_run=True)
    assert world.api.wait_for_run(ADOPT, dry, 2 * ENDING) == "success"
    states = {task: found["state"] for task, found in world.api.tasks(ADOPT, dry).items()}
    assert [states[task] for task in ("plan", "rehearse", "approve", "hold", "decide")] == ["success"] * 2 + [
        "skipped"
    ] * 3
    assert world.api.xcom(ADOPT, dry, "rehearse")["operators"] == ["dedupe"], (
        "a dry run says that the declaration fits"
    )
    assert (home.generations(), home.owners(), ledger.open_recoveries(home.storage)) == (
        [],
        ["person-ada"],
        {},
    )
    run = trigger(world, checkpoint=checkpoint, approval=False)
    assert (
        world.api.wait_for_task(ADOPT, run, "release", ("success", "failed", "upstream_failed"), 2 * ENDING)
        == "success"
    )
    decided = generations.latest(home)
    assert decided is not None
    assert (decided.number, decided.start.mode, decided.start.checkpoint) == (
        1,
        generations.ADOPTED,
        checkpoint,
    )
    assert holds.release(home, holds.person("ada"))
    arrive(world, "3.json", 3, 4, folder="guests")
    assert world.api.wait_for_run(ADOPT, run, 2 * ENDING) == "success"
    table = world.settings.table_path(TABLE)
    wait_until(lambda: count_rows(table) == 4 or None, STARTING, "the table has each guest")
    assert sorted(row["id"] for row in read_rows(table)) == [1, 2, 3, 4]
