"""A flow that has its changes tried, under a real Airflow: what fits takes over, what breaks is refused while
the flow runs on, and a reset carries it in.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random
from urllib.parse import quote

import pytest

from demo import evidence
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.leases import Life
from streamkeeper.observe.status import FlowStatus
from streamkeeper.trial import change, last_run
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.verdict import Compatibility
from tests import events_evidence
from tests.end_to_end.conftest import declared
from tests.end_to_end.world import ENDING, RESET, STARTING, World, without_deduplication
from tests.worlds.browser import Person
from tests.worlds.pipelines import edited
from tests.worlds.seeds import next_seed
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "changes"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"


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


RUNS = ("running", "idle", "slow")
"""States of a flow that runs, as people see them."""
DEPLOYS = int(os.environ.get("STREAMKEEPER_DEPLOYS", "12"))
"""How many changes are deployed at random; 50 by hand."""
Deploy = Callable[[str, int], str]
GOOD: dict[str, Deploy] = {
    "rate limit": lambda text, number: re.sub(r'PerTrigger": [0-9]+', f'PerTrigger": {20 + number}', text),
    "filter that drops nothing": lambda text, number: edited(
        text, ("event_id IS NOT NULL", f"event_id IS NOT NULL AND user_id > -{number + 2}")
    ),
    "trigger": lambda text, number: re.sub(
        r'trigger="[0-9]+ \w+"', f'trigger="{1000 + number} milliseconds"', text
    ),
}
BAD: dict[str, Deploy] = {
    "dropDuplicates removed": lambda text, _: re.sub(r"\n\s*\.dropDuplicates\(.*", "", text),
    "other keys": lambda text, _: edited(text, ('(["event_id"])', '(["event_id", "user_id"])')),
    "source renamed": lambda text, number: text.replace("events_raw", f"raw_{number}"),
    "column that the table lacks": lambda text, number: edited(
        text, ("    return events\n", f"    return events.selectExpr('*', '{number} AS more')\n")
    ),
    "file that cannot be read": lambda text, _: f"{text}\ndef half a deploy",
}


def test_good_and_bad_changes_at_random_moments_with_kills_never_stop_the_flow_and_it_stays_exact(
    world: World,
) -> None:
    seed = next_seed()
    print(f"STREAMKEEPER_SEED={seed}")
    random = Random(seed)
    text = trying(declared(NAME))
    deploy(world, text, "the first")
    for number in range(DEPLOYS):
        good = random.random() < 0.5
        name = random.choice(sorted(GOOD if good else BAD))
        changed = (GOOD if good else BAD)[name](text, number)
        if good:
            text = changed
        world.declare(NAME, changed)
        time.sleep(random.uniform(0, 15))  # the moment of a kill, or of the next change, is any
        if random.random() < 0.4:
            killed = leases.current(world.home)
            if killed is not None and leases.life(world.home, killed) is Life.ALIVE:
                os.kill(killed.process.pid, signal.SIGKILL)
        elif not good and name != "file that cannot be read" and random.random() < 0.5:
            assert became(world, ChangeState.REFUSED).verdict.compatibility in (
                Compatibility.INCOMPATIBLE,
                Compatibility.UNKNOWN,
            ), name
        assert holds.all_of(world.home) == [], f"{name}, deployed as number {number}"
    deploy(world, text, "the last")
    assert world.home.generations() == [1]
    holds.put(world.home, holds.person("checker"), "the table is compared", "checker")
    world.await_flow("held")
    start = generations.read_start(world.home, 1)
    assert start is not None, "the flow ran"
    paths = evidence.committed_files(Checkpoint(world.home.storage, start.checkpoint), events_evidence.SOURCE)
    wanted, found = events_evidence.expected(paths, ()), events_evidence.actual(world.table)
    holds.release(world.home, holds.person("checker"))
    assert (evidence.differences(wanted, found), len(paths) > DEPLOYS) == ([], True)
    deploy(world, declared(NAME), "its own")


def trying(text: str) -> str:
    """Return the pipeline with its changes tried."""
    return edited(text, (f'target="{NAME}",', f'target="{NAME}", on_change="try",'))


def deploy(world: World, text: str, which: str) -> None:
    """Deploy a change that fits, and wait until the flow runs with it."""
    world.declare(NAME, text)

    def runs() -> bool | None:
        found, wanted = world.look(), world.flow().fingerprint
        ran = last_run.read(world.home, found.generation or 0)
        return (found.state == "running" and ran is not None and ran.fingerprint == wanted) or None

    wait_until(runs, 2 * STARTING, f"the flow runs with {which} declaration")


def refused(world: World) -> FlowStatus:
    """Deploy a change that breaks, once the flow runs and tries its changes; return where it stood before."""
    mine, original = world.pipeline_file.read_text(), declared(NAME)
    if "on_change" not in mine:
        mine = trying(mine)
    limit = 18 if 'PerTrigger": 20' in mine else 20
    # A driver has the policy that it began with, so that it begins anew here.
    deploy(world, re.sub(r'PerTrigger": [0-9]+', f'PerTrigger": {limit}', mine), "what it has")
    before = world.look()
    # The state has what the flow's operators keep: one that goes, or one that comes, breaks it alike.
    changed = trying(original)
    world.declare(NAME, without_deduplication(world) if "dropDuplicates" in mine else changed)
    assert became(world, ChangeState.REFUSED).verdict.compatibility is Compatibility.INCOMPATIBLE
    return before


def test_a_person_sees_the_refused_change_on_the_page_of_streams_and_a_click_plans_its_reset(
    world: World, person: Person
) -> None:
    before = refused(world)
    person.visit("/plugin/streams")
    row = f"[data-flow='{FLOW}']"
    person.reads(row, "change refused")
    person.picture("streams")
    person.click(f"{row} a")
    person.read("Change of the declaration")
    person.read("reset_checkpoint carries the change in.")
    person.read("Generations")
    person.picture("stream")
    ran = world.resets()
    person.click("[data-start=reset_checkpoint]")
    person.press("Make the plan")
    reset = world.await_reset(ran)
    world.api.wait_for_task(RESET, reset, "approve", ("awaiting_input",), ENDING)
    person.visit(f"/dags/{RESET}/runs/{quote(reset)}/plugin/stream_run")
    person.read("Position")
    person.picture("stream_recovery")
    approve(world, person, reset)
    assert world.api.wait_for_run(RESET, reset, 3 * ENDING) == "success"
    world.await_flow("running", generation=(before.generation or 0) + 1, batch=1)
    person.visit("/plugin/streams")
    person.reads(row, "by admin")


def approve(world: World, person: Person, run: str) -> None:
    """Press the approving button, and again where Airflow lost the answer and asks once more."""

    def look() -> bool | None:
        state = world.api.tasks(RESET, run)["approve"]["state"]
        if state == "awaiting_input":
            person.visit(f"/dags/{RESET}/runs/{quote(run)}/tasks/approve/required_actions")
            person.press(world.api.question(RESET, run, "approve")["options"][0])
        return state == "success" or None

    wait_until(look, ENDING, "the approval is taken", interval=10)


def test_a_person_reads_the_refusal_rehearses_the_reset_and_says_go(world: World, person: Person) -> None:
    before = refused(world)
    run = str(world.api.runs(DAG, limit=1)[0]["dag_run_id"])
    person.visit(f"/dags/{DAG}/runs/{quote(run)}")
    person.read("the change is refused")
    person.click("button[aria-label='Edit note']")
    assert "reset_checkpoint carries the change in." in person.read(f"{FLOW} runs on")

    world.await_chosen()
    ran = world.resets()
    person.visit(f"/dags/{RESET}")
    person.click("[data-testid=trigger-dag-button]")
    person.read("Start of the new checkpoint")
    assert person.chosen("flow") == f"{FLOW} (change refused: incompatible)"
    person.open_section("Approval")
    person.switch("rehearse")
    person.picture("refused_form")
    person.click("[data-testid=trigger-dag-submit]")
    reset = world.await_reset(ran)
    world.api.wait_for_task(RESET, reset, "approve", ("awaiting_input",), 3 * ENDING)
    seen = world.look()
    assert (seen.generation, seen.epoch) == (before.generation, before.epoch), "the flow ran on meanwhile"

    person.visit(f"/dags/{RESET}/runs/{quote(reset)}/tasks/approve/required_actions")
    assert "Its declaration, looked at before: incompatible." in person.read("Rehearsal")
    person.picture("rehearsed_approval")
    approve(world, person, reset)
    assert world.api.wait_for_run(RESET, reset, 3 * ENDING) == "success"
    world.await_flow("running", generation=(before.generation or 0) + 1, batch=1)
    assert shown(world) in RUNS
