"""A flow that runs once, under a real Airflow: it is done, a new run of it has nothing to do, and its reset
runs it again.
"""

from __future__ import annotations

import pytest

from demo.tables import count_rows
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from tests.end_to_end.world import ENDING, RESET, STARTING, World, arrive
from tools.waiting import wait_until

pytestmark = pytest.mark.long

FLOW, DAG = "members.members_snapshot", "flow__members__members_snapshot"
PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("members_snapshot", format="json", path="{data}/members", schema="id INT, name STRING")
dp.create_streaming_table("members", table_properties={"delta.enableDeletionVectors": False})
dp.create_auto_cdc_flow(
    name="members_snapshot",
    target="members",
    source="members_snapshot",
    keys=["id"],
    sequence_by=0,
    once=True,
)
"""


@pytest.fixture
def home(world: World) -> FlowHome:
    return FlowHome(world.home.storage, "members", "members_snapshot")


def test_a_once_flow_is_done_and_its_reset_runs_it_again(world: World, home: FlowHome) -> None:
    arrive(world, "1.json", 1, 2)
    world.declare("members", PIPELINE)
    assert wait_until(lambda: generations.finished(home), 2 * STARTING, "it is done") == 1
    [run] = world.api.runs(DAG)
    assert world.api.wait_for_run(DAG, run["dag_run_id"], ENDING) == "success"
    arrive(world, "2.json", 3)
    again = world.api.trigger(DAG, {})
    assert world.api.wait_for_run(DAG, again, ENDING) == "success"
    assert f"{FLOW} is done, in generation 1" in world.api.log(DAG, again, "run")
    run = world.trigger(RESET, world.form(flow=FLOW, approval=False))
    assert world.api.wait_for_run(RESET, run, 2 * ENDING) == "success"
    assert world.api.tasks(RESET, run)["run_again"]["state"] == "success"
    recovery = world.api.xcom(RESET, run, "plan")["recovery"]
    assert world.api.wait_for_run(DAG, recovery, ENDING) == "success"
    assert generations.finished(home) == 2
    assert count_rows(world.settings.table_path("members")) == 3
    world.withdraw("members")
