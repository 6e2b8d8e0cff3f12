"""A recovery of a flow that is just starting, and recoveries and backups of one table at once: one waits or
is refused, and says so.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.sinks import auto_cdc

from streamkeeper.delta import copy_files
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import StreamkeeperError, TableLocked
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases, ledger
from streamkeeper.recover import engine
from streamkeeper.tables import backups, recovery_lock
from tests.worlds.flow_world import NAME, Flowbed, wait_until
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, CustomersBed, upsert

pytestmark = pytest.mark.long

TABLE = "events.events"


@pytest.fixture
def at_work(bed: Flowbed, at_work: Recoverer) -> Recoverer:
    """Recoveries of a flow that has committed a batch."""
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    return at_work


@pytest.mark.parametrize("first", ["the hold", "the lease"])
def test_a_driver_that_is_just_starting_begins_nothing_under_a_hold(
    first: str, bed: Flowbed, at_work: Recoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked for holds and found none; then the hold comes right before its lease, or right after
    it.
    """
    plan = at_work.plan("reset_checkpoint", "r1", flow=NAME)
    bed.arrive(3)
    acquire, holding = leases.acquire, list[Future[dict[str, Any]]]()
    with ThreadPoolExecutor(1) as people:

        def hold() -> None:
            holding.append(people.submit(at_work.step, "r1", "hold"))
            wait_until(bed.home.owners)

        def acquired(*arguments: Any, **named: Any) -> leases.Lease:
            if first == "the hold":
                hold()
                holding[0].result(60)
            lease = acquire(*arguments, **named)
            if first == "the lease":
                hold()
                assert not holding[0].done(), "it waits for the driver"
            return lease

        with monkeypatch.context() as patch:
            patch.setattr(leases, "acquire", acquired)
            assert bed.run() is Outcome.STOPPED
        found = holding[0].result(60)
    assert str((bed.home.epochs() or [0])[-1 if first == "the lease" else -2]) in found["drivers"][NAME]
    bed.holds(bed.events[:2])
    for step in plan.steps[1:-1]:
        at_work.step("r1", step)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    assert bed.home.generations() == [1, 2]


def test_a_recovery_that_comes_while_a_backup_looks_at_its_table_keeps_it_from_pinning(
    bed: Flowbed, at_work: Recoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = delta_log.latest_version

    def looked(path: str) -> int | None:
        recovery_lock.take(bed.home.storage, "events", "events", "r1")
        return newest(path)

    at_work.plan("backup_table", "b1", table=TABLE)
    monkeypatch.setattr(delta_log, "latest_version", looked)
    with pytest.raises(TableLocked, match=r"The recovery r1 has locked the table events"):
        at_work.step("b1", "pin")
    assert ledger.open(bed.home.storage, "events", "b1").find("pin.done") is None
    assert backups.listed(bed.home.storage, "events", "events") == []


def test_a_table_that_is_refreshed_while_it_is_copied_is_backed_up_as_it_was_pinned_and_says_how_far_it_is(
    bed: Flowbed, at_work: Recoverer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at_work.plan("backup_table", "b1", table=TABLE)
    at_work.step("b1", "pin")
    at_work.run("full_refresh", "r1", table=TABLE)
    bed.arrive(4)
    assert bed.run() is Outcome.STOPPED
    monkeypatch.setattr(copy_files, "TELL_EVERY", 0.0)
    with caplog.at_level(logging.INFO):
        [copied] = at_work.step("b1", "copy")["copied"]
    at_work.step("b1", "verify")
    entry = at_work.step("b1", "enter")["backups"][0]
    assert entry["copy"]["checksum"]["rows"] == 2
    told = [
        event
        for event in ledger.open(bed.home.storage, "events", "b1").events()
        if event.event == "copy.progress"
    ]
    assert told[-1].evidence == {
        "files": copied["files"],
        "of": copied["files"],
        "bytes": copied["bytes"],
    }
    assert copied["bytes"] > 0
    assert (
        f"copy: what target, files {copied['files']}, of {copied['files']}, bytes {copied['bytes']}"
        in caplog.text
    )
    bed.holds(bed.events)


def test_a_chunk_of_an_abandoned_backfill_that_comes_after_a_full_refresh_adds_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    recoverer = Recoverer.of(bed.of())
    bed.change(upsert(1, 10))
    assert bed.run() is Outcome.STOPPED
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "old.json").write_text(json.dumps(upsert(7, 1)) + "\n")
    recoverer.plan("backfill", "b1", flow=f"customers.{INCREMENTAL}", read="files", path=str(archive))
    recoverer.step("b1", "lock")
    apply, under_way, goes_on = auto_cdc.apply_changes, Event(), Event()

    def late(*arguments: Any) -> Any:
        under_way.set()
        assert goes_on.wait(300)
        return apply(*arguments)

    with ThreadPoolExecutor(1) as processes:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(auto_cdc, "apply_changes", late)
                filling = processes.submit(recoverer.step, "b1", "fill")
                wait_until(lambda: under_way.is_set() or filling.done())
                engine.abandon(bed.settings, "customers", "b1", "ada")
                recoverer.run("full_refresh", "r1", table="customers.customers")
        finally:
            goes_on.set()
        with pytest.raises(StreamkeeperError, match=r"b1 was given up|was fenced in its table"):
            filling.result(300)
    assert bed.rows() == []
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
