"""Recoveries with steps in Spark, and by the clock, on a running Airflow: through its API, with nobody
asked.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamkeeper.delta import log as delta_log
from tests.end_to_end.world import ENDING, RESET, World

pytestmark = pytest.mark.long

NAME = "recoveries"
SCHEDULE = f"schedule__{NAME}__yearly"

REFRESH = "full_refresh"
FORM: dict[str, Any] = {
    "table": f"{NAME}.{NAME}",
    "infer_schemas": False,
    "accept": [],
    "approval": False,
    "dry_run": False,
    "reason": None,
}


@pytest.fixture(autouse=True)
def standing(world: World) -> None:
    """Every test here starts from a flow that runs and is held by nobody."""
    world.await_flow("running")


def test_a_full_refresh_empties_the_table_in_spark_and_the_flow_fills_it_again(world: World) -> None:
    generation = world.home.generations()[-1] + 1
    before = delta_log.latest_version(world.table)
    run = world.api.trigger(REFRESH, FORM)
    assert world.api.wait_for_run(REFRESH, run, 3 * ENDING) == "success"
    emptied = world.api.xcom(REFRESH, run, "empty_tables")["tables"]
    assert [table["path"] for table in emptied] == [world.table]
    assert before is not None and emptied[0]["version_before"] >= before
    world.await_flow("running", generation=generation, batch=0)
    assert (world.home.owners(), world.footprint()["lock"]) == ([], None)


def test_a_scheduled_recovery_runs_with_nobody_asked_and_a_task_that_is_cleared_triggers_no_second_one(
    world: World,
) -> None:
    generation = world.home.generations()[-1] + 1
    run = world.api.trigger(SCHEDULE, {})
    assert world.api.wait_for_run(SCHEDULE, run, ENDING) == "success"
    triggered = f"{SCHEDULE}__{run}"
    assert world.api.wait_for_run(RESET, triggered, 3 * ENDING) == "success"
    world.await_flow("running", generation=generation)
    runs = len(world.api.runs(RESET))
    world.api.clear(SCHEDULE, run, "trigger")
    assert world.api.wait_for_run(SCHEDULE, run, ENDING) == "success"
    assert len(world.api.runs(RESET)) == runs
