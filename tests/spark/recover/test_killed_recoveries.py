"""Every kind of recovery, killed at the end and in the middle of every step, and run again: the end is that
of one that was not disturbed.

One flow, which appends, and its table go through all kinds, one after the other. After each the table is the
oracle's, the ledger tells every step once, no hold or lock is left, and the flow runs on its newest
generation. Tables by key, with their tombstones and turns, are killed in test_full_refresh.py,
test_restoring.py and test_refresh_with_backup.py.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, ledger
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import clean_up
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.tables import backups, recovery_lock
from tests.oracle import first_per
from tests.spark.killing import Lives, Site
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.recover.old_jobs import run_old_job
from tests.worlds.tables.backup_world import Recoverer

TABLE = "events.events"
Values = dict[str, Any]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Flowbed:
    """A flow that has committed a batch."""
    made = Flowbed.make(tmp_path_factory.mktemp("killed") / "a bed", spark, pipeline(view=""))
    events_come(made)
    return made


@pytest.fixture(scope="module")
def seen() -> set[Site]:
    """After which changes a process died already: steps that kinds share are killed in their middle once, at
    their ends for each kind.
    """
    return set()


def events_come(bed: Flowbed) -> None:
    """Let new events come, and be read in a batch."""
    bed.arrive(len(bed.events), len(bed.events) + 1)
    assert bed.run() is Outcome.STOPPED


def of_a_flow(bed: Flowbed, _: Recoverer) -> Values:
    return {"flow": NAME}


def of_a_table(bed: Flowbed, _: Recoverer) -> Values:
    return {"table": TABLE}


def of_a_pipeline(bed: Flowbed, _: Recoverer) -> Values:
    return {"pipeline": "events"}


def to_an_earlier_batch(bed: Flowbed, _: Recoverer) -> Values:
    for _number in range(2):
        events_come(bed)
    newest = generations.latest(bed.home)
    assert newest is not None
    last = bed.checkpoint(newest.number).last_commit()
    assert last is not None
    return {"flow": NAME, "batch": f"{newest.number}/{last - 1}", "target": "restored"}


def of_a_backup(bed: Flowbed, at_work: Recoverer) -> Values:
    if not backups.listed(bed.home.storage, "events", "events"):
        at_work.backup("a-backup", TABLE)
    events_come(bed)
    return {"table": TABLE, "backup": "newest"}


def filled_from_its_backup(bed: Flowbed, _: Recoverer) -> Values:
    return {"table": TABLE, "fill_from": "backup"}


def from_other_files(bed: Flowbed, _: Recoverer) -> Values:
    """Read files that the flow's source has not; so this comes after those that read all sources again."""
    for number in (1001, 1002):
        bed.arrive(number, folder="archive")
    return {
        "flow": NAME,
        "read": "files",
        "path": str(bed.root / "data" / "archive"),
        "chunk": 1,
        "accept": ["duplicates"],
    }


def when_months_have_passed(bed: Flowbed, _: Recoverer) -> Values:
    if bed.home.generations() == [1]:
        bed.reset()
        events_come(bed)
    return {"pipeline": "events"}


ARRANGED: dict[str, Callable[[Flowbed, Recoverer], Values]] = {
    "reset_checkpoint": of_a_flow,
    "rewind": to_an_earlier_batch,
    "backup_table": of_a_table,
    "restore_table": of_a_backup,
    "full_refresh": of_a_table,
    "full_refresh_with_backup": filled_from_its_backup,
    "backfill": from_other_files,
    "clean_up": when_months_have_passed,
    "tidy_tables": of_a_pipeline,
}
COMMIT = ("rewind", "restore_table", "full_refresh")
"""Kinds with steps of their own that commit to a table."""
SET_APART = {
    "adopt": "tests/spark/recover/test_killed_recoveries.py",
    "rebuild_without_downtime": "tests/spark/recover/full_refresh/test_full_refresh_beside.py",
    "rehearse": "tests/spark/rehearse/test_killed_rehearsals.py",
}
"""Kinds that cannot be asked of a flow that has begun, or build with drivers of their own, and where they are
killed instead.
"""


def test_every_kind_of_recovery_is_killed() -> None:
    assert sorted([*ARRANGED, *SET_APART]) == sorted(KINDS)


@pytest.mark.long
@pytest.mark.parametrize("name", ARRANGED)
def test_a_recovery_that_is_killed_again_and_again_comes_to_the_end_of_one_that_was_not(
    name: str, bed: Flowbed, seen: set[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work = Recoverer.of(bed)
    values = ARRANGED[name](bed, at_work)
    if name == "clean_up":
        monkeypatch.setattr(clean_up, "time", SimpleNamespace(time=lambda: time.time() + 90 * 86400))
    lives = comes_through(name, bed, at_work, values, seen)
    assert name not in COMMIT or any("commit" in site for site in lives.killed_after), (
        "also between commits of its own"
    )
    events_come(bed)
    bed.holds(bed.events)
    no_commit_is_twice_in_its_log(bed)


@pytest.mark.long
def test_an_adoption_that_is_killed_again_and_again_goes_on_with_its_state(
    seen: set[Site], make_bed: Callable[..., Flowbed]
) -> None:
    adopted = make_bed(pipeline(files=1))
    for numbers in ((1, 2), (2, 3), (3, 4)):
        adopted.arrive(*numbers)
    folder = run_old_job(adopted)
    adopted.arrive(1, 4, 5)
    values = {"flow": NAME, "checkpoint": str(folder), "old_job_is_stopped": True}
    comes_through("adopt", adopted, Recoverer.of(adopted), values, seen)
    adopted.arrive(5, 6)
    assert adopted.run() is Outcome.STOPPED
    adopted.holds(first_per(adopted.events, ["event_id"]))
    assert adopted.home.storage.names(f"{adopted.home.root}/checkpoints") == ["000001-000001"], (
        "what rehearsals copied is gone"
    )
    no_commit_is_twice_in_its_log(adopted)


def comes_through(name: str, bed: Flowbed, at_work: Recoverer, values: Values, seen: set[Site]) -> Lives:
    """Carry a recovery out, killed after every change that it makes; see that the end is that of one that was
    not.
    """
    recovery, before = engine.recovery_id(name, "killed"), bed.home.generations()
    plan = at_work.plan(name, recovery, **values)
    given = [flow.next_generation for flow in plan.flows if flow.next_generation is not None]
    lives = Lives(bed.spark, bed.root, seen)
    for step in kind(name).steps:
        if step.name == "verify_progress":
            assert bed.run() is Outcome.STOPPED
            assert all(generations.read_start(bed.home, number) is not None for number in given)
        with lives.of(name, recovery):
            lives.carry_out(step, lambda step=step.name: at_work.step(recovery, step))
    assert {step for step, *_ in lives.killed_after} == set(plan.steps), "every step was killed"
    tells_every_step_once(bed, plan)
    assert (bed.home.owners(), recovery_lock.holder(bed.home.storage, "events", "events")) == ([], None)
    assert bed.home.generations() == [*before, *given]
    return lives


def tells_every_step_once(bed: Flowbed, plan: Plan) -> None:
    """What a driver that begins a generation of the recovery's adds to its ledger is left out."""
    events = [event.event for event in ledger.open(bed.home.storage, "events", plan.recovery_id).events()]
    ends = [
        event
        for event in events
        if not event.startswith("driver.") and not event.endswith((".started", ".progress"))
    ]
    assert ends == ["planned", "approved", *(f"{step}.done" for step in plan.steps), "ended"]
    assert {event.partition(".")[0] for event in events if event.endswith(".started")} == set(plan.steps)


def no_commit_is_twice_in_its_log(bed: Flowbed) -> None:
    """Each pair of a query id and a batch, and each mark of a recovery, is in the table's log once."""
    found: Counter[tuple[str, int]] = Counter()
    for log in (bed.table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        found.update(
            (action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action
        )
        told = json.dumps([action.get("commitInfo", {}).get("userMetadata") for action in actions])
        found.update((mark, 0) for mark in re.findall(r"[\w-]+-killed-[0-9a-f]{8}", told))
    assert {pair: count for pair, count in found.items() if count > 1} == {}
