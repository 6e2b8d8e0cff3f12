"""OPTIMIZE and VACUUM of real tables: fewer files, the same rows, and the past that must stay."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from streamkeeper_jobs.recover import tidy_tables
from streamkeeper_jobs.sinks.write_lock import jvm_process

from streamkeeper.errors import RecoveryError
from streamkeeper.flows import ledger
from streamkeeper.flows.files import LockFiles
from streamkeeper.flows.leases import Process
from streamkeeper.recover.kinds.tidy_tables import TableTidy
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now
from streamkeeper.tables import recovery_lock, running_vacuums
from streamkeeper.tables.write_lock import Holder, WriteLock, read
from tests.worlds.suites import long_after


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment(
        {"STREAMKEEPER_STATE": str(tmp_path / "state"), "STREAMKEEPER_WAREHOUSE": str(tmp_path / "warehouse")}
    )


def tidy(spark: SparkSession, settings: Settings, *tidies: TableTidy) -> dict[str, Any]:
    """Carry out the step of a recovery that does this to the tables of one pipeline."""
    pipeline = tidies[0].pipeline
    details = {"tables": [asdict(item) for item in tidies]}
    plan = Plan("tidy_tables", "r0", pipeline, (), {}, (), ("tidy",), "then", details=details)
    book = ledger.open(open_storage(settings.state), pipeline, "r0")
    return tidy_tables.act(spark, Work(settings, plan, book, "tidy"))


def write_small_files(spark: SparkSession, path: str, files: int, **properties: str) -> None:
    for number in range(files):
        writer = spark.range(number * 10, number * 10 + 10).coalesce(1).write.format("delta").mode("append")
        writer.options(**properties).save(path)


def files_of(spark: SparkSession, path: str) -> int:
    return int(DeltaTable.forPath(spark, path).detail().collect()[0]["numFiles"])


def test_small_files_are_put_together_and_no_row_changes(spark: SparkSession, settings: Settings) -> None:
    path = settings.table_path("events")
    write_small_files(spark, path, 6)
    rows = sorted(row.id for row in spark.read.format("delta").load(path).collect())
    [found] = tidy(spark, settings, TableTidy("events", "events", False, 168.0))["tables"]
    assert files_of(spark, path) == 1
    assert sorted(row.id for row in spark.read.format("delta").load(path).collect()) == rows
    assert found == {"path": path, "files_added": 1, "files_removed": 6, "vacuumed": 168.0}
    [again] = tidy(spark, settings, TableTidy("events", "events", False, 168.0))["tables"]
    assert again == {"path": path, "files_added": 0, "files_removed": 0, "vacuumed": 168.0}
    assert len(list(Path(path).glob("*.parquet"))) == 7, "the old files are younger than the retention"


@pytest.mark.long
def test_the_tables_own_longer_retention_rules(spark: SparkSession, settings: Settings) -> None:
    path = settings.table_path("events")
    write_small_files(spark, path, 2)
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 30"
        " days')"
    )
    [found] = tidy(spark, settings, TableTidy("events", "events", False, 168.0))["tables"]
    assert found["vacuumed"] == 720.0


@pytest.mark.long
def test_a_table_that_fails_costs_no_other(spark: SparkSession, settings: Settings) -> None:
    broken, good = settings.table_path("broken"), settings.table_path("good")
    for path in (broken, good):
        write_small_files(spark, path, 2)
    (Path(broken) / "_delta_log" / f"{1:020d}.json").write_text("no commit\n")
    tidies = (TableTidy("p", Path(path).name, False, None) for path in (broken, good))
    with pytest.raises(RecoveryError, match=rf"(?s){broken} could not be tidied: .*The others \(1\) were"):
        tidy(spark, settings, *tidies)
    assert files_of(spark, good) == 1


@pytest.mark.long
def test_a_table_that_is_left_alone_is_not_touched(spark: SparkSession, settings: Settings) -> None:
    path = settings.table_path("events")
    write_small_files(spark, path, 2)
    left = TableTidy("events", "events", False, None, (), "a recovery works on it")
    assert tidy(spark, settings, left) == {"tables": [], "left": {"events": "a recovery works on it"}}
    assert files_of(spark, path) == 2


@pytest.mark.parametrize("begins", long_after(1, ["before", "between"]))
def test_a_recovery_that_began_since_the_plan_has_the_table_to_itself(
    spark: SparkSession,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    begins: str,
) -> None:
    path = settings.table_path("events")
    write_small_files(spark, path, 3)
    real = tidy_tables._vacuum

    def begin(*arguments: Any) -> dict[str, Any]:
        recovery_lock.take(open_storage(settings.state), "events", "events", "r1")
        return real(*arguments)

    if begins == "before":
        recovery_lock.take(open_storage(settings.state), "events", "events", "r1")
    else:
        monkeypatch.setattr(tidy_tables, "_vacuum", begin)
    [found] = tidy(spark, settings, TableTidy("events", "events", False, 168.0))["tables"]
    if begins == "before":
        assert found == {"path": path, "left_alone": "the recovery r1 has locked it"}
        assert files_of(spark, path) == 3
    else:
        assert (found["files_added"], found["vacuumed"], found["why"]) == (
            1,
            None,
            "the recovery r1 has locked it",
        )
    done = {row.operation for row in DeltaTable.forPath(spark, path).history().select("operation").collect()}
    assert done == ({"WRITE"} if begins == "before" else {"WRITE", "OPTIMIZE"})


def test_compaction_waits_for_its_turn_and_gives_it_back(spark: SparkSession, settings: Settings) -> None:
    path = settings.table_path("customers")
    write_small_files(spark, path, 3)
    locks = LockFiles(open_storage(settings.state), "customers", "customers")
    flow = Holder("apply", 1, 1, "query", Process.current(), jvm_process(spark), now())
    writer = WriteLock(locks, flow, 60.0, check=lambda: None, shut_out=lambda holder: None, wait=time.sleep)
    keyed = TableTidy("customers", "customers", True, None)
    done: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: done.append(tidy(spark, settings, keyed)))
    with writer():
        waiting.start()
        waiting.join(3)
        assert waiting.is_alive(), "it waits while a batch is under way"
        assert files_of(spark, path) == 3
    waiting.join(120)
    assert [found["path"] for found in done[0]["tables"]] == [path]
    assert files_of(spark, path) == 1
    last = locks.numbers()[-1]
    assert read(locks, last) is None, "the lock was released"


@pytest.mark.long
def test_compaction_shuts_no_flow_out(spark: SparkSession, settings: Settings) -> None:
    """A holder elsewhere that is silent cannot be proven gone: the flows deal with it, by fencing; tidying
    leaves the table.
    """
    path = settings.table_path("customers")
    write_small_files(spark, path, 2)
    locks = LockFiles(open_storage(settings.state), "customers", "customers")
    elsewhere = replace(Process.current(), host="elsewhere", boot_id="another")
    flow = Holder("apply", 1, 1, "query", elsewhere, None, now())
    other = WriteLock(locks, flow, 60.0, check=lambda: None, shut_out=lambda holder: None, wait=time.sleep)
    with other():
        short = replace(settings, lease_term=0.5, heartbeat_interval=0.1)
        with pytest.raises(RecoveryError, match="may still run"):
            tidy(spark, short, TableTidy("customers", "customers", True, None))
    assert files_of(spark, path) == 2


@pytest.mark.long
def test_a_table_that_declares_optimized_writes_gets_few_files_a_batch(
    spark: SparkSession, settings: Settings
) -> None:
    """Pinned, since docs/how-to/optimize-tables.md leans on it: open Delta honours the property, with one
    more shuffle before each write.
    """
    counts = {}
    for name, optimized in (("plain", "false"), ("optimized", "true")):
        path = settings.table_path(name)
        builder = (
            DeltaTable.create(spark)
            .location(path)
            .addColumn("id", "BIGINT")
            .property("delta.autoOptimize.optimizeWrite", optimized)
        )
        builder.execute()
        spark.range(0, 80, 1, 8).write.format("delta").mode("append").save(path)
        counts[name] = files_of(spark, path)
    assert counts == {"plain": 8, "optimized": 1}


def test_a_vacuum_is_noted_while_it_is_under_way(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = settings.table_path("events"), open_storage(settings.state)
    write_small_files(spark, path, 2)
    real, seen = DeltaTable.vacuum, list[str | None]()

    def vacuum(table: DeltaTable, hours: float) -> Any:
        seen.append(running_vacuums.under_way(state, "events", "events"))
        return real(table, hours)

    monkeypatch.setattr(DeltaTable, "vacuum", vacuum)
    tidy(spark, settings, TableTidy("events", "events", False, 168.0))
    assert [found is not None for found in seen] == [True]
    assert running_vacuums.under_way(state, "events", "events") is None
