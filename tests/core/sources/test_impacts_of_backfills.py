"""How many rows a backfill will read, as its plan says it: a number, a bound, or why nobody knows. The probe
of Kafka is a fake.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.errors import RequestError, SourceError
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.sources.delta.statistics import rows_of
from streamkeeper.sources.kafka.offsets import Topics
from streamkeeper.support.amounts import DUPLICATES, Amount
from tests.worlds.recover.recoveries import FLOW, planned
from tests.worlds.small_world import READER, World, write_manifest
from tests.worlds.sources.source_impacts import DELTA, HELD, KAFKA, STOOD, Ask, at, begun, broker
from tests.worlds.tables.delta_logs import PROTOCOL, Table, add

__all__ = ["broker"]
FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
VECTORS = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **FEATURES}}
NAME = "ab^-aqEH.-t@S}K{vb[*k^"
VECTOR = {"storageType": "u", "pathOrInlineDv": NAME, "offset": 4, "sizeInBytes": 40, "cardinality": 6}


def plan(world: World, **values: Any) -> Plan:
    return planned(world, "backfill", **{"flow": FLOW, "accept": [DUPLICATES], **values})


def of_table(world: World, table: Table) -> Plan:
    return plan(world, read="table", path=str(table.root))


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}


def summarize(table: Table, version: int, **more: Any) -> None:
    summary = {"numFiles": 3, "tableSizeBytes": 30, **PROTOCOL, "metadata": {}, **more}
    (table.log / f"{version:020d}.crc").write_text(json.dumps(summary))


def reads(found: Plan) -> Amount:
    return Amount(**found.details["reads"])


def said(found: Plan) -> str:
    return found.notes[0]


@pytest.fixture
def table(world: World) -> Table:
    """A table beside the flow's own, whose versions 0 and 1 brought 5 rows and 7."""
    world.write_table("q", 1)
    made = Table(Path(world.settings.data) / "source")
    made.commit(add("b0", 7))
    return made


# --- a Delta table


def test_a_table_that_is_read_is_counted_by_its_log(world: World, table: Table) -> None:
    found = of_table(world, table)
    assert reads(found) == Amount(3, 30, 12)
    place = table.root
    assert said(found) == f"Read: 3 files, 30 B, 12 rows, from {place}, as rows of the source events_raw."
    counted = f"Counted is version 1 of {place}. Rows committed before it is read are included too."
    assert counted in found.notes


def test_the_history_of_a_delta_source_is_its_table_as_it_is(world: World, table: Table) -> None:
    table.commit(remove("a1"))
    found = plan(begun(world, DELTA, at(1)))
    assert reads(found) == Amount(2, 20, 9)
    assert "from what the source events_raw still has" in said(found)


@pytest.mark.parametrize(
    ("options", "found", "versions"),
    [
        ({}, Amount(2, 20, 9, at_most=True), "versions 1, 2"),
        ({"skipChangeCommits": True}, Amount(1, 10, 2, at_most=True), "version 2"),
    ],
    ids=["all commits", "only those that the flow skips"],
)
def test_versions_of_a_delta_source_are_counted_by_the_files_that_they_made(
    options: dict[str, Any], found: Amount, versions: str, world: World, table: Table
) -> None:
    table.commit(remove("a0"), add("c0", 2))
    begun(world, DELTA.replace('"{data}/source"', f'"{{data}}/source", options={options!r}'), at(1))
    made = plan(world, from_version=1, to_version=2)
    assert reads(made) == found
    assert "from versions 1 to 2 of the source events_raw" in said(made)
    assert any(f"the rows that {versions} added or changed" in note for note in made.notes)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"from_version": 1, "to_version": 3}, "does not hold the table from version 0 to 3"),
        ({"from_version": 2, "to_version": 1}, "Give both, the last one not below the first"),
        ({"from_version": 1}, "from_version is 1 and to_version None"),
    ],
    ids=["one to come", "backwards", "without an end"],
)
def test_versions_that_cannot_be_read_are_refused(
    asked: dict[str, Any], why: str, world: World, table: Table
) -> None:
    begun(world, DELTA, at(1))
    with pytest.raises(RequestError, match=why):
        plan(world, **asked)


def test_a_table_of_the_warehouse_is_counted_by_its_name(world: World, table: Table) -> None:
    table.root.rename(world.root / "warehouse" / "older_events")
    assert reads(plan(world, read="table", table="older_events")).rows == 12


@pytest.mark.parametrize(
    ("source", "asked"),
    [({}, {"predicate": "event_id > 'a'"}), ({"excludeRegex": "b.*"}, {})],
    ids=["a predicate", "files left out"],
)
def test_what_leaves_rows_out_makes_the_number_a_bound(
    source: dict[str, str], asked: dict[str, Any], world: World, table: Table
) -> None:
    begun(world, DELTA.replace('"{data}/source"', f'"{{data}}/source", options={source!r}'), at(1))
    found = plan(world, **asked)
    assert reads(found) == Amount(3, 30, 12, at_most=True)
    assert "3 files, 30 B, at most 12 rows" in said(found)


def test_files_that_do_not_say_how_many_rows_they_hold_are_counted_as_files(
    world: World, table: Table
) -> None:
    table.commit(add("c0", None))
    found = of_table(world, table)
    assert reads(found) == Amount(4, 40, None, "some of its files do not say how many rows they hold")
    assert "4 files, 40 B, rows unknown: some of its files do not say how many rows they hold" in said(found)


def test_an_empty_table_is_nothing_to_read(world: World, table: Table) -> None:
    table.commit(*map(remove, ("a0", "a1", "b0")))
    assert reads(of_table(world, table)).nothing


@pytest.mark.parametrize(
    ("deleted", "rows", "at_most"), [(6, 6, False), (None, 12, True)], ids=["counted", "not counted"]
)
def test_rows_that_deletion_vectors_take_away_are_left_out_or_make_the_number_a_bound(
    deleted: int | None, rows: int, *, at_most: bool, world: World, table: Table
) -> None:
    table.commit(VECTORS, remove("b0"), add("b0", 7, deletionVector=VECTOR))
    summarize(table, 2, numDeletedRecordsOpt=deleted)
    assert reads(of_table(world, table)) == Amount(3, 30, rows, at_most=at_most)
    if at_most:
        with pytest.raises(SourceError, match="deletion vectors, which are not counted without a JVM"):
            rows_of(str(table.root))
    else:
        assert rows_of(str(table.root)) == rows


def test_a_table_that_cannot_be_read_from_here_is_weighed_by_its_summary_and_its_rows_are_unknown(
    world: World, table: Table
) -> None:
    table.clean_up(1)
    found = of_table(world, table)
    assert reads(found).rows is None
    assert "rows unknown: the table cannot be read without a JVM" in said(found)
    summarize(table, 1)
    found = of_table(world, table)
    assert "3 files, 30 B, rows unknown: the table cannot be read without a JVM" in said(found)


def test_a_commit_that_is_damaged_makes_the_number_unknown_and_no_plan_fail(
    world: World, table: Table
) -> None:
    (table.log / f"{1:020d}.json").write_text("{")
    assert "rows unknown: " in said(of_table(world, table))


# --- Kafka


@pytest.fixture
def stood(world: World) -> World:
    return begun(world, KAFKA, STOOD)


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        pytest.param({}, 7, id="all that is held, up to where the flow stands"),
        pytest.param({"from_offsets": {"orders": {"0": -2, "1": -2}}}, 7, id="from earliest"),
        pytest.param({"from_offsets": {"orders": {"0": 4, "1": -1}}}, 2, id="from an offset and latest"),
        pytest.param({"from_offsets": {"orders": {"1": -2}}}, 1, id="one partition alone"),
        pytest.param({"to_offsets": {"orders": {"0": 1, "1": 3}}}, 2, id="up to an offset"),
        pytest.param({"to_offsets": {"orders": {"0": 1}}}, 2, id="one without an end is read to its end"),
        pytest.param(
            {"from_offsets": {"orders": {"0": 1}}, "to_offsets": {"orders": {"0": 4}}},
            3,
            id="between offsets",
        ),
        pytest.param({"to_offsets": {"orders": {"0": 99, "1": 0}}}, 10, id="an end that is yet to come"),
    ],
)
def test_records_are_counted_between_what_the_topics_hold_and_the_end(
    asked: dict[str, Any], rows: int, stood: World, broker: Ask
) -> None:
    questions = broker(HELD)
    found = plan(stood, **asked)
    assert reads(found) == Amount(None, 0, rows, at_most=True)
    of = f"{rows} row" if rows == 1 else f"{rows} rows"
    assert said(found) == f"Read: at most {of}, from what the source events_raw still has."
    assert questions == ["b:1"]


def test_a_flow_that_has_read_nothing_gets_all_that_the_topics_hold(world: World, broker: Ask) -> None:
    broker(HELD)
    world.declare(KAFKA)
    write_manifest(world.settings)
    world.write_table("q", 1)
    found = plan(world)
    assert reads(found).rows == 11
    end = "Read up to the end of orders/0, orders/1 at that time. Records written until then are included."
    assert end in found.notes


def test_a_compacted_topic_is_told(stood: World, broker: Ask) -> None:
    broker(Topics(HELD.ranges, HELD.ids, {"orders": "compact"}))
    assert any("Topic orders is compacted" in note for note in plan(stood).notes)


@pytest.mark.parametrize(
    ("start", "wrong"),
    [
        ({"ordres": {"0": 3}}, "the source has no topic 'ordres'; it has orders"),
        ({"orders": {"7": 3}}, "the topic orders has no partition 7; it has 0, 1"),
        ({"orders": {"1": 0}}, "orders/1 starts at 0, and holds 2 to 3"),
    ],
    ids=["no such topic", "no such partition", "expired"],
)
def test_a_start_that_the_topics_do_not_hold_is_refused_in_the_plan(
    start: dict[str, Any], wrong: str, stood: World, broker: Ask
) -> None:
    broker(HELD)
    with pytest.raises(RequestError, match="from_offsets cannot be used") as refused:
        plan(stood, from_offsets=start)
    assert wrong in str(refused.value)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"from_offsets": {"orders": {"0": -2}}},
        {"from_offsets": {"orders": {"0": 1, "1": 2}}, "to_offsets": {"orders": {"0": 4}}},
    ],
    ids=["the beginning", "a word for it", "a partition without an end"],
)
def test_a_broker_that_does_not_answer_makes_the_number_unknown_and_no_plan_fail(
    asked: dict[str, Any], stood: World, broker: Ask
) -> None:
    questions = broker("b:1 does not answer within 5 s")
    found = plan(stood, **asked)
    assert reads(found) == Amount(None, 0, None, "b:1 does not answer within 5 s")
    why = "rows unknown: b:1 does not answer within 5 s, from what the source events_raw still has"
    assert why in said(found)
    assert len(questions) == 1, "a silent broker costs a plan its time once"


def test_offsets_that_are_numbers_are_a_bound_without_a_broker(stood: World, broker: Ask) -> None:
    broker("b:1 does not answer within 5 s")
    found = plan(stood, from_offsets={"orders": {"0": 1}}, to_offsets={"orders": {"0": 4, "1": 9}})
    assert reads(found) == Amount(None, 0, 3, at_most=True)
    assert "whether they still exist is unknown: b:1 does not answer within 5 s" in str(found.notes)


# --- where it is shown


def test_the_amount_is_in_the_approval_the_terminal_the_impact_and_the_ledger(
    stood: World, broker: Ask
) -> None:
    broker(HELD)
    found = plan(stood, accept=[])
    for text in (explain.as_text(found), explain.as_markdown(found)):
        assert "Read: at most 7 rows, from what the source events_raw still has." in text
        assert "are duplicated in events (at most 7 rows)" in text
    engine.propose(stood.settings, found)
    assert reads(engine.read_plan(stood.settings, "events", "r1")) == Amount(None, 0, 7, at_most=True)


def test_a_impact_that_nobody_knows_is_told_so(stood: World, broker: Ask) -> None:
    broker("b:1 does not answer")
    [refusal] = plan(stood, accept=[]).refusals
    assert "are duplicated in events (rows unknown: b:1 does not answer)" in refusal.message


def test_the_table_of_another_flow_is_counted_as_the_source_that_it_is(world: World, table: Table) -> None:
    table.root.rename(world.root / "warehouse" / "theirs")
    theirs = READER.replace('table="events"', 'table="theirs"').replace("copies", "events")
    world.declare(theirs.replace("copy_events", "clean_events"))
    write_manifest(world.settings)
    found = plan(world)
    assert reads(found) == Amount(3, 30, 12)
    assert "from what the source theirs still has" in said(found)
