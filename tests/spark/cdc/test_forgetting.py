"""Forgetting old deletes. SCD type 2: changes that are later than the retention may be judged wrongly, all
others are not.

And the step of a clean-up that lets tables forget: no recovery is at work meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.cdc import remembered as remembered_changes
from streamkeeper_jobs.cdc.remembered import forget
from streamkeeper_jobs.recover import clean_up as forgetting

from streamkeeper.declare.cdc_spec import END_AT, START_AT
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import ledger
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import clean_up as planned
from streamkeeper.storage import open_storage
from streamkeeper.tables import recovery_lock
from tests.worlds.flow_world import quick_settings
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.cdc_world import VERSIONS, CdcBed, alone
from tests.worlds.tables.customers_world import SNAPSHOT, CustomersBed, delete, upsert

TRACKING = replace(VERSIONS, track_history_column_list=("name",))
IGNORING = replace(TRACKING, ignore_null_updates=True)


@pytest.fixture(params=long_after(1, [IGNORING, TRACKING]), ids=["ignoring nulls", "whole rows"])
def bed(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> CdcBed:
    return CdcBed(spark, tmp_path, request.param).prepare()


def now(bed: CdcBed) -> datetime:
    """Give a moment that is after all that was written and before all that is written next."""
    return bed.spark.sql("SELECT current_timestamp()").collect()[0][0].astimezone()  # type: ignore[no-any-return]


def remembered(bed: CdcBed) -> list[tuple[Any, ...]]:
    return sorted((row["key"]["id"], row["sequence"], row["kind"]) for row in bed.remembered().collect())


def shown(bed: CdcBed, key: int) -> list[tuple[Any, ...]]:
    versions = [
        (row["name"], row["city"], row[START_AT], row[END_AT]) for row in bed.rows() if row["id"] == key
    ]
    return sorted(versions, key=lambda version: version[2])


@pytest.mark.long
def test_the_newest_old_change_of_a_key_is_kept_for_late_changes_after_it(bed: CdcBed) -> None:
    bed.apply(
        (1, 1, "U", "a", "x"),
        (1, 2, "U", "a", "w"),
        (1, 3, "U", "a", "y"),
        (2, 1, "U", "a", "x"),
        (2, 3, "U", "a", "y"),
    )
    old = now(bed)
    bed.apply((1, 5, "U", "a", "z"))
    forget(bed.spark, bed.path, old, alone)
    assert (1, 2, "upsert") not in remembered(bed)
    assert forget(bed.spark, bed.path, old, alone) == 0
    bed.apply((2, 5, "U", "a", "z"))
    bed.apply((1, 4, "U", "b", "q"), (2, 4, "U", "b", "q"))
    comes_to = [("a", "y", 1, 4), ("b", "q", 4, 5), ("a", "z", 5, None)]
    assert (shown(bed, 1), shown(bed, 2)) == (comes_to, comes_to)


@pytest.mark.long
def test_nothing_is_kept_of_a_key_whose_newest_old_change_is_a_delete(bed: CdcBed) -> None:
    bed.apply((1, 1, "U", "a", "x"), (1, 2, "U", "a", "y"), (1, 3, "D", None, None))
    forget(bed.spark, bed.path, now(bed), alone)
    assert remembered(bed) == []
    bed.apply((1, 5, "U", "c", "z"))
    bed.apply((1, 4, "U", "b", "q"))
    assert shown(bed, 1) == [("a", "y", 1, 3), ("b", "q", 4, 5), ("c", "z", 5, None)]


@pytest.mark.long
def test_each_value_that_a_late_change_lacks_is_still_known(spark: SparkSession, tmp_path: Path) -> None:
    bed = CdcBed(spark, tmp_path, IGNORING).prepare()
    bed.apply(
        (1, 1, "U", "a", "x"),
        (1, 2, "U", "b", None),
        (1, 3, "U", "b", None),
        (2, 1, "U", "a", None),
        (2, 2, "U", "a", None),
    )
    old = now(bed)
    bed.apply((1, 5, "U", None, "z"), (2, 5, "U", None, "z"))
    forget(bed.spark, bed.path, old, alone)
    bed.apply((1, 4, "U", "c", None), (2, 4, "U", "c", None))
    assert shown(bed, 1) == [("a", "x", 1, 2), ("b", "x", 2, 4), ("c", "z", 4, None)]
    assert shown(bed, 2) == [("a", None, 1, 4), ("c", "z", 4, None)]


@dataclass(frozen=True)
class CleanUp:
    """A clean-up of one table that has one delete to forget, which it learned of before ``before``."""

    table: CdcBed
    work: Work

    @property
    def lock(self) -> str | None:
        return recovery_lock.holder(self.work.book.storage, "customers", "customers")


@pytest.fixture
def clean_up(spark: SparkSession, tmp_path: Path) -> CleanUp:
    settings = quick_settings(tmp_path)
    Path(settings.pipelines).mkdir()
    table = CdcBed(spark, Path(settings.table_path("customers")).parent).prepare()
    table.apply((1, 1, "U", "a", "x"), (1, 2, "D", None, None))
    forgets = planned.Forgetting("customers", now(table).isoformat())
    plan = Plan(
        "clean_up",
        "c1",
        "customers",
        (),
        {"tombstone_days": 30.0},
        (),
        (),
        "",
        details=asdict(planned.CleanUp((), (), (forgets,))),
    )
    return CleanUp(
        table,
        Work(settings, plan, ledger.open(open_storage(settings.state), "customers", "c1"), "forget_deletes"),
    )


@pytest.mark.long
@pytest.mark.parametrize("begins", ["before the lock", "while it is waited for"])
def test_a_recovery_that_began_since_the_plan_has_the_tombstones_to_itself(
    clean_up: CleanUp, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    def begin() -> None:
        recovery_lock.take(clean_up.work.book.storage, "customers", "customers", "r1")

    @contextmanager
    def late_turn() -> Iterator[None]:
        begin()
        yield

    if begins == "before the lock":
        begin()
    else:
        monkeypatch.setattr(forgetting, "write_lock_on", lambda *_: late_turn)
    found = forgetting.act(clean_up.table.spark, clean_up.work)
    assert found == {"forgotten": {}, "left": {"customers": "the recovery r1 has locked it"}}
    assert remembered(clean_up.table) == [(1, 2, "delete")]
    assert clean_up.lock == "r1"


@pytest.mark.long
def test_no_recovery_begins_while_a_table_forgets(clean_up: CleanUp, monkeypatch: pytest.MonkeyPatch) -> None:
    holders: list[str | None] = []

    def watched(*arguments: Any) -> int:
        holders.append(clean_up.lock)
        return forget(*arguments)

    monkeypatch.setattr(forgetting, "forget", watched)
    assert forgetting.act(clean_up.table.spark, clean_up.work) == {"forgotten": {"customers": 1}, "left": {}}
    assert (holders, clean_up.lock) == (["c1"], None)
    assert remembered(clean_up.table) == []


class Earlier(datetime):
    """A clock of forty days ago."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Earlier:
        return super().now(tz) - timedelta(days=40)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> CustomersBed:
    """A customer was deleted forty days ago; an older change of it comes later than its deletion, and is not
    there yet.
    """
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    bed.take_snapshot(3)
    bed.change(upsert(1, 1), delete(1, 10), upsert(2, 2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remembered_changes, "datetime", Earlier)
        assert bed.run(SNAPSHOT) is Outcome.DONE
        assert bed.run() is Outcome.STOPPED
    return bed


def it_stood_still(bed: CustomersBed, at_work: Recoverer) -> None:
    home = bed.home()
    for commit in Path(home.storage.path(f"{home.checkpoint(1, 1)}/commits")).iterdir():
        os.utime(commit, (time.time() - 39 * 86400, time.time() - 39 * 86400))


def it_goes_back_with_its_table(bed: CustomersBed, at_work: Recoverer) -> None:
    at_work.backup("b1", "customers.customers")
    bed.change(upsert(2, 4))
    assert bed.run() is Outcome.STOPPED
    at_work.run("restore_table", "r1", table="customers.customers", backup="b1")
    assert bed.run() is Outcome.STOPPED


@pytest.mark.parametrize("moved", long_after(1, [it_stood_still, it_goes_back_with_its_table]))
def test_a_deleted_row_does_not_come_back_where_a_flow_reads_what_came_within_the_retention(
    shop: CustomersBed, moved: Callable[[CustomersBed, Recoverer], None]
) -> None:
    at_work = Recoverer.of(shop.of())
    moved(shop, at_work)
    at_work.run("clean_up", "c1", pipeline="customers")
    shop.change(upsert(1, 9))
    assert shop.run() is Outcome.STOPPED
    shop.is_exact()


def test_files_that_no_version_names_go_once_no_batch_can_still_name_them(
    clean_up: CleanUp, spark: SparkSession
) -> None:
    folder = Path(clean_up.table.path) / "_streamkeeper" / "remembered"
    named = {run.name for run in folder.iterdir()}
    assert named, "the delete is remembered in files"
    for name, age in (("old", 2 * forgetting.STRAY_SECONDS), ("young", 60.0)):
        file = folder / name / "part.parquet"
        file.parent.mkdir()
        file.write_bytes(b"")
        os.utime(file, (time.time() - age, time.time() - age))
    forgetting._remove_strays(spark, clean_up.table.path)
    assert {run.name for run in folder.iterdir()} == {*named, "young"}
