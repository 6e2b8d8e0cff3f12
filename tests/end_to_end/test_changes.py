"""A flow that has its changes tried, under a real Airflow: what fits takes over, what breaks is refused while
the flow runs on, and a reset carries it in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from streamkeeper.flows import holds, leases
from streamkeeper.flows.status import FlowStatus
from streamkeeper.preflight import change
from streamkeeper.preflight.change import Change, ChangeState
from tests.end_to_end.world import ENDING, RESET, STARTING, World, without_deduplication
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "changes"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"


def runs_after(world: World, epoch: int, batch: int = -1) -> FlowStatus:
    """Wait until a driver of a later epoch runs, and has committed a later batch."""

    def look() -> FlowStatus | None:
        found = world.look()
        later = (found.epoch or 0) > epoch and found.state == "running" and (found.batch or -1) > batch
        return found if later else None

    return wait_until(look, STARTING, f"a driver after epoch {epoch} runs")


def shown(world: World) -> str:
    """Return the flow's state as the command line shows it."""
    command = [sys.executable, "-m", "streamkeeper", "flows", "--json"]
    environment = {**os.environ, **world.settings.as_environment()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return next(str(item["state"]) for item in json.loads(done.stdout) if item["flow"] == FLOW)


def became(world: World, state: ChangeState) -> Change:
    """Wait until the change of the declaration has a state."""

    def look() -> Change | None:
        found = change.read(world.home, world.flow().fingerprint)
        return found if found is not None and found.state is state else None

    return wait_until(look, STARTING, f"the change is {state}")


def test_a_change_that_fits_takes_over_and_one_that_breaks_is_refused_until_a_reset(world: World) -> None:
    world.await_flow("running", batch=1)
    text = world.pipeline_file.read_text().replace(f'target="{NAME}",', f'target="{NAME}", on_change="try",')
    first = world.look().epoch or 0
    world.declare(NAME, text.replace('"maxFilesPerTrigger": 20', '"maxFilesPerTrigger": 19'))
    trying = runs_after(world, first)
    run = str(world.api.runs(DAG, limit=1)[0]["dag_run_id"])

    fits = world.pipeline_file.read_text().replace(
        "event_id IS NOT NULL", "event_id IS NOT NULL AND user_id > -1"
    )
    world.declare(NAME, fits)
    taken = runs_after(world, trying.epoch or 0, trying.batch or 0)
    assert (taken.generation, taken.epoch) == (1, (trying.epoch or 0) + 1)
    assert became(world, ChangeState.READY).verdict.tried

    world.declare(NAME, without_deduplication(world))
    refused = became(world, ChangeState.REFUSED)
    assert refused.verdict.recovery == RESET
    on = wait_until(
        lambda: seen if (seen := world.look()).batch != taken.batch else None, ENDING, "the flow runs on"
    )
    assert on.epoch == taken.epoch
    assert shown(world) == "change refused"

    lease = leases.current(world.home)
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGKILL)
    again = runs_after(world, lease.epoch, on.batch or 0)
    assert (again.generation, holds.all_of(world.home)) == (1, [])
    assert str(world.api.runs(DAG, limit=1)[0]["dag_run_id"]) == run, "the run goes on through all of it"

    reset = world.api.trigger(RESET, world.form(flow=FLOW, approval=False))
    assert world.api.wait_for_run(RESET, reset, 2 * ENDING) == "success"
    world.await_flow("running", generation=2, batch=1)
    assert shown(world) == "running"
