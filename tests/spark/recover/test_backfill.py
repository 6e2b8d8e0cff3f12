"""Backfills: rows that come again from elsewhere, through the flow's own views, while the flow runs on;
killed, and run again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.cdc.events import Ties
from streamkeeper_jobs.cdc.remembered import forget
from streamkeeper_jobs.cdc.table_schema import empty
from streamkeeper_jobs.driver import derived_flow
from streamkeeper_jobs.recover.backfill import Filling, fill
from streamkeeper_jobs.recover.predicate import check_predicate
from streamkeeper_jobs.sinks import auto_cdc

from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError, RequestError, StorageError, StreamkeeperError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.backfill_flow import BACKUP, FILES, HISTORY, name_of
from streamkeeper.flows.files import FlowHome
from streamkeeper.recover.moves.backfill_source import Backup
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.storage import open_storage
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import DEDUPE, NAME, SCHEMA, Flowbed, event, pipeline
from tests.worlds.pipelines import edited
from tests.worlds.sources.source_world import KafkaBed
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, PIPELINE, SNAPSHOT, CustomersBed, delete, upsert

FULL_NAME = f"customers.{INCREMENTAL}"
RECOVERY = "backfill-test-0badcafe"


@pytest.fixture
def customers(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    return CustomersBed.make(tmp_path, spark)


def filling(
    bed: CustomersBed, recovery: str = RECOVERY, backup: Backup | None = None, **asked: Any
) -> Filling:
    request = BackfillRequest(FULL_NAME, **{"source": "customers_cdc", **asked})
    return Filling(bed.settings, request, recovery, bed.flow().fingerprint, backup)


def aside(bed: CustomersBed, *files: list[dict[str, Any]]) -> str:
    """Write changes into another folder than the flow's own."""
    folder = bed.root / "archive"
    folder.mkdir(exist_ok=True)
    for number, events in enumerate(files):
        (folder / f"old-{number}.json").write_text("".join(json.dumps(item) + "\n" for item in events))
        bed.events += events
    return str(folder)


def test_changes_from_elsewhere_come_in_chunks_and_never_over_newer_rows(
    customers: CustomersBed, spark: SparkSession
) -> None:
    customers.change(upsert(1, 10), upsert(2, 10), delete(3, 10))
    assert customers.run() is Outcome.STOPPED
    folder = aside(
        customers, [upsert(1, 5), upsert(3, 5)], [upsert(4, 5), delete(2, 11)], [upsert(4, 7), upsert(5, 1)]
    )
    told: list[dict[str, int]] = []
    found = fill(spark, filling(customers, read=FILES, path=folder, chunk=1), told.append)
    assert (found.done, found.batch, found.missing) == (True, 2, None)
    assert told
    assert told[-1].keys() == {"batch", "rows"}
    customers.is_exact()
    before = delta_log.latest_version(customers.table)
    assert fill(spark, filling(customers, read=FILES, path=folder, chunk=1), told.append) == found, (
        "what is done is not done again"
    )
    assert delta_log.latest_version(customers.table) == before
    customers.change(upsert(5, 2), delete(4, 6))
    assert customers.run() is Outcome.STOPPED
    customers.is_exact()
    assert customers.home().generations() == [1], "the flow's own checkpoint is untouched"


@pytest.mark.long
def test_a_predicate_chooses_rows_of_the_source(customers: CustomersBed, spark: SparkSession) -> None:
    customers.change(upsert(1, 10))
    assert customers.run() is Outcome.STOPPED
    kept = list(customers.events)
    folder = aside(customers, [upsert(7, 1), upsert(8, 1), delete(1, 20)])
    fill(spark, filling(customers, read=FILES, path=folder, predicate="customer_id = 7"), lambda said: None)
    customers.is_exact([*kept, upsert(7, 1)])


def test_what_spark_refuses_is_said_and_leaves_nothing_parked(
    customers: CustomersBed, spark: SparkSession
) -> None:
    customers.change(upsert(1, 10))
    assert customers.run() is Outcome.STOPPED
    wrong = filling(customers, read=HISTORY, predicate="no_such_column > 3")
    with pytest.raises(RecoveryError, match="no_such_column"):
        fill(spark, wrong, lambda said: None)
    customers.is_exact()
    assert not holds.all_of(customers.home())


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        ("customer_id in (select 1)", "has a sub-query"),
        ("concat(reflect('java.lang.System', 'getenv', 'HOME'), '') = ''", "calls reflect"),
        ("identifier('reflect')('java.lang.System', 'getenv', 'HOME') = ''", "calls identifier"),
    ],
)
def test_sparks_own_parser_finds_what_reaches_outside_of_the_row(
    predicate: str, reason: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkeeper.sources.predicate.why_refused", lambda text: None)
    with pytest.raises(RequestError, match=reason):
        check_predicate(spark, predicate)


def test_a_changed_declaration_ends_it_before_anything_is_touched(
    customers: CustomersBed, spark: SparkSession
) -> None:
    customers.change(upsert(1, 10))
    assert customers.run() is Outcome.STOPPED
    planned = filling(customers, read=HISTORY)
    customers.declare(
        (customers.root / "pipelines" / "customers.py")
        .read_text()
        .replace("customer_id INT", "customer_id BIGINT")
    )
    with pytest.raises(RecoveryError, match="changed since the backfill was planned"):
        fill(spark, planned, lambda said: None)
    assert (
        FlowHome(
            open_storage(customers.settings.state), "customers", name_of(INCREMENTAL, RECOVERY)
        ).generations()
        == []
    )


@pytest.mark.long
def test_a_backup_is_filled_in_at_the_sequences_of_its_rows_with_what_it_remembers(
    customers: CustomersBed, spark: SparkSession
) -> None:
    customers.change(upsert(1, 10), upsert(2, 10), upsert(3, 10))
    customers.change(delete(3, 12), upsert(2, 14))
    assert customers.run() is Outcome.STOPPED
    old = Backup(str(customers.root / "backup"), None)
    shutil.copytree(customers.table, old.target)
    customers.change(upsert(1, 20), upsert(2, 12))
    assert customers.run() is Outcome.STOPPED
    spark.sql(f"DELETE FROM delta.`{customers.table}` WHERE customer_id <> 1")
    forget(spark, customers.table, datetime.now(timezone.utc) + timedelta(days=1), nullcontext)
    fill(spark, filling(customers, read=BACKUP, source=None, backup=old), lambda said: None)
    customers.change(upsert(3, 11))
    assert customers.run() is Outcome.STOPPED
    customers.is_exact()


@pytest.mark.long
def test_a_backup_of_a_table_by_several_columns_brings_the_sequences_of_its_snapshot_back(
    customers: CustomersBed, spark: SparkSession
) -> None:
    """Beside a flow that is ordered by two columns, a snapshot's literal 0 is {0, null}."""
    text = edited(
        PIPELINE,
        ("sequenceNum BIGINT", "sequenceNum BIGINT, part INT"),
        ('="sequenceNum"', '=["sequenceNum", "part"]'),
        ('["operation", "sequenceNum"]', '["operation", "sequenceNum", "part"]'),
    )
    customers.declare(text)
    customers.take_snapshot(1, 2, 3)
    customers.change({**upsert(1, 10), "part": 1}, {**delete(2, 5), "part": 2})
    assert (customers.run(), customers.run(SNAPSHOT)) == (Outcome.STOPPED, Outcome.DONE)

    def sequences() -> dict[int, tuple[Any, ...]]:
        rows = (
            spark.read.format("delta")
            .load(customers.table)
            .select("customer_id", f"{BOOKKEEPING}.sequence")
            .collect()
        )
        return {row[0]: tuple(row[1]) for row in rows}

    before = sequences()
    assert before == {1: (10, 1), 3: (0, None)}
    old = Backup(str(customers.root / "backup"), None)
    shutil.copytree(customers.table, old.target)
    empty(spark, customers.table, "emptied")
    fill(spark, filling(customers, read=BACKUP, source=None, backup=old), lambda said: None)
    assert sequences() == before
    customers.change({**upsert(2, 4), "part": 9})
    assert customers.run() is Outcome.STOPPED
    customers.is_exact()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the disk go away after the third chunk was applied; give a list with an item for each that was."""
    apply, applied = auto_cdc.apply_changes, list[int]()

    def dies_after_three(*args: Any) -> Ties:
        ties: Ties = apply(*args)
        applied.append(1)
        if len(applied) == 3:
            raise StorageError("the disk went away")
        return ties

    monkeypatch.setattr(auto_cdc, "apply_changes", dies_after_three)
    return applied


def six_chunks(customers: CustomersBed) -> Filling:
    folder = aside(customers, *[[upsert(number, 1), upsert(1, number)] for number in range(2, 8)])
    return filling(customers, read=FILES, path=folder, chunk=1)


SIX_AND_ONE = "six chunks, and the one that was in the table and not in the checkpoint once more"


@pytest.mark.long
def test_a_backfill_that_failed_for_now_tries_again_by_itself(
    customers: CustomersBed, spark: SparkSession, dying: list[int]
) -> None:
    customers.change(upsert(1, 10))
    assert customers.run() is Outcome.STOPPED
    dying.clear()
    assert fill(spark, six_chunks(customers), lambda said: None).batch == 5
    assert len(dying) == 7, SIX_AND_ONE
    customers.is_exact()


@pytest.mark.long
def test_a_backfill_that_failed_goes_on_where_it_was(
    customers: CustomersBed, spark: SparkSession, dying: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    customers.change(upsert(1, 10))
    assert customers.run() is Outcome.STOPPED
    dying.clear()
    asked = six_chunks(customers)
    monkeypatch.setattr(derived_flow, "RETRY_SECONDS", ())
    with pytest.raises(StreamkeeperError, match=r"the disk went away|ended \(failed\)") as failed:
        fill(spark, asked, lambda said: None)
    assert not isinstance(failed.value, RecoveryError), "another try may go better, and Airflow tries again"
    home = FlowHome(open_storage(customers.settings.state), "customers", name_of(INCREMENTAL, RECOVERY))
    assert generations.finished(home) is None
    assert fill(spark, asked, lambda said: None).batch == 5
    assert len(dying) == 7, SIX_AND_ONE
    customers.is_exact()


@pytest.mark.long
def test_state_of_the_flows_view_spans_all_chunks(
    make_bed: Callable[..., Flowbed], spark: SparkSession
) -> None:
    """Rows are appended here, so the two that both the flow and the backfill read come twice: its plan asks
    for that impact.
    """
    bed = make_bed(pipeline(view=DEDUPE))
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    stream = list(bed.events)
    for numbers in ((2, 3), (3, 4), (4, 5)):
        bed.arrive(*numbers, folder="archive")
    again = bed.events[len(stream) :]
    request = BackfillRequest(
        NAME, FILES, "events_raw", path=str(bed.root / "data" / "archive"), chunk=1, accept=("duplicates",)
    )
    fill(spark, Filling(bed.settings, request, RECOVERY, bed.flow().fingerprint), lambda said: None)
    bed.holds([*first_per(stream, ["event_id"]), *first_per(again, ["event_id"])])
    bed.arrive(9)
    assert bed.run() is Outcome.STOPPED
    bed.holds([*all_rows(stream), *first_per(again, ["event_id"]), bed.events[-1]])


def two_sources(options: str = "", schema: str = f', schema="{SCHEMA}"') -> str:
    """Write a pipeline that appends what two folders have, ``events`` and ``others``."""
    others = (
        f'dp.create_source("others", format="json", path="{{data}}/others"{schema},'
        f' options={{"maxFilesPerTrigger": 1{options}}})'
    )
    both = {
        "sources": ("distinct_events", "others"),
        "parameters": "events, others",
        "flow": "events.unionByName(others)",
    }
    return pipeline(view="", more=others, **both)  # type: ignore[arg-type]


def refill(bed: Flowbed) -> Filling:
    """Read the history of ``events`` once more, a file at a time."""
    request = BackfillRequest(NAME, HISTORY, "events_raw", chunk=1, accept=("duplicates",))
    return Filling(bed.settings, request, RECOVERY, bed.flow().fingerprint)


def await_spark_has_removed_what_it_would(spark: SparkSession) -> None:
    """Wait until the threads in which Spark removes files that were read are over."""
    threads = spark._jvm.java.lang.Thread  # type: ignore[union-attr]
    deadline = time.monotonic() + 60
    while any("file-source-cleaner" in thread.getName() for thread in threads.getAllStackTraces().keySet()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_files_of_another_source_are_neither_read_nor_removed(
    make_bed: Callable[..., Flowbed], spark: SparkSession
) -> None:
    bed = make_bed(two_sources(', "cleanSource": "delete"'))
    others = bed.root / "data" / "others"
    others.mkdir()
    for number in (1, 2, 3):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    once = list(bed.events)
    unread = [bed.arrive(number, folder="others") for number in (11, 12, 13)]
    assert fill(spark, refill(bed), lambda said: None).batch == 2
    await_spark_has_removed_what_it_would(spark)
    assert sorted(others.iterdir()) == unread
    bed.holds([*once, *once])
    assert bed.run() is Outcome.STOPPED
    bed.holds([*once, *bed.events])


@pytest.mark.long
def test_another_source_may_be_empty_for_the_moment(
    make_bed: Callable[..., Flowbed], spark: SparkSession
) -> None:
    bed = make_bed(two_sources(schema=""))
    bed.arrive(1)
    gone = bed.arrive(11, folder="others")
    assert bed.run() is Outcome.STOPPED
    gone.unlink()
    assert fill(spark, refill(bed), lambda said: None).batch == 0
    bed.holds([*bed.events, bed.events[0]])


@pytest.mark.long
def test_a_range_of_kafka_is_read_between_its_ends_and_through_every_step(
    kafka: Callable[..., KafkaBed], spark: SparkSession
) -> None:
    flow = kafka()
    bed = flow.bed
    flow.arrive(*range(1, 7), partition=0)
    flow.arrive(7, 8, partition=1)
    assert bed.run() is Outcome.STOPPED
    spark.sql(f"DELETE FROM delta.`{bed.table}`")
    ends = {"from_offsets": {flow.topic: {"0": 1}}, "to_offsets": {flow.topic: {"0": 4}}}
    at_work, asked = Recoverer.of(bed), {"flow": NAME, "accept": ["duplicates"]}
    everything = at_work.draft("backfill", **asked)
    assert (everything.details["reads"]["rows"], everything.details["reads"]["at_most"]) == (8, True)
    plan = at_work.plan("backfill", RECOVERY, chunk=2, **asked, **ends)
    assert plan.details["reads"]["rows"] == 3
    at_work.carry_out(plan)
    bed.holds([event(number) for number in (2, 3, 4)])
    assert ledger.open(bed.home.storage, "events", RECOVERY).find("fill.progress")
    flow.arrive(9)
    assert bed.run() is Outcome.STOPPED
    bed.holds([event(number) for number in (2, 3, 4, 9)])
