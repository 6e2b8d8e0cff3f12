"""Tables with a name in the session catalog, for real: a Hive metastore on Derby, and readers by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.catalog.session_catalog import SessionCatalog
from streamkeeper_jobs.trial.analyze import analyze

from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.named_tables import named_table, registration_of
from streamkeeper.trial.verdict import Compatibility
from tests.oracle import all_rows
from tests.worlds.flow_world import Flowbed, pipeline
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
    bed.declare(NAMED.replace("shop.NAME", "none.x"))
    assert bed.run() is Outcome.PARKED
    assert "the session catalog has no schema none. Nothing was touched." in bed.park().reason


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
