"""Putting real tables back while others are about: strangers' commits, late batches, OPTIMIZE and VACUUM in
between, and what Delta refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from streamkeeper_jobs.recover import restore_table
from streamkeeper_jobs.spark.delta_snapshot import read_snapshot

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.recover import engine
from streamkeeper.tables import past_versions
from tests.oracle import all_rows
from tests.worlds.drivers import run_late
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

TABLE = "events.events"
STATELESS = pipeline(view="", files=1)


@pytest.fixture
def bed(make_bed: Callable[..., Flowbed]) -> Flowbed:
    """A flow that has done three batches of one event each."""
    made = make_bed(STATELESS)
    for number in (1, 2, 3):
        made.arrive(number)
    assert made.run() is Outcome.STOPPED
    return made


def to_the_end(bed: Flowbed, at_work: Recoverer) -> None:
    """Carry the recovery ``r1`` out, let the flow run on, and see that the table holds every row once."""
    at_work.until("r1", "release")
    bed.arrive(9)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))


def ids(frame_of: Flowbed) -> list[str]:
    return sorted(row["event_id"] for row in frame_of.rows())


# Who writes meanwhile


@pytest.mark.parametrize("batch", long_after(1, ["1", "2"]), ids=["something is undone", "nothing is"])
def test_a_late_batch_of_the_flow_that_goes_back_is_in_the_table_once(
    bed: Flowbed, at_work: Recoverer, batch: str
) -> None:
    at_work.plan("rewind", "r1", flow=NAME, batch=batch, target="restored")
    at_work.until("r1", "plan_again")
    bed.arrive(4)
    run_late(bed)
    assert ids(bed) == ["e1", "e2", "e3", "e4"]
    to_the_end(bed, at_work)


@pytest.mark.parametrize("recovery", long_after(1, ["rewind", "restore_table"]))
def test_what_a_stranger_writes_while_it_is_put_back_stays(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, recovery: str
) -> None:
    at_work.backup("b1", TABLE)
    asked = (
        {"flow": NAME, "batch": "1", "target": "restored"}
        if recovery == "rewind"
        else {"table": TABLE, "backup": "b1"}
    )
    at_work.plan(recovery, "r1", **asked)
    at_work.until("r1", "decide")
    DeltaTable.forPath(spark, str(bed.table)).delete("event_id = 'e1'")
    version = delta_log.latest_version(str(bed.table))
    with pytest.raises(RecoveryError, match=rf"version {version} \(DELETE\)\. .* It was not restored."):
        at_work.step("r1", "put_back")
    assert (ids(bed), delta_log.latest_version(str(bed.table))) == (["e2", "e3"], version)


@pytest.mark.long
def test_what_a_compaction_leaves_behind_is_not_beside_what_is_put_back(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.backup("b1", TABLE)
    for number in (4, 5):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    at_work.plan("restore_table", "r1", table=TABLE, backup="b1")
    at_work.until("r1", "decide")
    real = restore_table._changed_files

    def compacted_meanwhile(*snapshots: Any) -> Iterator[dict[str, Any]]:
        DeltaTable.forPath(spark, str(bed.table)).optimize().executeCompaction()
        return real(*snapshots)

    with monkeypatch.context() as patched:
        patched.setattr(restore_table, "_changed_files", compacted_meanwhile)
        with pytest.raises(RecoveryError, match="Delta refused to replace"):
            at_work.step("r1", "put_back")
    assert ids(bed) == ["e1", "e2", "e3", "e4", "e5"]
    to_the_end(bed, at_work)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before the commit", "after it"])
def test_files_of_a_backup_that_a_vacuum_takes_meanwhile_are_brought_again(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    at_work.backup("b1", TABLE)
    kept = list(bed.table.glob("*.parquet"))
    DeltaTable.forPath(spark, str(bed.table)).delete()
    at_work.plan("restore_table", "r1", table=TABLE, backup="b1")
    at_work.until("r1", "decide")
    copied = engine.evidence_of(bed.settings, "events", "r1", "copy_back")
    assert copied is not None and copied["skipped"] == len(kept), "they lay there, unnamed and old"
    real = restore_table.replace_table

    def vacuumed(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        for file in kept:
            file.unlink()
        return found

    with monkeypatch.context() as patched:
        if when == "after it":
            patched.setattr(restore_table, "replace_table", vacuumed)
        else:
            for file in kept:
                file.unlink()
        at_work.step("r1", "put_back")
    assert all(file.exists() for file in kept)
    to_the_end(bed, at_work)


@pytest.mark.long
def test_a_file_that_a_vacuum_under_way_took_after_a_rewind_brought_it_back_keeps_the_flows_held(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession
) -> None:
    DeltaTable.forPath(spark, str(bed.table)).optimize().executeCompaction()
    at_work.plan("rewind", "r1", flow=NAME, batch="1", target="restored")
    at_work.until("r1", "put_back")
    version = delta_log.latest_version(str(bed.table))
    assert version is not None
    brought = past_versions.files_brought_back(str(bed.table), version)
    assert len(brought) == 2, (
        "the files of two batches, which the compaction had put together with those of the third"
    )
    taken = bed.table / brought[0]
    aside = taken.rename(bed.root / "aside.parquet")
    with pytest.raises(
        RecoveryError, match=rf"1 of the 2 files that this brought back are missing, such as {brought[0]}"
    ):
        at_work.step("r1", "verify_files")
    assert bed.home.owners() == ["recovery-r1"]
    aside.rename(taken)
    assert at_work.step("r1", "verify_files") == {
        "tables": {str(bed.table): {"version": version, "files": 2}}
    }
    to_the_end(bed, at_work)


# What Delta refuses


def takes_appends_only(spark: SparkSession, table: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")


def maps_no_columns_any_more(spark: SparkSession, table: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('delta.columnMapping.mode')")


@pytest.mark.long
@pytest.mark.parametrize("alter", [takes_appends_only, maps_no_columns_any_more])
def test_what_delta_refuses_is_refused_before_a_generation_is_decided_and_a_version_is_put_back_all_the_same(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, alter: Callable[[SparkSession, str], None]
) -> None:
    table = str(bed.table)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    entry = at_work.backup("b1", TABLE)
    bed.arrive(4)
    assert bed.run() is Outcome.STOPPED
    alter(spark, table)
    version = delta_log.latest_version(table)
    assert version is not None
    with pytest.raises(RecoveryError, match="Delta refused to replace"):
        restore_table.replace_content(spark, table, read_snapshot(spark, entry["copy"]["path"]), "a test")
    with pytest.raises(RequestError, match="Nothing was changed"):
        at_work.plan("restore_table", "r0", table=TABLE, backup="b1")
    for summary in (bed.table / "_delta_log").glob("*.crc"):
        summary.unlink()
    at_work.plan("restore_table", "r1", table=TABLE, backup="b1")
    with pytest.raises(RequestError, match="Nothing was changed"):
        at_work.until("r1", "decide")
    newest = generations.latest(bed.home)
    assert newest is not None and (newest.number, delta_log.latest_version(table)) == (1, version)
    assert engine.give_up(bed.settings, "events", "r1", "Delta would refuse it")
    at_work.plan("restore_table", "r2", table=TABLE, version=1)
    at_work.until("r2", "release")
    assert ids(bed) == ["e1", "e2"]
