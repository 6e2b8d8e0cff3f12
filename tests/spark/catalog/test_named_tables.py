"""Tables with a name in the session catalog, for real: a Hive metastore on Derby, and readers by name."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from streamkeeper_jobs.catalog.session_catalog import SessionCatalog
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.trial.analyze import analyze

from streamkeeper.drivers.failures import FailureClass, classify
from streamkeeper.errors import CatalogError, SettingsError
from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.named_tables import named_table, registration_of
from streamkeeper.trial.verdict import Compatibility
from tests.oracle import all_rows
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.session_catalogs import hive_session, opened_by_drivers, raw_columns

NAMED = pipeline(view="").replace(
    'table("events")',
    'table("events", registered_as="shop.NAME", comment="What happened", schema={"n": "its number"})',
)
READER = """
from streamkeeper import pipelines as dp

dp.create_source("theirs", format="delta", registered_as="shop.NAME")
dp.create_streaming_table("copies")

@dp.append_flow(name="copy_events", target="copies", sources=["theirs"])
def copy_events(theirs):
    return theirs
"""
Beds = Callable[[str], Flowbed]


@pytest.fixture(scope="module")
def hive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = hive_session(spark, str(tmp_path_factory.mktemp("hive")))
    session.sql("CREATE SCHEMA shop")
    return session


@pytest.fixture
def named(hive: SparkSession, tmp_path: Path) -> Iterator[Beds]:
    """Make a flow whose table has a name, of which each test has its own."""

    def make(name: str) -> Flowbed:
        return Flowbed.make(tmp_path / "it's a bed", hive, NAMED.replace("NAME", name))

    with opened_by_drivers(hive):
        yield make


@pytest.fixture(scope="module")
def elsewhere(
    hive: SparkSession, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> SparkSession:
    """A reader's session, with its own client of the same metastore."""
    return hive_session(spark, str(tmp_path_factory.mktemp("elsewhere")))


def read(session: SparkSession, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in session.sql(f"SELECT * FROM {name}").collect()]


def columns(session: SparkSession, name: str) -> list[tuple[str, str, str | None]]:
    """What the catalog has, where Spark looks and where others look: they are the same."""
    entry = SessionCatalog(session).look(name)
    assert entry is not None
    raw = raw_columns(session, name)
    assert [(field["name"], field["metadata"].get("comment")) for field in entry.columns] == [
        (column, comment) for column, _, comment in raw
    ]
    return raw


FIRST = [
    ("event_id", "string", None),
    ("user_id", "int", None),
    ("n", "int", "its number"),
    ("event_time", "timestamp", None),
]


def test_a_table_has_its_name_before_its_first_batch_and_each_reader_sees_what_it_is(
    named: Beds, elsewhere: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = named("events")
    assert bed.run() is Outcome.STOPPED
    assert (columns(elsewhere, "shop.events"), read(elsewhere, "shop.events")) == (FIRST, [])
    entry = SessionCatalog(elsewhere).look("shop.events")
    assert entry is not None
    assert (entry.location, entry.provider, entry.comment) == (str(bed.table), "delta", "What happened")
    assert entry.properties["streamkeeper.pipeline"] == "events"
    bed.arrive(1, 2, 3)
    written: list[str] = []
    for change in ("create", "describe", "put_columns"):
        monkeypatch.setattr(SessionCatalog, change, lambda *_, change=change: written.append(change))
    assert bed.run() is Outcome.STOPPED
    assert written == [], "a start at which nothing changed writes nothing into the catalog"
    bed.holds(all_rows(bed.events))
    assert sorted(row["n"] for row in read(elsewhere, "shop.events")) == [1, 2, 3]
    known = registration_of(bed.home.storage, "events")
    assert known is not None and (known.name, known.location) == ("shop.events", str(bed.table))


def test_what_was_committed_and_not_registered_is_registered_by_the_next_start(
    named: Beds, hive: SparkSession, elsewhere: SparkSession
) -> None:
    """As a driver leaves it that is killed between the two; also where the metastore would refuse another
    type in a column's place, and where nobody registered the table yet.
    """
    bed = named("mended")
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    hive.sql(f'ALTER TABLE delta.`{bed.table}` ADD COLUMNS (tags ARRAY<STRING> COMMENT "words" FIRST)')
    assert bed.run() is Outcome.STOPPED
    assert columns(elsewhere, "shop.mended") == [("tags", "array<string>", "words"), *FIRST]
    assert sorted(row["n"] for row in read(elsewhere, "shop.mended")) == [1, 2]
    hive.sql("DROP TABLE shop.mended")
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    assert sorted(row["n"] for row in read(elsewhere, "shop.mended")) == [1, 2, 3]


def test_a_name_of_another_table_is_refused_with_both_places_before_anything_is_written(
    named: Beds, hive: SparkSession, tmp_path: Path
) -> None:
    other = tmp_path / "another"
    hive.range(1).write.format("delta").save(str(other))
    hive.sql(f"CREATE TABLE shop.taken USING delta LOCATION '{other}'")
    bed = named("taken")
    bed.arrive(1)
    said = f"the table events at {bed.table} is registered_as 'shop.taken'"
    (tmp_path / "empty").mkdir()
    verdict = analyze(hive, bed.settings, bed.flow(), tmp_path / "empty")
    assert verdict.compatibility is Compatibility.INCOMPATIBLE
    assert said in verdict.in_words() and f"the delta table at {other}" in verdict.in_words()
    assert bed.run() is Outcome.PARKED
    assert said in bed.park().reason and f"the delta table at {other}" in bed.park().reason
    assert not bed.table.exists()
    hive.sql(f'CREATE TABLE shop.files (a INT) USING parquet LOCATION "{bed.table}"')
    bed.declare(NAMED.replace("NAME", "files"))
    assert bed.run() is Outcome.PARKED
    assert f"the parquet table at {bed.table}" in bed.park().reason
    bed.declare(NAMED.replace("shop.NAME", "none.x"))
    assert bed.run() is Outcome.PARKED
    assert "the session catalog has no schema none. Nothing was touched." in bed.park().reason


def test_a_catalog_that_ends_with_its_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match=r"The session catalog is in memory .* names in it reach nobody"):
        SessionCatalog(spark)


def test_a_catalog_that_does_not_answer_is_asked_again_by_the_next_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    nobody = hive_session(spark, str(tmp_path), hive__metastore__uris="thrift://127.0.0.1:1")
    with pytest.raises(CatalogError, match=r"The session catalog was asked about .* and answers: ") as raised:
        SessionCatalog(nobody).look("shop.events")
    assert classify(causes_of(raised.value)).classed is FailureClass.TRANSIENT


def test_a_source_by_name_is_read_by_its_place_and_a_name_that_moved_is_a_table_made_anew(
    named: Beds, hive: SparkSession, tmp_path: Path
) -> None:
    theirs = named("theirs")
    theirs.arrive(1, 2)
    assert theirs.run() is Outcome.STOPPED
    bed = Flowbed.make(
        tmp_path / "reader", hive, READER.replace("NAME", "theirs"), "reader.copy_events", target="copies"
    )
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(theirs.events))
    known = named_table(bed.home.storage, "shop.theirs")
    assert known is not None and known.location == str(theirs.table)
    moved = tmp_path / "moved"
    shutil.copytree(theirs.table, moved)
    hive.sql("DROP TABLE shop.theirs")
    hive.sql(f"CREATE TABLE shop.theirs USING delta LOCATION '{moved}'")
    assert bed.run() is Outcome.STOPPED, "a copy with the same id goes on"
    shutil.rmtree(moved)
    hive.range(5).selectExpr("'x' AS event_id", "1 AS user_id", "1 AS n", "now() AS event_time").write.format(
        "delta"
    ).save(str(moved))
    assert bed.run() is Outcome.PARKED
    assert "the table was recreated" in bed.park().reason


def test_a_table_that_became_catalog_managed_parks_its_flow_and_is_not_touched(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(pipeline(view=""))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    log = bed.table / "_delta_log"
    features = {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    newest = max(int(commit.stem) for commit in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text(json.dumps(protocol) + "\n")
    before = sorted(bed.table.rglob("*"))
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert "is catalog-managed (table feature catalogManaged)" in bed.park().reason
    assert sorted(bed.table.rglob("*")) == before


def read_by_delta_rs(session: SparkSession, name: str) -> list[dict[str, Any]]:
    """Read as another engine does: where the catalog says that the table is."""
    entry = SessionCatalog(session).look(name)
    assert entry is not None and entry.location is not None
    # It heeds deletion vectors, which a table of Arrow does not.
    query = QueryBuilder().register("found", DeltaTable(entry.location)).execute("SELECT * FROM found")
    return pyarrow.table(query.read_all()).to_pylist()


class Reader:
    """A thread that reads by name, again and again, in the ``with`` block: how often, the fewest rows that it
    saw, and what failed.
    """

    def __init__(self, rows: Callable[[], list[dict[str, Any]]]) -> None:
        self.reads, self.fewest, self.failed = 0, 10**9, list[str]()
        self._rows, self._over = rows, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                self.fewest = min(self.fewest, len(self._rows()))
                self.reads += 1
            except Exception as error:  # noqa: BLE001 - whatever a reader meets is what the test is about
                self.failed.append(str(error))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


TABLE = {"table": "events.events"}
RECOVERIES: dict[str, tuple[dict[str, Any], int]] = {
    "rebuild_without_downtime": (TABLE, 5),
    "restore_table": ({**TABLE, "backup": "b1"}, 3),
    "full_refresh": (TABLE, 0),
    "full_refresh_with_backup": ({**TABLE, "fill_from": "sources"}, 0),
    "rewind": ({"flow": NAME, "batch": "0", "target": "restored"}, 3),
    "backfill": ({"flow": NAME, "read": "files", "path": "archive", "accept": ["duplicates"]}, 5),
}
"""What each is asked for, and the fewest rows that a reader may see meanwhile, by its page."""


@pytest.mark.long
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_readers_by_name_never_fail_through_a_recovery_which_writes_the_name_anew(
    recovery: str, named: Beds, hive: SparkSession, elsewhere: SparkSession
) -> None:
    values, fewest = RECOVERIES[recovery]
    bed, name = named(recovery), f"shop.{recovery}"
    at_work, catalog = Recoverer.of(bed), SessionCatalog(hive)
    bed.arrive(1, 2, 3)
    assert bed.run() is Outcome.STOPPED
    if recovery == "restore_table":
        at_work.backup("b1", "events.events")
    bed.arrive(4, 5)
    assert bed.run() is Outcome.STOPPED
    if recovery == "backfill":
        values = {**values, "path": str(bed.arrive(6, folder="archive").parent)}
    entry = catalog.look(name)
    assert entry is not None
    catalog.put_columns(name, entry.columns[:1])
    catalog.describe(name, "older", {"streamkeeper.pipeline": "older"})
    by_spark = Reader(partial(read, elsewhere, name))
    by_delta_rs = Reader(partial(read_by_delta_rs, elsewhere, name))
    with by_spark, by_delta_rs:
        at_work.run(recovery, f"{recovery}-00000001", **values)
        assert columns(elsewhere, name) == FIRST, "before any driver"
        found = catalog.look(name)
        assert found is not None and (found.columns, found.comment) == (entry.columns, entry.comment)
        assert found.properties["streamkeeper.pipeline"] == "events"
        assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))
    for reader, rows in ((by_spark, read), (by_delta_rs, read_by_delta_rs)):
        assert reader.failed == []
        assert reader.reads > 0 and reader.fewest >= fewest
        assert sorted(row["n"] for row in rows(elsewhere, name)) == sorted(row["n"] for row in bed.events)
