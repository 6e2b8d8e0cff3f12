"""Flows that read a Delta table: exact from table to table, and reset to exactly where they were decided to
start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamkeeper_jobs.trial.try_flow import try_flow

from streamkeeper.delta.history import offset_before, require_history
from streamkeeper.delta.log import latest_version
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import EMPTY, OFFSETS, TIMESTAMP, StartAt
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import DUPLICATES
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper.watch.batch_numbers import recent
from tests.oracle import all_rows, counted
from tests.worlds.flow_world import NAME, event
from tests.worlds.sources.source_world import DEDUPE, FILES, UNION, DeltaBed
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

Make = Callable[..., DeltaBed]


def run(delta: DeltaBed) -> None:
    assert delta.bed.run() is Outcome.STOPPED


def test_every_row_is_written_once_over_several_batches_and_starts(delta: Make) -> None:
    flow = delta()
    flow.arrive(*range(1, 8), files=3)
    run(flow)
    flow.arrive(8, 9, files=2)
    flow.arrive(10)
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
    checkpoint = flow.bed.checkpoint(1)
    offset = checkpoint.offsets(checkpoint.offset_batches()[-1]).sources["raw"]
    history = require_history(flow.path, "raw")
    assert offset == offset_before(history.table_id or "", 3), "the shape that a new checkpoint is given"


@pytest.mark.long
def test_the_table_may_come_later_than_the_flow(delta: Make) -> None:
    flow = delta()
    run(flow)
    flow.arrive(1)
    run(flow)
    flow.bed.holds([event(1)])


@pytest.mark.parametrize("arrived", long_after(1, [0, 2]), ids=["caught up", "behind"])
def test_after_the_last_processed_loses_nothing_and_repeats_nothing(delta: Make, arrived: int) -> None:
    flow = delta()
    flow.arrive(*range(1, 5), files=2)
    run(flow)
    flow.arrive(5, 6)
    run(flow)
    for number in range(arrived):
        flow.arrive(10 + number)
    flow.declare(view='.where("n > 0")')
    flow.bed.reset()
    run(flow)
    flow.arrive(7)
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))


@pytest.mark.long
def test_a_batch_that_only_the_sink_has_counts_as_processed_within_a_version_too(delta: Make) -> None:
    """Four files of one commit come in four batches; the checkpoint loses its last commit but one, as by a
    kill between the two commits.
    """
    flow = delta()
    flow.arrive(1)
    run(flow)
    flow.arrive(*range(2, 10), files=4)
    run(flow)
    checkpoint = flow.bed.checkpoint(1)
    for number in (number for number in checkpoint.commit_batches() if number > 2):
        for name in (
            f"commits/{number}",
            f"commits/.{number}.crc",
            f"offsets/{number}",
            f"offsets/.{number}.crc",
        ):
            Path(checkpoint.path(name)).unlink()
    offset = checkpoint.offsets(2).sources["raw"]
    assert offset["index"] >= 0, "it stands within a version"
    kept = flow.bed.table / "_delta_log"
    for version in range(
        3, (latest_version(str(flow.bed.table)) or 0) + 1
    ):  # the table gets back to batch 2 as well
        (kept / f"{version:020d}.json").unlink()
        (kept / f".{version:020d}.json.crc").unlink(missing_ok=True)
        (kept / f"{version:020d}.crc").unlink(missing_ok=True)
    flow.bed.forget_commit()
    flow.bed.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    flow.bed.reset()
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
    assert flow.bed.start(2).evidence["ruled_by"] == "sink"


@pytest.mark.long
def test_a_timestamp_reads_the_versions_committed_at_it_or_later(delta: Make) -> None:
    flow = delta()
    for number in (1, 2, 3):
        flow.arrive(number)
    run(flow)
    moment = int((flow.log / f"{1:020d}.json").stat().st_mtime * 1000)
    flow.bed.reset(StartAt(TIMESTAMP, timestamp_ms=moment))
    run(flow)
    flow.bed.holds([*flow.bed.events, event(2), event(3)])


def test_an_initial_snapshot_that_was_read_half_goes_on_there(delta: Make) -> None:
    """The first start reads the table as it is, one file a batch; its checkpoint is put back to the middle of
    that.
    """
    flow = delta()
    flow.arrive(*range(1, 9), files=4)
    flow.declare(view='.where("n > 0")', options='"maxFilesPerTrigger": 2')
    run(flow)
    checkpoint = flow.bed.checkpoint(1)
    first = checkpoint.offsets(0).sources["raw"]
    assert first["isStartingVersion"] is True
    flow.bed.reset(StartAt(OFFSETS, offsets={"raw": first}))
    run(flow)
    times = counted(flow.bed.rows(), ["n"])
    again = [number for (number,), count in times.items() if count == 2]
    assert len(again) == 4, "two of the four files, of two rows each, were still to come"
    flow.bed.holds([*flow.bed.events, *map(event, again)])


@pytest.mark.long
def test_a_table_that_was_made_anew_parks_the_flow_until_the_loss_is_accepted(delta: Make) -> None:
    flow = delta()
    flow.arrive(1, 2)
    run(flow)
    shutil.rmtree(flow.path)
    for number in (11, 12, 13):
        flow.arrive(number)
    assert flow.bed.run() is Outcome.PARKED
    assert "the table was recreated: its id was" in flow.bed.park().details["message"]
    assert flow.bed.park().details["recovery"] == "reset_checkpoint"
    flow.bed.reset(accepted=("data-loss",))
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))


def test_files_that_vacuum_took_unread_park_the_flow(delta: Make) -> None:
    flow = delta()
    flow.arrive(1)
    run(flow)
    flow.arrive(2)
    flow.arrive(3)
    flow.sql("OPTIMIZE {table}")
    flow.bed.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        flow.sql("VACUUM {table} RETAIN 0 HOURS")
    finally:
        flow.bed.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert flow.bed.run() is Outcome.PARKED
    assert (
        "files of versions from 1 on were removed, as by VACUUM, before they were read"
        in flow.bed.park().details["message"]
    )


@pytest.mark.long
def test_a_change_data_feed_gives_each_change_once_across_a_reset(delta: Make) -> None:
    shape = '.selectExpr("concat(event_id, _change_type) AS event_id", "user_id", "n")'
    flow = delta(options='"readChangeFeed": True', view=shape)
    flow.bed.spark.sql(
        f"CREATE TABLE delta.`{flow.path}` (event_id STRING, user_id INT, n INT, event_time TIMESTAMP) USING"
        " delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    flow.arrive(1, 2)
    run(flow)
    flow.sql("UPDATE {table} SET user_id = 100 WHERE n = 1")
    run(flow)
    flow.declare(options='"readChangeFeed": True', view=shape + '.where("n > 0")')
    flow.bed.reset()
    flow.sql("DELETE FROM {table} WHERE n = 2")
    run(flow)
    assert sorted(row["event_id"] for row in flow.bed.rows()) == sorted(
        ["e1insert", "e2insert", "e1update_preimage", "e1update_postimage", "e2delete"]
    )


def test_what_is_skipped_is_counted_and_told_and_comes_by_a_backfill_of_its_versions(delta: Make) -> None:
    """A day is replaced: its two rows are written again, and a new one with them."""
    flow = delta(options='"skipChangeCommits": True')
    flow.arrive(1, 2)
    run(flow)
    rows = ", ".join(f"('e{n}', {n}, {n}, timestamp'2026-01-01T00:00:0{n}Z')" for n in (1, 2, 3))
    flow.sql(f"INSERT INTO {{table}} REPLACE WHERE n < 4 VALUES {rows}")
    flow.arrive(4)
    run(flow)
    noted = events.read(flow.bed.home.storage, "events")
    found = [one.text for one in noted if one.kind == Kind.SKIPPED]
    said = "1 commit (version 1) that changed or deleted rows, with at most 3 rows added or changed in them"
    assert len(found) == 1 and said in found[0]
    assert "from_version 1 and to_version 1" in found[0]
    last = recent(flow.bed.home)[-1]
    assert (last.skipped_commits, last.skipped_rows) == (1, 3)
    flow.bed.holds([event(1), event(2), event(4)])
    asked = {"flow": NAME, "from_version": 0, "to_version": 2, "accept": [DUPLICATES]}
    Recoverer.of(flow.bed).run("backfill", "r1", **asked)
    flow.bed.holds([event(number) for number in (1, 2, 3, 4)])


OVER_A_RENAMING = (
    '.withColumnRenamed("n", "number").select("event_id", "user_id", F.col("number").alias("n"))'
)


def ready(change: str) -> str:
    return f'"maxFilesPerTrigger": 1, "allowSourceColumn{change}": "always"'


def mapped(delta: Make, **text: str) -> DeltaBed:
    """A flow that follows the schemas of a table whose columns can be renamed, and has read a row of it."""
    flow = delta(parameters="track_schema=True, ", **text)
    flow.map_columns()
    flow.arrive(1)
    run(flow)
    return flow


def verdict_on(flow: DeltaBed) -> Verdict:
    bed, folder = flow.bed, flow.bed.root / "tried"
    folder.mkdir(exist_ok=True)
    return try_flow(bed.spark, bed.settings, bed.home, bed.flow(), open_storage(str(folder)))


def add_e2(flow: DeltaBed, values: str) -> None:
    flow.sql(f"INSERT INTO {{table}} VALUES ('e2', 2, {values}timestamp'2026-01-01T00:00:02Z')")


def run_over_the_change(flow: DeltaBed) -> None:
    said = [flow.bed.run()]
    while said[-1] is Outcome.RESTART and len(said) < 4:
        said.append(flow.bed.run())
    assert said[-1] is Outcome.STOPPED, said


def test_one_declaration_goes_over_a_renamed_column_of_a_source_whose_schemas_are_tracked(
    delta: Make,
) -> None:
    flow = mapped(delta, view='.select("event_id", "user_id", "n")')
    flow.sql("ALTER TABLE {table} RENAME COLUMN n TO number")
    add_e2(flow, "2, ")
    flow.declare(
        parameters="track_schema=True, ",
        view='.select("event_id", "user_id", F.col("number").alias("n"))',
        options=ready("Rename"),
    )
    assert verdict_on(flow).compatibility is Compatibility.INCOMPATIBLE
    assert flow.bed.run() is Outcome.PARKED
    park = flow.bed.park().details
    assert "raw has the columns that its table had where the flow reads (track_schema)" in park["meaning"]
    assert "[`n`, `user_id`" in park["message"]
    flow.declare(parameters="track_schema=True, ", view=OVER_A_RENAMING, options=ready("Rename"))
    assert verdict_on(flow).compatibility is Compatibility.RESULTS_DIFFER
    run_over_the_change(flow)
    flow.bed.holds([event(1), event(2)], ["event_id", "user_id", "n"])
    assert verdict_on(flow).compatibility is Compatibility.COMPATIBLE


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "statement", "values", "columns"),
    [
        ("Drop", "DROP COLUMN n", "", ["event_id", "user_id"]),
        ("TypeChange", "ALTER COLUMN n TYPE BIGINT", "2, ", ["event_id", "user_id"]),
        ("", "ADD COLUMN more STRING AFTER n", "2, 'x', ", ["event_id", "user_id"]),
    ],
    ids=["drop", "widening", "addition"],
)
def test_a_source_whose_schemas_are_tracked_says_that_the_flow_is_ready_and_goes_on(
    delta: Make, change: str, statement: str, values: str, columns: list[str]
) -> None:
    view = '.select("event_id", "user_id")'
    flow = mapped(delta, view=view)
    flow.sql(f"ALTER TABLE {{table}} {statement}")
    add_e2(flow, values)
    if change:
        assert [flow.bed.run() for _ in range(2)] == [Outcome.RESTART, Outcome.PARKED]
        assert f"allowSourceColumn{change}" in flow.bed.park().details["meaning"]
        flow.declare(parameters="track_schema=True, ", view=view, options=ready(change))
        assert verdict_on(flow).compatibility is Compatibility.RESULTS_DIFFER
    run_over_the_change(flow)
    flow.bed.holds([event(1), event(2)], columns)


@pytest.mark.parametrize(
    ("start", "expected"),
    long_after(
        1, [("latest", [4]), ("version:1", [2, 3, 4]), ("timestamp:2026-01-01T00:00:00Z", [1, 2, 3, 4])]
    ),
    ids=["latest", "a version", "a moment before all"],
)
def test_the_first_generation_starts_where_its_source_says(
    delta: Make, start: str, expected: list[int]
) -> None:
    flow = delta()
    for number in (1, 2, 3):
        flow.arrive(number)
    flow.declare(parameters=f"start={start!r}, ")
    run(flow)
    flow.arrive(4)
    run(flow)
    flow.bed.holds([event(number) for number in expected])


@pytest.mark.parametrize("read", long_after(1, [True, False]), ids=["after a batch", "before any"])
def test_a_table_that_is_added_is_not_read_whole_but_starts_as_declared_by_a_reset(
    delta: Make, read: bool
) -> None:
    flow = delta(more=FILES, sources=("files",), inputs="files", flow="files")
    (flow.bed.root / "data" / "files").mkdir()
    if read:
        flow.bed.arrive(1, folder="files")
    run(flow)
    flow.arrive(2)
    flow.declare(parameters="start='latest', ", **UNION)
    assert flow.bed.run() is Outcome.PARKED
    assert "The source raw is new in" in flow.bed.park().details["message"]
    flow.bed.reset()
    run(flow)
    flow.arrive(3)
    run(flow)
    flow.bed.holds([event(number) for number in ((1, 3) if read else (3,))])


@pytest.mark.long
@pytest.mark.parametrize("read", [True, False], ids=["it had read", "it had read nothing"])
def test_what_lies_before_the_declared_start_is_no_state_of_a_later_generation_either(
    delta: Make, read: bool
) -> None:
    flow = delta()
    flow.arrive(1)
    flow.declare(parameters="start='latest', ")
    run(flow)
    if read:
        flow.arrive(2)
        run(flow)
    flow.declare(parameters="start='latest', ", view=DEDUPE)
    flow.bed.reset()
    flow.arrive(1, 2, 3)
    run(flow)
    flow.bed.holds([event(1), event(2), event(3)])


@pytest.mark.long
def test_what_a_reset_read_from_before_the_declared_start_is_state_of_a_later_generation(delta: Make) -> None:
    flow = delta()
    flow.arrive(1)
    flow.declare(parameters="start='latest', ", view=DEDUPE)
    run(flow)
    flow.bed.reset(StartAt(TIMESTAMP, timestamp_ms=0), EMPTY)
    run(flow)
    flow.bed.reset()
    flow.arrive(1, 2)
    run(flow)
    flow.bed.holds([event(1), event(2)])
