"""Another name for a flow or a pipeline: what is kept stays where it is, and is found by the new name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.errors import DeclarationError, LeaseHeld, RecoveryError, RequestError, TableLocked
from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.flows import rename as renaming
from streamkeeper.flows.files import FlowHome, LockFiles, kept_flows, kept_pipelines, query_id
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.observe import status
from streamkeeper.storage import LocalStorage, to_json
from streamkeeper.tables import backups, owners, recovery_lock, write_lock
from streamkeeper.tables.past_versions import writers_of
from tests.worlds.small_world import EVENTS, World, write_manifest
from tests.worlds.tables.backups import entry

OLD, NEW = "events.clean_events", "events.cleaned"
RENAMED = EVENTS.replace("clean_events", "cleaned")


def move_file(world: World) -> None:
    (world.settings.pipelines / "events.py").rename(world.settings.pipelines / "visits.py")


def rename(world: World, old: str, new: str) -> renaming.Renamed:
    return renaming.rename(world.settings, old, new, "ada")


def storage(world: World) -> LocalStorage:
    return LocalStorage(world.settings.state)


def names_of(found: Manifest) -> list[str]:
    return [flow.full_name for flow in found.flows()]


# --- recognised, and refused with the command


def test_a_file_that_was_only_renamed_is_refused_with_the_command_until_that_was_run(stands: World) -> None:
    before = write_manifest(stands.settings)
    move_file(stands)
    for _ in range(2):
        found = write_manifest(stands.settings)
        assert (names_of(found), found.fingerprints) == ([OLD], before.fingerprints)
        assert "Run `streamkeeper rename events visits`" in found.errors["visits"]
        assert "Run `streamkeeper rename events visits`" in found.errors["events"]
    assert rename(stands, "events", "visits").flows == {"visits.clean_events": 1}
    found = read_manifest(stands.settings)
    assert (names_of(found), found.errors) == (["visits.clean_events"], {})


def test_a_file_that_was_renamed_and_changed_is_refused_too(stands: World) -> None:
    write_manifest(stands.settings)
    move_file(stands)
    stands.declare(EVENTS.replace("event_id STRING", "event_id STRING, n INT"), "visits.py")
    found = write_manifest(stands.settings)
    assert names_of(found) == [OLD]
    assert "Run `streamkeeper rename events visits`" in found.errors["visits"]


def test_a_file_that_is_removed_altogether_has_no_flows(stands: World) -> None:
    write_manifest(stands.settings)
    move_file(stands)
    write_manifest(stands.settings)
    (stands.settings.pipelines / "visits.py").unlink()
    found = write_manifest(stands.settings)
    assert (names_of(found), found.errors) == ([], {})


def test_a_file_may_be_renamed_before_it_ran(world: World) -> None:
    write_manifest(world.settings)
    move_file(world)
    found = write_manifest(world.settings)
    assert (names_of(found), found.errors) == (["visits.clean_events"], {})


@pytest.mark.parametrize(
    "text", [RENAMED, EVENTS.replace('"clean_events"', '"cleaned"')], ids=["with its function", "alone"]
)
def test_a_flow_that_was_only_renamed_is_refused_with_the_command_until_that_was_run(
    text: str, stands: World
) -> None:
    before = write_manifest(stands.settings)
    stands.declare(text)
    for _ in range(2):
        found = write_manifest(stands.settings)
        assert (names_of(found), found.fingerprints) == ([OLD], before.fingerprints)
        assert f"Run `streamkeeper rename {OLD} {NEW}`" in found.errors["events"]
    rename(stands, OLD, NEW)
    found = read_manifest(stands.settings)
    assert (names_of(found), found.errors) == ([NEW], {})


def test_a_flow_that_takes_anothers_place_is_another(stands: World) -> None:
    write_manifest(stands.settings)
    stands.declare(RENAMED.replace("return raw", "return raw.distinct()"))
    found = write_manifest(stands.settings)
    assert (names_of(found), found.errors) == ([NEW], {})


# --- what stays right


def renamed_flow(world: World) -> FlowHome:
    world.declare(RENAMED)
    rename(world, OLD, NEW)
    return FlowHome(storage(world), "events", "cleaned")


def renamed_pipeline(world: World) -> FlowHome:
    move_file(world)
    rename(world, "events", "visits")
    return FlowHome(storage(world), "visits", "clean_events")


def renamed_both(world: World) -> FlowHome:
    renamed_flow(world)
    move_file(world)
    rename(world, "events", "visits")
    return FlowHome(storage(world), "visits", "cleaned")


def renamed_back(world: World) -> FlowHome:
    for names_had in (("events", "visits", "hits", "visits", "events"), (OLD, NEW, OLD)):
        for old, new in pairwise(names_had):
            rename(world, old, new)
    return FlowHome(storage(world), "events", "clean_events")


WAYS = pytest.mark.parametrize("way", [renamed_flow, renamed_pipeline, renamed_both, renamed_back])
Way = Callable[[World], FlowHome]


@WAYS
def test_generations_query_ids_and_status_are_those_of_the_flow(way: Way, stands: World) -> None:
    state, before = stands.root / "state" / "events", stands.tree()
    old = generations.latest(stands.home)
    home = way(stands)
    assert old is not None
    assert generations.latest(home) == old
    assert generations.read_start(home, 1) == generations.read_start(stands.home, 1)
    assert home.query_id(2) == query_id(OLD, 2), "an id of a later generation is none that the table has seen"
    assert generations.after_takeover(home, old, "f", "why").query_id == query_id(OLD, 2)
    assert writers_of(home) == {old.query_id: 1}
    flow = read_manifest(stands.settings).find(home.full_name)
    found = status.look(storage(stands), flow)
    assert (found.flow, found.generation, found.batch) == (home.full_name, 1, 2)
    others = ("pipelines", "state/ledger")
    kept = {name: mark for name, mark in stands.tree().items() if not name.startswith(others)}
    assert kept.items() <= before.items(), "no file was moved or written"
    assert state.is_dir()


@WAYS
def test_what_is_kept_is_listed_by_the_present_names(way: Way, stands: World) -> None:
    ledger.open(storage(stands), "events", "r1").record("planned", {"recovery": "x"})
    ledger.open(storage(stands), "events", "r1").record("ended", {})
    home = way(stands)
    assert kept_pipelines(storage(stands)) == [home.pipeline]
    assert [kept.full_name for kept in kept_flows(storage(stands), home.pipeline)] == [home.full_name]
    assert ledger.pipeline_of(storage(stands), "r1") == home.pipeline
    assert ledger.recoveries(storage(stands), home.pipeline) == ["r1"]


@WAYS
def test_holds_leases_and_turns_are_those_of_the_flow(way: Way, stands: World) -> None:
    holds.put(stands.home, holds.person("ada"), "why", "ada")
    lease = leases.acquire(stands.home, 1, 0.6)
    leases.leave(stands.home, lease, "stopped")
    lock = LockFiles(storage(stands), "events", "events")
    holder = write_lock.Holder("clean_events", lease.epoch, 1, None, lease.process, None, "then")
    lock.storage.create(lock.lock(1), to_json(asdict(holder)))
    home = way(stands)
    assert [hold.owner for hold in holds.all_of(home)] == ["person-ada"]
    assert leases.current(home) == lease
    after = LockFiles(storage(stands), home.pipeline, "events")
    assert write_lock.read(after, 1) == holder
    assert write_lock.gone(after, holder) is write_lock.Gone.PROVEN


@WAYS
def test_backups_are_found_with_where_their_flows_stood(way: Way, stands: World) -> None:
    backups.enter(storage(stands), entry("b1"))
    folder = Path(stands.settings.backups_path, "events/events/b1/target")
    folder.mkdir(parents=True)
    home = way(stands)
    [found] = backups.listed(storage(stands), home.pipeline, "events")
    assert (found.pipeline, found.flows[0].flow) == (home.pipeline, home.full_name)
    assert backups.needed_generations(storage(stands)) == {home.full_name: {1}}
    assert backups.left_over(stands.settings) == backups.LeftOver((), ())
    backups.remove(stands.settings, home.pipeline, "events", "b1")
    assert not folder.exists()
    assert list(backups.every(storage(stands))) == []


# --- refused


def with_driver(world: World) -> None:
    leases.acquire(world.home, 1, 0.6)


def with_recovery(world: World) -> None:
    ledger.open(storage(world), "events", "r1").record("planned", {})


def with_strange_names(world: World) -> None:
    for name in ("visits", "events/cleaned"):
        folder = world.root / "state" / name / ("generations" if "/" in name else "f/generations")
        folder.mkdir(parents=True)
        (folder / "000001.json").write_text("{}")


def nothing(_world: World) -> None: ...


TAKEN = "there is state under that name"
NOT_THERE = f"There is no state of 'events.other'.* There is state of: {OLD}"
REFUSED: dict[str, tuple[Callable[[World], None], str, str, str]] = {
    "a driver is alive": (with_driver, OLD, NEW, f"may be alive .* streamkeeper hold --wait {OLD}"),
    "a driver of the pipeline is alive": (with_driver, "events", "visits", "may be alive"),
    "a recovery is open": (with_recovery, OLD, NEW, "r1 of events is not over.* streamkeeper abandon r1"),
    "the flow's name is taken": (with_strange_names, OLD, NEW, TAKEN),
    "the pipeline's name is taken": (with_strange_names, "events", "visits", TAKEN),
    "nothing is kept": (nothing, "events.other", NEW, NOT_THERE),
    "another kind": (nothing, OLD, "visits", "cannot become"),
    "another pipeline": (nothing, OLD, "visits.clean_events", "a flow stays in its pipeline"),
    "no name": (nothing, "events", "../x", "names no flow and no pipeline"),
    "a name of ours": (nothing, "events", "Tables", "none of ledger, manifests, tables"),
}
ERRORS = {with_driver: LeaseHeld, with_recovery: RecoveryError}


@pytest.mark.parametrize(("before", "old", "new", "said"), REFUSED.values(), ids=REFUSED)
def test_a_rename_that_cannot_be_made_changes_nothing(
    before: Callable[[World], None], old: str, new: str, said: str, stands: World
) -> None:
    before(stands)
    tree = stands.tree()
    with pytest.raises(ERRORS.get(before, RequestError), match=said):
        rename(stands, old, new)
    assert stands.tree() == tree


def test_a_rename_may_be_asked_for_again(stands: World) -> None:
    assert not rename(stands, OLD, NEW).done_before
    tree = stands.tree()
    assert rename(stands, OLD, NEW).done_before
    assert stands.tree() == tree


def test_a_rename_that_another_overtook_is_made_on_top_of_it(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = names.write

    def overtaken(*arguments: Any, **why: Any) -> bool:
        monkeypatch.undo()
        rename(stands, OLD, NEW)
        return write(*arguments, **why)

    monkeypatch.setattr(names, "write", overtaken)
    assert rename(stands, "events", "visits").flows == {"visits.cleaned": 1}
    assert names.read(storage(stands)).present(OLD) == "visits.cleaned"


@pytest.mark.parametrize("way", [renamed_flow, renamed_pipeline])
def test_a_name_that_was_had_is_nobody_elses(way: Way, stands: World) -> None:
    home = way(stands)
    stands.declare(EVENTS.replace('"events"', '"others"'))
    found = read_manifest(stands.settings)
    assert OLD not in names_of(found) or home.pipeline == "events"
    assert "to undo the rename, run `streamkeeper rename" in found.errors["events"]


# --- whose a table is


def test_two_pipelines_never_both_have_a_tables_lock(stands: World) -> None:
    recovery_lock.take(storage(stands), "events", "events", "r1")
    with pytest.raises(TableLocked):
        recovery_lock.take(storage(stands), "copy_of_events", "events", "r2")
    assert recovery_lock.holder(storage(stands), "copy_of_events", "events") == "r1"
    recovery_lock.give_back(storage(stands), "events", "events", "r1")
    with pytest.raises(TableLocked, match="belongs to the pipeline events, not to copy_of_events"):
        recovery_lock.take(storage(stands), "copy_of_events", "events", "r2")


def test_turns_on_a_table_are_of_the_table(stands: World) -> None:
    owners.claim(stands.settings, "events", "events")
    roots = {LockFiles(storage(stands), pipeline, "events").root for pipeline in ("events", "copy_of_events")}
    assert roots == {"events/tables/events/write_lock"}


def test_a_first_generation_refuses_a_table_with_rows_of_another_pipeline(stands: World) -> None:
    home, flow = FlowHome(storage(stands), "copy_of_events", "clean_events"), stands.flow
    with pytest.raises(DeclarationError, match="the table events belongs to the pipeline events already"):
        owners.ensure(stands.settings, home, flow)
    owners.ensure(stands.settings, stands.home, flow)
    assert owners.owner(storage(stands), "events") == "events"
    with pytest.raises(DeclarationError, match="belongs to the pipeline events already"):
        owners.claim(stands.settings, "copy_of_events", "events")
    shutil.rmtree(stands.root / "warehouse" / "events")
    owners.ensure(stands.settings, home, flow)
    assert owners.owner(storage(stands), "events") == "copy_of_events"


@WAYS
def test_a_table_stays_its_pipelines(way: Way, stands: World) -> None:
    owners.claim(stands.settings, "events", "events")
    home = way(stands)
    assert owners.owner(storage(stands), "events") == home.pipeline
    owners.ensure(stands.settings, home, read_manifest(stands.settings).find(home.full_name))
    recovery_lock.take(storage(stands), home.pipeline, "events", "r1")
