"""AUTO CDC that follows a Delta table's change feed: its table is as the table that it reads, whatever the
commits did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.spark.session import with_settings

from streamkeeper.exit_codes import Outcome
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.watch import batch_numbers
from tests.worlds.flow_world import NAME
from tests.worlds.sources.source_world import DeltaBed
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

FEED, FILE_BY_FILE = '"readChangeFeed": True', ', "maxFilesPerTrigger": 1'
FLOW = """
dp.create_auto_cdc_flow(name="clean_events", target="events", source="parsed", keys=["id"], change_feed=True,
    stored_as_scd_type={scd}{more}, trigger="200 milliseconds")
"""
STATEMENTS: dict[str, tuple[str, ...]] = {
    "overwritten": ("INSERT OVERWRITE {table} SELECT id, n + 1, t FROM {table}",),
    "updated": ("UPDATE {table} SET n = n + 10 WHERE id < 3",),
    "deleted, inserted later": ("DELETE FROM {table} WHERE id = 2", "INSERT INTO {table} VALUES (2, 5, 'y')"),
    "deleted and inserted by one merge": (
        "MERGE INTO {table} AS a USING (SELECT id, id AS twin FROM {table} UNION ALL SELECT id, -1 FROM"
        " {table}) AS b ON a.id = b.twin WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, n, t)"
        " VALUES (b.id, 7, 'merged')",
    ),
    "given other keys": ("UPDATE {table} SET id = id + 2",),
    "taken out of the view": ("UPDATE {table} SET t = 'hidden' WHERE id = 1",),
    "restored": ("DELETE FROM {table}", "RESTORE TABLE {table} TO VERSION AS OF 1"),
}


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., DeltaBed]]:
    """Make a table of three rows with a change feed, and a flow that applies it."""

    def make(scd: int, more: str = "", limit: str = "") -> DeltaBed:
        flow = DeltaBed.make(tmp_path, spark, options=FEED + limit, view=".where(\"t <> 'hidden'\")")
        declared = flow.bed.file.read_text()
        flow.bed.declare(declared[: declared.index("@dp.append_flow")] + FLOW.format(scd=scd, more=more))
        flow.sql(
            "CREATE TABLE {table} (id INT, n INT, t STRING) USING delta TBLPROPERTIES"
            " ('delta.enableChangeDataFeed' = 'true')"
        )
        flow.sql("INSERT INTO {table} VALUES (1, 1, 'x'), (2, 2, 'x'), (3, 3, 'x')")
        return flow

    yield make


def is_followed(flow: DeltaBed) -> list[dict[str, Any]]:
    """Run the flow, and compare its table with the one that it reads; return its rows."""
    assert flow.bed.run() is Outcome.STOPPED
    shown = flow.bed.spark.read.format("delta").load(flow.path).where("t <> 'hidden'")
    rows = flow.bed.rows()
    present = [row for row in rows if row.get("__END_AT") is None]
    assert sorted((row["id"], row["n"], row["t"]) for row in present) == sorted(map(tuple, shown.collect()))
    return rows


@pytest.mark.parametrize(
    ("scd", "limit"),
    long_after(1, [(1, ""), (1, FILE_BY_FILE), (2, ""), (2, FILE_BY_FILE)]),
    ids=["type 1", "type 1, file by file", "type 2", "type 2, file by file"],
)
def test_a_table_by_change_feed_is_as_its_source_whatever_the_commits_did(
    scd: int, limit: str, follow: Callable[..., DeltaBed]
) -> None:
    flow = follow(scd, limit=limit)
    is_followed(flow)
    for statement in chain.from_iterable(STATEMENTS.values()):
        flow.sql(statement)
        if limit:
            is_followed(flow)
    rows = is_followed(flow)
    assert not {"_change_type", "_commit_version", "_commit_timestamp"} & rows[0].keys()


@pytest.mark.long
def test_the_history_by_a_change_feed_names_the_commits_that_made_it(follow: Callable[..., DeltaBed]) -> None:
    flow = follow(2, ', track_history_except_column_list=["t"]')
    is_followed(flow)
    flow.sql("INSERT OVERWRITE {table} SELECT id, n + 1, t FROM {table} WHERE id < 3")
    flow.sql("UPDATE {table} SET t = 'y' WHERE id = 1")
    flow.sql("UPDATE {table} SET n = 9 WHERE id = 2")
    rows = is_followed(flow)
    history = [
        (row["id"], row["n"], row["t"], tuple(row["__START_AT"]), row["__END_AT"] and tuple(row["__END_AT"]))
        for row in rows
    ]
    assert sorted(history) == [
        (1, 1, "x", (1, "insert"), (2, "delete")),
        (1, 2, "y", (2, "insert"), None),
        (2, 2, "x", (1, "insert"), (2, "delete")),
        (2, 3, "x", (2, "insert"), (4, "update_postimage")),
        (2, 9, "x", (4, "update_postimage"), None),
        (3, 3, "x", (1, "insert"), (2, "delete")),
    ]


@pytest.mark.long
def test_files_of_a_feed_that_vacuum_took_unread_park_the_flow_and_a_refresh_brings_it_back(
    follow: Callable[..., DeltaBed],
) -> None:
    flow = follow(1)
    is_followed(flow)
    flow.sql("UPDATE {table} SET n = 9 WHERE id = 1")
    flow.sql("INSERT INTO {table} VALUES (4, 4, 'x')")
    with with_settings(flow.bed.spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        flow.sql("VACUUM {table} RETAIN 0 HOURS")
    at_work = Recoverer.of(flow.bed)
    assert at_work.impacts("reset_checkpoint", flow=NAME) == [None], "the plan knows it before the flow does"
    assert flow.bed.run() is Outcome.PARKED
    assert "files of versions from 2 on were removed, as by VACUUM" in flow.bed.park().reason
    impacts = at_work.impacts("full_refresh", table="events.events")
    at_work.run("full_refresh", "r1", table="events.events", accept=impacts)
    is_followed(flow)


def test_rows_that_are_lost_for_a_sequence_that_ranks_nothing_are_told(
    follow: Callable[..., DeltaBed],
) -> None:
    flow = follow(1)
    ranked = 'sequence_by=["_commit_version", "rank"], apply_as_deletes="_change_type = \'delete\'"'
    declared = flow.bed.file.read_text().replace("change_feed=True", ranked)
    flow.bed.declare(declared.replace("hidden'\")", 'hidden\'").withColumn("rank", F.lit(1))'))
    assert flow.bed.run() is Outcome.STOPPED
    flow.sql("INSERT OVERWRITE {table} SELECT id, n + 1, t FROM {table}")
    assert flow.bed.run() is Outcome.STOPPED
    assert flow.bed.rows() == []
    [told] = [event for event in events.read(flow.bed.home.storage, "events") if event.kind == Kind.TIED]
    assert "3 upserts of batch 1 have the sequence of a delete of their key" in told.text
    assert [batch.ties for batch in batch_numbers.recent(flow.bed.home)][-1] == 3
