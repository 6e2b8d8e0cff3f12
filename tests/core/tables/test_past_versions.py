"""Which version of a table belongs to a batch, where its other flows stood then, and what a way back would
undo.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.log import FENCE
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import (
    ADOPTED,
    AFTER_LAST,
    BATCH,
    EARLIEST,
    REBUILT,
    SIDE_TABLE,
    Generation,
    Start,
    StartAt,
)
from streamkeeper.observe import past_positions
from streamkeeper.observe.past_positions import Place
from streamkeeper.storage import LocalStorage
from streamkeeper.tables import flows_at_version, past_versions
from streamkeeper.tables.flows_at_version import PastVersion

NOW = "2026-11-21T10:00:00+00:00"


@dataclass
class Log:
    """A table's log, written commit by commit; ``versions`` by the words that each was written with."""

    path: Path
    count: int = 0
    versions: dict[str, int] = field(default_factory=dict)

    def commit(self, *actions: dict[str, Any], operation: str = "WRITE", mark: str | None = None) -> int:
        (self.path / "_delta_log").mkdir(parents=True, exist_ok=True)
        info = {"commitInfo": {"operation": operation, **({"userMetadata": mark} if mark else {})}}
        text = "".join(json.dumps(action) + "\n" for action in (info, *actions))
        (self.path / "_delta_log" / f"{self.count:020d}.json").write_text(text)
        self.count += 1
        return self.count - 1

    def batch(self, flow: str, number: int, batch: int, **more: Any) -> int:
        app = query_id(f"shop.{flow}", number)
        added = {"add": {"path": f"{flow}{number}.{batch}", "dataChange": True}}
        return self.commit({"txn": {"appId": app, "version": batch}}, added, **more)

    def fence(self, flow: str, number: int) -> int:
        app = query_id(f"shop.{flow}", number)
        return self.commit({"txn": {"appId": app, "version": FENCE}}, operation="Manual Update")

    def of_recovery(self, end: str, recovery: str = "r2", *actions: dict[str, Any]) -> int:
        """What a recovery does to a whole table, under a ``txnAppId`` that ends so."""
        removed = {"remove": {"path": f"{recovery}.{self.count}", "dataChange": True}}
        return self.commit(
            {"txn": {"appId": f"{recovery}{end}", "version": 0}}, removed, *actions, operation="DELETE"
        )

    def lose(self, before: int) -> None:
        for version in range(before):
            (self.path / "_delta_log" / f"{version:020d}.json").unlink()


@dataclass
class Shop:
    """Two flows of one table, known by their generations alone."""

    root: Path

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(str(self.root / "state"))

    def home(self, flow: str) -> FlowHome:
        return FlowHome(self.storage, "shop", flow)

    @property
    def homes(self) -> list[FlowHome]:
        return [self.home("a"), self.home("b")]

    def begin(self, flow: str, number: int, seed: int | None, mode: str = AFTER_LAST) -> None:
        home = self.home(flow)
        app = query_id(home.full_name, number)
        previous = number - 1 or None
        generations.decide(
            home, Generation(number, previous, StartAt(mode), REBUILT, app, "", "", NOW, "f", f"r{number}")
        )
        generations.begin(home, Start(number, home.checkpoint(number, 1), seed, {}, {}, (), None, 1, NOW))

    def place(self, flow: str, number: int, batch: int) -> Place:
        home = self.home(flow)
        generation, start = generations.read(home, number), generations.read_start(home, number)
        assert generation is not None and start is not None
        return Place(generation, start, past_positions.Checkpoint(self.storage, start.checkpoint), batch, "")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.begin("a", 1, None)
    made.begin("b", 1, None)
    return made


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Versions 1 to 5: a0, b0, a1, b1, a2."""
    made = Log(tmp_path / "table")
    made.commit({"metaData": {"id": "t"}}, operation="CREATE TABLE")
    for flow, batch in (("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)):
        made.batch(flow, 1, batch)
    return made


def back(shop: Shop, log: Log, version: int) -> PastVersion:
    return flows_at_version.look_back("t", str(log.path), version, shop.homes)


Position = tuple[int | None, int | None]
BEGINNING: Position = (None, None)


def stood(past: PastVersion) -> dict[str, tuple[Position, int]]:
    """Generation and batch after which each flow stood, and how many of its batches are undone."""
    found = {flow: at for flow, at in past.flows.items() if at is not None}
    return {
        flow.removeprefix("shop."): ((at.generation, at.batch), past.undone[flow])
        for flow, at in found.items()
    }


def after(number: int, batch: int) -> Position:
    return number, batch


@pytest.mark.parametrize(("batch", "version"), [(0, 1), (1, 3), (2, 5)])
def test_the_version_of_a_batch_is_where_the_log_names_it(
    batch: int, version: int, shop: Shop, log: Log
) -> None:
    assert past_versions.version_after(shop.place("a", 1, batch), str(log.path)) == version


def test_a_generation_that_has_committed_nothing_of_its_own_stands_before_its_first_batch(
    shop: Shop, log: Log
) -> None:
    log.fence("a", 1)
    shop.begin("a", 2, seed=0)
    assert past_versions.version_after(shop.place("a", 2, 0), str(log.path)) == 6
    log.batch("b", 1, 2)
    log.batch("a", 2, 1)
    assert past_versions.version_after(shop.place("a", 2, 0), str(log.path)) == 7


def test_a_generation_that_never_committed_anything_ends_where_it_was_fenced(shop: Shop, log: Log) -> None:
    log.fence("a", 1)
    shop.begin("a", 2, seed=0)
    fenced = log.fence("a", 2)
    shop.begin("a", 3, seed=0)
    log.batch("a", 3, 1)
    assert past_versions.version_after(shop.place("a", 2, 0), str(log.path)) == fenced - 1


def test_a_batch_that_the_log_does_not_name_any_more_is_refused(shop: Shop, log: Log) -> None:
    log.lose(3)
    assert past_versions.version_after(shop.place("a", 1, 1), str(log.path)) == 3
    with pytest.raises(
        RequestError, match="names no version for batch 0 of generation 1: it starts at version 3 now"
    ):
        past_versions.version_after(shop.place("a", 1, 0), str(log.path))


def test_a_table_that_was_built_beside_never_was_as_after_its_earlier_batches(shop: Shop, log: Log) -> None:
    shop.begin("a", 2, None, SIDE_TABLE)
    txn = {"txn": {"appId": query_id("shop.a", 2), "version": 3}}
    put = log.of_recovery(past_versions.PUT_IN_PLACE, "r2", txn)
    log.batch("a", 2, 4)
    assert past_versions.version_after(shop.place("a", 2, 3), str(log.path)) == put
    assert past_versions.version_after(shop.place("a", 2, 4), str(log.path)) == put + 1
    with pytest.raises(RequestError) as refused:
        past_versions.version_after(shop.place("a", 2, 0), str(log.path))
    assert f"generation 2 was built in a side table and replaced it at version {put}, in one commit" in str(
        refused.value
    )
    assert "Name batch 3 or a newer one." in str(refused.value)
    assert "Delta removes" not in str(refused.value)


def test_each_flow_stood_at_its_newest_commit_up_to_the_version(shop: Shop, log: Log) -> None:
    past = back(shop, log, 3)
    assert stood(past) == {"a": (after(1, 1), 1), "b": (after(1, 0), 1)}
    assert (past.newest, past.other_commits) == (5, ())
    assert stood(back(shop, log, 5)) == {"a": (after(1, 2), 0), "b": (after(1, 1), 0)}


def test_a_flow_that_had_written_nothing_yet_stood_at_its_beginning(shop: Shop, log: Log) -> None:
    assert stood(back(shop, log, 1)) == {"a": (after(1, 0), 2), "b": (BEGINNING, 2)}


def test_where_the_log_does_not_reach_back_that_is_not_known(shop: Shop, log: Log) -> None:
    log.lose(1)
    assert back(shop, log, 1).flows["shop.b"] is None


def test_a_flow_that_was_fenced_stood_where_its_next_generation_began(shop: Shop, log: Log) -> None:
    fenced = log.fence("b", 1)
    shop.begin("b", 2, seed=0)
    third = log.batch("a", 1, 3)
    log.batch("b", 2, 1)
    assert stood(back(shop, log, fenced - 1))["b"] == (after(1, 1), 1)
    assert stood(back(shop, log, third))["b"] == (after(2, 0), 1)


def test_a_flow_whose_next_generation_has_not_begun_stood_after_its_last_batch_but_no_backup_says_so(
    shop: Shop, log: Log
) -> None:
    log.fence("b", 1)
    home = shop.home("b")
    first = generations.read(home, 1)
    assert first is not None
    again = replace(first, previous=1, start=StartAt(EARLIEST), recovery="r2")
    generations.decide(home, generations.with_number(again, home, 2))
    past = back(shop, log, 6)
    assert stood(past)["b"] == (after(1, 1), 0)
    with pytest.raises(RecoveryError, match="no driver has started it yet"):
        past.flow_at(home)


def test_a_generation_that_began_after_a_batch_of_its_own_and_wrote_nothing_yet_stood_there(
    shop: Shop, log: Log
) -> None:
    """As one that adopted a checkpoint: nothing was fenced before it."""
    shop.begin("c", 1, seed=4, mode=ADOPTED)
    at = flows_at_version.look_back("t", str(log.path), 3, [shop.home("c")]).flows["shop.c"]
    assert at is not None and (at.generation, at.batch) == (1, 4)


def test_after_a_table_was_put_back_a_flow_stands_where_it_was_put_and_not_at_what_was_undone(
    shop: Shop, log: Log
) -> None:
    """b goes back to its batch 0 with the table, and commits nothing before a's next batch."""
    log.fence("a", 1)
    log.fence("b", 1)
    log.commit(operation="RESTORE", mark=past_versions.mark("r1"))
    shop.begin("a", 2, seed=1)
    shop.begin("b", 2, seed=0)
    version = log.batch("a", 2, 2)
    log.batch("b", 2, 1)
    past = back(shop, log, version)
    assert stood(past) == {"a": (after(2, 2), 0), "b": (after(2, 0), 1)}
    assert back(shop, log, 3).other_commits == ()


def test_commits_that_are_no_flows_are_named_if_they_changed_rows(shop: Shop, log: Log) -> None:
    log.commit({"remove": {"path": "x", "dataChange": True}}, operation="DELETE")
    log.commit(
        {"remove": {"path": "y", "dataChange": False}},
        {"add": {"path": "z", "dataChange": False}},
        operation="OPTIMIZE",
    )
    log.commit({"metaData": {"id": "t"}}, operation="SET TBLPROPERTIES")
    log.commit({"remove": {"path": "y", "dataChange": True}}, operation="RESTORE")
    assert back(shop, log, 3).other_commits == ("version 9 (RESTORE)", "version 6 (DELETE)")
    assert back(shop, log, 7).other_commits == ("version 9 (RESTORE)",)


ENDS = ("/empty_tables", "/put_in_place", "/put-back")


@pytest.mark.parametrize("end", ENDS)
def test_what_a_recovery_did_to_the_whole_table_is_no_strangers(end: str, shop: Shop, log: Log) -> None:
    log.of_recovery(end)
    assert back(shop, log, 3).other_commits == ()
    log.of_recovery("/anything")
    assert back(shop, log, 3).other_commits == ("version 7 (DELETE)",)


@pytest.mark.parametrize("end", ENDS)
def test_until_a_recovery_changed_the_table_a_flow_that_it_fenced_stood_after_its_last_batch(
    end: str, shop: Shop, log: Log
) -> None:
    fenced = [log.fence(flow, 1) for flow in ("a", "b")][-1]
    at = log.of_recovery(end)
    shop.begin("a", 2, seed=None, mode=EARLIEST)
    shop.begin("b", 2, seed=0, mode=BATCH)
    assert stood(back(shop, log, fenced))["a"][0] == after(1, 2)
    assert stood(back(shop, log, fenced))["b"][0] == after(1, 1)
    assert stood(back(shop, log, at)) == {"a": (BEGINNING, 0), "b": (after(2, 0), 0)}


def test_a_flow_whose_rows_a_recovery_has_changed_goes_back_along_though_it_wrote_nothing_since(
    shop: Shop, log: Log
) -> None:
    for flow in ("a", "b"):
        log.fence(flow, 1)
        shop.begin(flow, 2, seed=None, mode=EARLIEST)
    assert stood(back(shop, log, 5))["b"] == (after(1, 1), 0), "a reset that keeps the table changes none"
    log.of_recovery("/empty_tables")
    log.batch("a", 2, 0)
    assert stood(back(shop, log, 5)) == {"a": (after(1, 2), 1), "b": (after(1, 1), 1)}


def test_a_flow_that_goes_on_where_it_was_does_not_go_back_along(shop: Shop, log: Log) -> None:
    """As where a table is emptied and filled again from its backup."""
    log.fence("b", 1)
    log.of_recovery("/empty_tables")
    shop.begin("b", 2, seed=1)
    assert stood(back(shop, log, 5))["b"] == (after(1, 1), 0)


# --- files that a version needs


def vector(name: str, kind: str = "u") -> dict[str, Any]:
    return {"storageType": kind, "pathOrInlineDv": name, "offset": 1, "sizeInBytes": 34, "cardinality": 1}


def test_files_that_a_version_needs_and_that_are_gone_are_found_vectors_too(log: Log) -> None:
    """The vector's name is the one of Delta's protocol: prefix ab, and a UUID in Z85."""
    first = log.commit({"add": {"path": "one"}}, {"add": {"path": "a%20b"}})
    log.commit(
        {"remove": {"path": "one"}},
        {"add": {"path": "one", "deletionVector": vector("ab^-aqEH.-t@S}K{vb[*k^")}},
    )
    second = log.count - 1
    log.commit(
        {"remove": {"path": "one", "deletionVector": vector("ab^-aqEH.-t@S}K{vb[*k^")}},
        {"remove": {"path": "a%20b"}},
    )
    log.commit({"add": {"path": "later"}})
    log.commit({"remove": {"path": "later"}})
    path = str(log.path)
    assert past_versions.lacking_files(path, log.count - 1) == []
    assert sorted(past_versions.lacking_files(path, first)) == ["a b", "one"]
    assert sorted(past_versions.lacking_files(path, second)) == [
        "a b",
        "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
        "one",
    ]
    for name in ("one", "a b"):
        (log.path / name).write_text("x")
    assert past_versions.lacking_files(path, first) == []


def test_a_recovery_finds_what_it_put_back_itself(log: Log) -> None:
    log.commit(operation="RESTORE", mark=past_versions.mark("other"))
    at = log.commit(operation="RESTORE", mark=past_versions.mark("mine"))
    path = str(log.path)
    assert past_versions.restored_by(path, "mine", 5) == at
    assert past_versions.restored_by(path, "mine", at) is None
    assert past_versions.restored_by(path, "nobody's", 5) is None
