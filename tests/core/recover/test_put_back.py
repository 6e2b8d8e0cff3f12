"""What is looked at right before tables are put back: what was written since the plan under the hold, and
whether Delta will do it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from streamkeeper.delta.copy_files import FIRST_COMMIT
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.recover import engine
from streamkeeper.recover.moves import put_back
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups
from streamkeeper.tables.flows_at_version import FlowAt
from streamkeeper.tables.past_versions import PUT_BACK, app_id, mark
from tests.worlds.pipelines import LATE
from tests.worlds.recover.recoveries import approve, carry_out, planned
from tests.worlds.small_world import EVENTS, World
from tests.worlds.tables.backups import entry

ADD = {"add": {"path": "new", "size": 1, "dataChange": True}}
REMOVE = {"remove": {"path": "old", "dataChange": True}}


@dataclass
class Bench:
    """A table of two flows: ``late_events`` wrote its versions 1 and 2, ``clean_events`` 3 to 6; a backup
    ``b1`` is of version 4.
    """

    world: World

    def commit(self, *actions: dict[str, Any], operation: str = "WRITE", **said: str) -> None:
        self.world.commit(*actions, operation=operation, **said)

    def txn(self, flow: str, version: int) -> dict[str, Any]:
        return {"txn": {"appId": replace(self.world, name=flow).query_id, "version": version}}

    def plan(self, name: str) -> Plan:
        made = planned(self.world, name, **ASKED[name])
        assert made.refusals == ()
        return approve(self.world, made)

    def look(self, name: str) -> None:
        """Plan a recovery and carry it out up to the look under the hold."""
        self.plan(name)
        self.steps("hold", "plan_again")

    def steps(self, *steps: str) -> dict[str, Any]:
        return carry_out(self.world, *steps, in_spark=self._in_spark)

    def decide(self) -> None:
        steps = engine.read_plan(self.world.settings, "events", "r1").steps
        self.steps(*steps[2 : steps.index("decide") + 1])

    def is_put_back(self) -> None:
        self.decide()
        self.steps("put_back")
        newest = generations.latest(self.world.home)
        assert newest is not None and newest.recovery == "r1"

    @staticmethod
    def _in_spark(act: str, work: Work) -> dict[str, Any]:
        if act.endswith((":act", ":put_back")):
            plan = shared_steps.plan_under_hold(work)
            put_back.check_unchanged(work, plan, put_back.once_decided(plan))
        return {"tables": []}


ASKED: dict[str, dict[str, Any]] = {
    "rewind": {"flow": "events.clean_events", "batch": "1", "target": "restored"},
    "restore_table": {"table": "events.events", "backup": "b1"},
}
VERSION = {"table": "events.events", "version": 4}
PUTS_BACK = {"rewind": "rewind", "backup": "restore_table", "version": "restore_table"}


@pytest.fixture
def bench(world: World) -> Bench:
    world.declare(EVENTS + LATE)
    replace(world, name="late_events").processed(2)
    world.processed(4)
    copy = world.root / "b1"
    open_storage(str(copy)).create(
        FIRST_COMMIT, b'{"protocol":{}}\n{"metaData":{"id":"b","configuration":{}}}\n'
    )
    table = replace(entry("b1").copy, path=str(copy), version=4)
    offsets = {"events_raw": {"logOffset": 1}}
    stood = tuple(
        FlowAt(f"events.{name}", 1, 1, replace(world, name=name).query_id, offsets)
        for name in ("clean_events", "late_events")
    )
    backups.enter(world.home.storage, entry("b1", 1, copy=table, flows=stood))
    return Bench(world)


@pytest.fixture(params=PUTS_BACK)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recovery that puts the table back: to a batch, to a backup, to a version."""
    if request.param == "version":
        monkeypatch.setitem(ASKED, "restore_table", VERSION)
    return PUTS_BACK[request.param]


STRANGERS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "a delete": ("DELETE", [REMOVE, ADD], r"version 7 \(DELETE\)"),
    "rows of someone": ("WRITE", [ADD], r"version 7 \(WRITE\)"),
    "another query": (
        "STREAMING UPDATE",
        [{"txn": {"appId": "another", "version": 3}}, ADD],
        r"version 7 \(STREAMING UPDATE\)",
    ),
    "a property": ("SET TBLPROPERTIES", [{"metaData": {"id": "t"}}], r"version 7 \(SET TBLPROPERTIES\)"),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_what_somebody_wrote_after_the_look_is_not_undone_unseen(
    bench: Bench, way: str, stranger: tuple[str, list[dict[str, Any]], str]
) -> None:
    operation, actions, told = stranger
    bench.look(way)
    bench.commit(*actions, operation=operation)
    before = generations.latest(bench.world.home)
    with pytest.raises(
        RecoveryError, match=rf"was written to after .*: {told}\. .*Nothing was changed.*abandon r1"
    ):
        bench.decide()
    assert generations.latest(bench.world.home) == before
    assert engine.give_up(bench.world.settings, "events", "r1", "someone wrote"), "nothing was changed"


def test_a_late_batch_of_a_flow_that_goes_back_is_read_again_and_in_nobodys_way(
    bench: Bench, way: str
) -> None:
    bench.look(way)
    bench.commit(bench.txn("clean_events", 4), ADD, operation="STREAMING UPDATE")
    bench.is_put_back()


def test_a_late_batch_of_a_flow_that_only_waits_would_be_lost(bench: Bench) -> None:
    bench.look("rewind")
    bench.commit(bench.txn("late_events", 2), ADD, operation="STREAMING UPDATE")
    with pytest.raises(
        RecoveryError, match=r"hold: version 7 \(STREAMING UPDATE, batch 2 of events\.late_events\)\. "
    ):
        bench.decide()


@pytest.mark.parametrize(
    ("operation", "actions"),
    [
        ("Manual Update", [{"txn": {"appId": "any", "version": FENCE}}]),
        (
            "OPTIMIZE",
            [{"remove": {"path": "old", "dataChange": False}}, {"add": {"path": "new", "dataChange": False}}],
        ),
        ("VACUUM START", []),
        ("VACUUM END", []),
    ],
)
def test_upkeep_and_fences_are_in_nobodys_way(
    bench: Bench, way: str, operation: str, actions: list[dict[str, Any]]
) -> None:
    bench.look(way)
    bench.commit(*actions, operation=operation)
    bench.is_put_back()


def test_what_is_written_once_the_generations_are_decided_ends_the_step_with_another_way_out(
    bench: Bench, way: str
) -> None:
    bench.look(way)
    bench.decide()
    bench.commit(ADD)
    with pytest.raises(
        RecoveryError,
        match=r"It was not restored. .*streamkeeper hold events\.clean_events events\.late_events",
    ):
        bench.steps("put_back")


@pytest.mark.parametrize("mine", ["mark", "transaction"])
def test_what_comes_after_a_table_was_put_back_by_the_recovery_itself_is_in_nobodys_way(
    bench: Bench, way: str, mine: str
) -> None:
    bench.look(way)
    bench.decide()
    if mine == "mark":
        bench.commit(REMOVE, operation="RESTORE", userMetadata=mark("r1"))
    else:
        bench.commit(REMOVE, {"txn": {"appId": app_id("r1", PUT_BACK), "version": 1}})
    bench.commit(ADD)
    assert bench.steps("put_back") == {"tables": []}


def test_a_table_that_was_replaced_since_is_not_put_back(bench: Bench, way: str) -> None:
    bench.look(way)
    for version in range(1, 7):
        bench.world.version(version).unlink()
    with pytest.raises(RecoveryError, match=r"is at version 0; it was at 6 .*someone replaced it"):
        bench.decide()


@pytest.mark.parametrize(
    ("name", "values", "comes_again"),
    [
        pytest.param("full_refresh", {}, True, id="from the sources"),
        pytest.param("rebuild_without_downtime", {}, True, id="beside"),
        pytest.param("full_refresh_with_backup", {"fill_from": "backup"}, False, id="from the backup"),
    ],
)
def test_what_a_refresh_would_remove_unseen_ends_it(
    bench: Bench, name: str, values: dict[str, str], comes_again: bool
) -> None:
    bench.world.summarize()
    made = approve(bench.world, planned(bench.world, name, table="events.events", **values))
    work = Work(bench.world.settings, made, ledger.open(bench.world.home.storage, "events", "r1"), "step")

    def check() -> None:
        put_back.check_unchanged(work, made, put_back.before_decided(made))

    check()
    bench.commit(bench.txn("clean_events", 4), ADD, operation="STREAMING UPDATE")
    if comes_again:
        check()
    else:
        with pytest.raises(RecoveryError, match=r"batch 4 of events\.clean_events\)\. .*Nothing was changed"):
            check()
    bench.commit(ADD)
    with pytest.raises(RecoveryError, match=r"version \d+ \(WRITE\)\. The recovery would undo that"):
        check()


# What Delta refuses


MAPPED = "delta.columnMapping.mode"
REFUSED: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "takes appends only": ({"delta.appendOnly": "true"}, {}, "has the property delta.appendOnly"),
    "the backup maps its columns": ({}, {MAPPED: "name"}, f"{MAPPED}=none, and the backup has {MAPPED}=name"),
    "otherwise": ({MAPPED: "id"}, {MAPPED: "name"}, f"{MAPPED}=id, and the backup has {MAPPED}=name"),
}


@pytest.mark.parametrize(("present", "backup", "said"), REFUSED.values(), ids=REFUSED)
def test_a_backup_that_delta_would_not_put_back_is_refused_in_the_plan(
    bench: Bench, present: dict[str, str], backup: dict[str, str], said: str
) -> None:
    metadata = json.dumps({"metaData": {"configuration": backup}}, separators=(",", ":"))
    copy = open_storage(str(bench.world.root / "b1"))
    copy.overwrite(FIRST_COMMIT, f'{{"protocol":{{}}}}\n{metadata}'.encode())
    bench.world.summarize(**present)
    with pytest.raises(RequestError, match="Nothing was changed") as refused:
        bench.plan("restore_table")
    assert said in str(refused.value)


@pytest.mark.parametrize("present", [{}, {MAPPED: "name"}, {"delta.appendOnly": "false"}])
def test_a_backup_that_maps_no_columns_is_put_back_whatever_the_table_does(
    bench: Bench, present: dict[str, str]
) -> None:
    bench.world.summarize(**present)
    assert bench.plan("restore_table").details["backup_id"] == "b1"
