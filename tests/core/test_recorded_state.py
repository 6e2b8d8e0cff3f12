"""A state folder that was written before modules lay in packages is read as it is: flows, generations,
positions, recoveries, backups and holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.cli.inspecting import inspect_place
from streamkeeper.errors import StorageError
from streamkeeper.flows import generations, holds, leases, ledger, past_positions, position, status
from streamkeeper.flows.files import FlowHome, TableTurns
from streamkeeper.flows.generations import StartAt
from streamkeeper.flows.leases import Life
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans import plan as plans
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups, owners
from streamkeeper.tables.backups import Copying
from tests.killing import watch_storage
from tests.worlds.recover.recorded_state import PLACE, RECORDED, fingerprints, put
from tests.worlds.recover.recoveries import approve, carry_out, planned
from tests.worlds.small_world import World

EVENTS = "events.clean_events"
SNAPSHOT = "customers.customers_snapshot_flow"
CHANGES = "customers.customers_incremental_flow"
BACKUP = "backup_table-cli-d22de2fb98ba-f8ce2214"
RESET = "reset_checkpoint-cli-823c5b308263-a5d15779"
RECOVERIES = (BACKUP, RESET)


@pytest.fixture
def recorded(tmp_path: Path) -> World:
    return put(tmp_path)


def home(world: World, flow: str) -> FlowHome:
    pipeline, _, name = flow.partition(".")
    return FlowHome(open_storage(world.settings.state), pipeline, name)


def written(world: World, name: str) -> Any:
    """A file of the state folder, as it was written."""
    return json.loads((world.root / "state" / name).read_text())


def as_written(value: Any) -> Any:
    return json.loads(json.dumps(asdict(value)))


def only_widened(now: Any, then: Any) -> bool:
    """Whether a JSON value says what an earlier one said; it may have further fields."""
    if isinstance(then, dict):
        return all(name in now and only_widened(now[name], item) for name, item in then.items())
    if isinstance(then, list):
        return len(now) == len(then) and all(map(only_widened, now, then))
    return bool(now == then)


# --- declarations and flows


def test_an_upgrade_changes_no_flows_fingerprint() -> None:
    last = json.loads((RECORDED / "state" / "manifests" / "latest.json").read_text())["key"]
    kept = json.loads((RECORDED / "state" / "manifests" / f"{last}.json").read_text())
    assert fingerprints(RECORDED / "pipelines", f"{PLACE}/data") == kept["fingerprints"]


def test_every_flow_has_the_state_it_had(recorded: World) -> None:
    then = {item["flow"]: item for item in written(recorded, "../flows.json")}
    # Since then, a flow whose last driver ended in good order is shown as stopped, and no longer as down.
    assert then[EVENTS]["detail"].startswith("its driver left in good order: epoch 3")
    then[EVENTS] |= {"state": "stopped"}
    for was, words in (
        ("left in good order", "ended normally"),
        ("person-ada: ", "by ada: "),
        ("once, and has read all there was", "once and has read all its input"),
        ("person-ada: ", "by ada: "),
    ):
        for item in then.values():
            item["detail"] = item["detail"].replace(was, words)
    manifest = read_manifest(recorded.settings)
    assert manifest.errors == {}
    storage = open_storage(recorded.settings.state)
    now = {flow.full_name: status.look(storage, flow).to_json() for flow in manifest.flows()}
    for item in (*then.values(), *now.values()):
        assert item.pop("age") >= 0
    assert now == then


def test_the_last_manifest_is_read_where_the_pipeline_files_are_gone(recorded: World) -> None:
    (recorded.root / "pipelines").rename(recorded.root / "elsewhere")
    manifest = read_manifest(recorded.settings)
    assert sorted(flow.full_name for flow in manifest.flows()) == sorted([EVENTS, SNAPSHOT, CHANGES])
    assert "cannot be read" in manifest.errors["(all)"]


def test_holds_and_leases_are_found(recorded: World) -> None:
    (hold,) = holds.all_of(home(recorded, CHANGES))
    assert (hold.owner, hold.reason, hold.by) == ("person-ada", "maintenance", "ada")
    left = {EVENTS: (3, "stopped"), SNAPSHOT: (1, "done"), CHANGES: (1, "stopped")}
    for flow, (epoch, why) in left.items():
        files = home(recorded, flow)
        lease = leases.current(files)
        assert lease is not None
        assert (lease.epoch, leases.life(files, lease), leases.told_leaving(files, lease)["why"]) == (
            epoch,
            Life.LEFT,
            why,
        )
        beat = leases.read_heartbeat(files, epoch)
        assert beat is not None and beat.phase == "running"


def test_a_table_without_an_owners_note_stays_its_pipelines(recorded: World) -> None:
    storage = open_storage(recorded.settings.state)
    assert owners.owner(storage, "events") is None
    assert owners.foreign(recorded.settings, "customers", "events") == "events"
    owners.claim(recorded.settings, "events", "events")
    assert owners.owner(storage, "events") == "events"
    assert TableTurns(storage, "customers", "customers").numbers() == [3, 4]


# --- generations and positions


@pytest.mark.parametrize(("flow", "number"), [(EVENTS, 1), (EVENTS, 2), (SNAPSHOT, 1), (CHANGES, 1)])
def test_a_generation_and_its_start_are_as_written(recorded: World, flow: str, number: int) -> None:
    files = home(recorded, flow)
    decided, start = generations.read(files, number), generations.read_start(files, number)
    assert decided is not None and start is not None
    assert as_written(decided) == written(recorded, files.generation(number))
    assert as_written(start) == written(recorded, files.start(number))
    assert decided.query_id == files.query_id(number)


def test_a_done_flow_is_done_and_a_sealed_generation_is_over(recorded: World) -> None:
    assert generations.finished(home(recorded, SNAPSHOT)) == 1
    events = home(recorded, EVENTS)
    assert (generations.is_over(events, 1), generations.is_over(events, 2)) == (True, False)
    assert generations.committed(events, 1, last_commit=7) == 0
    assert past_positions.begun(events) == [1, 2]


@pytest.mark.parametrize(
    ("flow", "number", "sealed", "offsets"),
    [
        (EVENTS, 1, True, {"events_raw": {"logOffset": 0}}),
        (EVENTS, 2, False, {"events_raw": {"logOffset": 1}}),
        (SNAPSHOT, 1, False, {"customers_snapshot": {"logOffset": 0}}),
        (CHANGES, 1, False, {"customers_cdc": {"logOffset": 0}}),
    ],
)
def test_a_position_is_that_of_checkpoint_and_table(
    recorded: World, flow: str, number: int, sealed: bool, offsets: dict[str, Any]
) -> None:
    files = home(recorded, flow)
    decided, start = generations.read(files, number), generations.read_start(files, number)
    assert decided is not None and start is not None
    found = position.look(files, recorded.settings.table_path(files.pipeline), decided, start)
    assert (found.batch, found.ruled_by) == (number - 1, "checkpoint")
    assert (found.sealed, found.sink_known) == (sealed, True)
    entry = found.offsets()
    assert entry is not None and entry.sources == offsets


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        (EVENTS, "events_raw (files): files log 1, 3 files"),
        (SNAPSHOT, "customers_snapshot (files): files log 0, 1 files"),
        (CHANGES, "customers_cdc (files): files log 0, 1 files"),
    ],
)
def test_inspect_finds_nothing_wrong(recorded: World, flow: str, said: str) -> None:
    value, text = inspect_place(lambda: recorded.settings, flow, True)
    assert list(value["problems"]) == []
    assert said in text


# --- recoveries and backups


def test_recoveries_are_listed_and_over(recorded: World) -> None:
    storage = open_storage(recorded.settings.state)
    assert ledger.recoveries(storage, "events") == list(RECOVERIES)
    assert ledger.open_recoveries(storage) == []
    for recovery in RECOVERIES:
        assert ledger.pipeline_of(storage, recovery) == "events"
        assert not engine.is_open(recorded.settings, "events", recovery)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_recoverys_plan_is_read_as_it_was_written(recorded: World, recovery: str) -> None:
    found = engine.read_plan(recorded.settings, "events", recovery)
    then = written(recorded, f"events/ledger/{recovery}/0001-planned.json")["evidence"]
    assert only_widened(json.loads(json.dumps(plans.to_json(found))), then)
    assert (found.recovery_id, found.by, found.reason) == (recovery, "ada", "recorded")
    assert engine.was_approved(recorded.settings, found)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_step_that_was_done_is_not_done_again(recorded: World, recovery: str) -> None:
    before = recorded.tree()
    for step in engine.read_plan(recorded.settings, "events", recovery).steps:
        (file,) = (recorded.root / "state/events/ledger" / recovery).glob(f"*-{step}.done.json")
        evidence = engine.carry_out(recorded.settings, "events", recovery, step)
        assert evidence == json.loads(file.read_text())["evidence"]
    assert recorded.tree() == before


def test_a_plan_that_was_made_again_under_the_hold_is_no_worse(recorded: World) -> None:
    approved = engine.read_plan(recorded.settings, "events", RESET)
    evidence = engine.evidence_of(recorded.settings, "events", RESET, "plan_again")
    assert evidence is not None
    again = plans.from_json(evidence["plan"])
    assert (again.flows[0].next_generation, plans.worse(approved, again)) == (2, [])


def test_a_backup_of_an_earlier_release_is_planned_with_its_folder_and_its_table(recorded: World) -> None:
    plan = engine.read_plan(recorded.settings, "events", BACKUP)
    assert plan.known(Copying) == Copying(plan.details["folder"], ("clean_events",))
    assert plan.copies[0].source == plan.details["unit"]["target"]


def test_a_backup_is_listed(recorded: World) -> None:
    storage = open_storage(recorded.settings.state)
    (found,) = backups.every(storage)
    assert only_widened(
        json.loads(json.dumps(backups.to_value(found))),
        written(recorded, f"events/tables/events/backups/{BACKUP}.json"),
    )
    assert (found.id, found.target.version, found.target.checksum.rows) == (BACKUP, 1, 20)
    assert backups.needed_generations(storage) == {EVENTS: {1}}
    assert list(backups.needed_by(storage, found)) == []


# --- the format of the folder


READERS: dict[str, Callable[[World], object]] = {
    "leases": lambda world: leases.current(home(world, EVENTS)),
    "holds": lambda world: holds.all_of(home(world, CHANGES)),
    "generations": lambda world: generations.latest(home(world, EVENTS)),
    "ledger": lambda world: ledger.open_recoveries(open_storage(world.settings.state)),
    "plans": lambda world: engine.read_plan(world.settings, "events", RESET),
    "backups": lambda world: list(backups.every(open_storage(world.settings.state))),
    "a driver's start": lambda world: leases.acquire(home(world, EVENTS), 2, 60.0),
}


NEWER = re.escape("state has format 2; this Streamkeeper reads up to 1. Use the release that wrote it, or")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_folder_of_a_newer_format_is_refused_with_the_way_out_and_not_touched(
    recorded: World, reader: Callable[[World], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(names, "STATE_FORMAT", names.STATE_FORMAT + 1)
        names.mark_format(open_storage(recorded.settings.state))
        reader(recorded)
    before = recorded.tree()
    with pytest.raises(StorageError, match=NEWER):
        reader(recorded)
    assert recorded.tree() == before
    (error,) = read_manifest(recorded.settings).errors.values()
    assert re.search(NEWER, error)


def test_a_driver_notes_the_format_before_its_lease(recorded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    watch_storage(monkeypatch, lambda: None, lambda _, path: made.append(path))
    leases.acquire(home(recorded, EVENTS), 2, 60.0)
    noted, lease = (
        next(at for at, path in enumerate(made) if part in path) for part in ("format-", "/lease/")
    )
    assert noted < lease


# --- what comes next


def test_a_reset_goes_on_from_the_recorded_position(recorded: World) -> None:
    found = planned(recorded, "reset_checkpoint", "next", flow=EVENTS)
    (flow,) = found.flows
    assert (flow.generation, flow.next_generation, flow.previous, found.refusals) == (2, 3, 2, ())
    assert flow.operators_before == ("dedupe",)
    (price,) = flow.prices
    costs = (price.lost, price.repeated, price.replayed)
    assert [(cost.files, cost.rows) for cost in costs] == [(0, 0), (0, 0), (3, 37)]


def test_a_reset_is_carried_out_as_far_as_its_next_driver(recorded: World) -> None:
    found = planned(recorded, "reset_checkpoint", "next", flow=EVENTS)
    approve(recorded, found)
    carry_out(recorded, *found.steps[: found.steps.index("verify_progress")], recovery="next")
    newest = generations.latest(home(recorded, EVENTS))
    assert newest is not None
    assert (newest.number, newest.previous, newest.recovery) == (3, 2, "next")


def test_a_backup_is_planned_to_be_put_back(recorded: World) -> None:
    found = planned(recorded, "restore_table", "next", table="events.events", backup="newest")
    (flow,) = found.flows
    assert (flow.next_generation, flow.start) == (3, StartAt("batch", generation=1, batch=0))
    assert (found.refusals, flow.state) == ((), "copied")
    (copy,) = found.copies
    assert (copy.rows, copy.files) == (20, 2)
