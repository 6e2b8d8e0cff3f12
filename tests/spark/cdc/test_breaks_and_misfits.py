"""AUTO CDC where something breaks or does not fit: rows, columns, commits, fenced generations, and deletes
that grow old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructField, StructType, TimestampType
from streamkeeper_jobs.cdc import (
    Step,
    apply_batch,
    apply_changes,
    check_spec,
    replace_rows,
    scd2,
    target_schema,
)
from streamkeeper_jobs.cdc.apply_batch import LISTED
from streamkeeper_jobs.cdc.events import Ties
from streamkeeper_jobs.cdc.expressions import portable
from streamkeeper_jobs.cdc.remembered import forget
from streamkeeper_jobs.spark.delta_snapshot import Listed, null_or_from
from streamkeeper_jobs.spark.delta_table import fence

from streamkeeper.declare.cdc_spec import BOOKKEEPING, END_AT, START_AT, CdcSpec
from streamkeeper.declare.model import Table
from streamkeeper.delta.log import last_transaction
from streamkeeper.errors import ChangeRefused, DeclarationError
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import (
    SCHEMA,
    SPEC,
    TABLE,
    VERSIONS,
    WITHOUT_VECTORS,
    CdcBed,
    alone,
)

BY_MERGE = replace(TABLE, properties={"delta.enableChangeDataFeed": "true"})
NESTED = (
    "id INT, at BIGINT, op STRING, tags MAP<STRING, INT>, items ARRAY<STRUCT<sku: STRING, n: INT>>,"
    " `odd.name` STRUCT<a: INT>"
)


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[..., CdcBed]:
    """Make a target; ``make(spec, schema, table)`` for another declaration."""
    return lambda spec=SPEC, schema=SCHEMA, table=TABLE: CdcBed(spark, tmp_path, spec, schema).prepare(table)


@pytest.fixture(params=long_after(1, [50, 0]), ids=["listed", "not listed"])
def listed(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[int]:
    """Files up to which the checksum of a version lists them all, which spares a batch the question."""
    spark.conf.set(LISTED, request.param)
    yield request.param
    spark.conf.unset(LISTED)


def names(bed: CdcBed) -> dict[int, str]:
    return {row["id"]: row["name"] for row in bed.rows()}


@pytest.mark.long
def test_every_batch_is_committed_to_the_target_and_an_empty_one_too(make: Callable[..., CdcBed]) -> None:
    bed = make()
    for rows in ([], [(1, 2, "D", None, None)], [(1, 1, "U", "late", "x")]):
        number = bed.apply(*rows)
        assert last_transaction(bed.path, bed.query_id).version == number
    assert bed.rows() == []


def test_a_fenced_generation_changes_nothing(make: Callable[..., CdcBed]) -> None:
    bed = make()
    bed.apply((1, 1, "U", "a", "x"))
    fence(bed.spark, bed.path, bed.query_id, lambda: None)
    bed.apply((1, 2, "D", None, None), (2, 1, "U", "b", "x"))
    assert (names(bed), bed.remembered().count()) == ({1: "a"}, 0)


@pytest.mark.long
@pytest.mark.usefixtures("listed")
def test_a_batch_that_meets_another_commit_is_applied_again_as_a_whole_with_a_turn_of_its_own(
    make: Callable[..., CdcBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make()
    bed.apply((2, 1, "U", "old", "x"))
    turns: list[str] = []
    really = replace_rows.Target.commit_step

    def meet(*given: Any) -> None:
        monkeypatch.setattr(replace_rows.Target, "commit_step", really)
        # What a writer would do that takes no turns. Delta refuses whoever comes second.
        CdcBed(bed.spark, bed.root, query_id="other").apply(
            (1, 9, "D", None, None), (2, 4, "U", "other", "x")
        )
        really(*given)

    @contextmanager
    def turn():  # type: ignore[no-untyped-def]
        turns.append("taken")
        yield
        turns.append("given back")

    monkeypatch.setattr(replace_rows.Target, "commit_step", meet)
    apply_changes(
        bed.frame([(1, 5, "U", "a", "x"), (2, 5, "U", "b", "x")]),
        SPEC,
        bed.path,
        Step(bed.query_id, 1),
        turn,
    )
    assert names(bed) == {2: "b"}, "the delete that the other writer remembered meanwhile was read"
    assert turns == ["taken", "taken", "given back"]


@pytest.mark.long
@pytest.mark.usefixtures("listed")
def test_a_fence_that_comes_while_a_batch_is_written_keeps_it_out(
    make: Callable[..., CdcBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make()
    bed.apply((1, 1, "U", "a", "x"))
    really = replace_rows.Opened._mark

    def fenced_meanwhile(*given: Any) -> Any:
        fence(bed.spark, bed.path, bed.query_id, lambda: None)
        return really(*given)

    monkeypatch.setattr(replace_rows.Opened, "_mark", fenced_meanwhile)
    with pytest.raises(ConcurrentTransactionException):
        bed.apply((1, 2, "U", "b", "x"))
    assert names(bed) == {1: "a"}


@pytest.mark.parametrize(
    "name",
    long_after(1, ["delta.enableChangeDataFeed", "delta.enableRowTracking"]),
)
def test_a_table_that_only_merge_can_write_is_written_by_it(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path, replace(SPEC, scd_type=1))
    bed.prepare(replace(TABLE, properties={name: "true"}))
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"))
    bed.apply((1, 2, "U", "c", "x"), (2, 2, "D", None, None), (3, 1, "U", "d", "x"))
    assert names(bed) == {1: "c", 3: "d"}
    if name == "delta.enableChangeDataFeed":
        reader = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", bed.versions() - 1)
        )
        feed = reader.load(bed.path)
        assert {row["_change_type"] for row in feed.collect()} == {
            "update_preimage",
            "update_postimage",
            "delete",
            "insert",
        }


@pytest.mark.long
@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("vectors", ["true", "false"], ids=["marked", "written again"])
def test_partitions_column_mapping_and_constraints_hold_where_rows_are_replaced(
    vectors: str, spark: SparkSession, tmp_path: Path
) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": vectors}
    table = replace(TABLE, partition_cols=("city",), properties=properties)
    bed = CdcBed(spark, tmp_path).prepare(table)
    spark.sql(f"ALTER TABLE delta.`{bed.path}` ADD CONSTRAINT short CHECK (length(name) < 5)")
    bed.apply((1, 1, "U", "a", "Ulm"), (2, 1, "U", "b", "Ulm"), (3, 1, "U", "c", "Bonn"))
    bed.apply((1, 2, "U", "d", "Bonn"), (2, 2, "D", None, None))
    assert [(row["id"], row["city"]) for row in bed.rows()] == [(1, "Bonn"), (3, "Bonn")]
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"):
        bed.apply((3, 2, "U", "too long", "Bonn"))
    assert names(bed) == {1: "d", 3: "c"}
    written = spark.sql(f"DESCRIBE HISTORY delta.`{bed.path}` LIMIT 1").collect()[0]
    assert (written["operation"], written["operationMetrics"]["numTargetRowsDeleted"]) == ("MERGE", "2")


@pytest.mark.usefixtures("listed")
def test_without_deletion_vectors_only_the_files_of_replaced_rows_are_written_again_in_one_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path).prepare(WITHOUT_VECTORS)
    bed.apply(*((key, 1, "U", "a", "x") for key in range(8)))
    bed.apply(*((key, 1, "U", "b", "x") for key in range(8, 12)))
    before, (untouched,) = bed.versions(), {str(file) for file in files_of(bed, "id >= 8")}
    bed.apply((1, 2, "U", "c", "x"), (2, 2, "D", None, None), (20, 1, "U", "d", "x"))
    assert names(bed) == {
        **dict.fromkeys([0, *range(3, 8)], "a"), 1: "c", **dict.fromkeys(range(8, 12), "b"), 20: "d"
    }  # fmt: skip
    assert bed.versions() == before + 1
    assert files_of(bed, "id >= 8 AND id < 12") == {untouched}
    assert len(files_of(bed)) == 2, "what stays of a file and what is new are one file"
    assert not list(Path(bed.path).rglob("deletion_vector*")), "no reader needs to know any"
    metrics = spark.sql(f"DESCRIBE HISTORY delta.`{bed.path}` LIMIT 1").collect()[0]["operationMetrics"]
    counts = [metrics[f"numTargetRows{kind}"] for kind in ("Inserted", "Deleted", "Copied")]
    assert counts == ["2", "2", "6"]


def files_of(bed: CdcBed, where: str = "true") -> set[str]:
    found = bed.table().where(where).selectExpr("_metadata.file_path AS file").distinct().collect()
    return {row["file"] for row in found}


@pytest.mark.parametrize(
    ("kind", "values", "read"),
    long_after(
        2,
        [
            ("BIGINT", ["1", "7"], 1),
            ("TIMESTAMP_NTZ", ["'2026-01-31 01:00:00'", "'2026-01-31 02:00:00'"], 2),
            ("STRING", [f"'{'a' * 40}'", f"'{'a' * 39}b'"], 2),
            ("STRING", ["'a'", "'𝄞'"], 1),
            ("DATE", ["DATE '2026-01-31'", "DATE '2026-02-01'"], 1),
            ("TIMESTAMP", ["TIMESTAMP '2026-01-31 00:00:00'", "TIMESTAMP '2026-02-01 00:00:00'"], 2),
            ("DECIMAL(4, 1)", ["1.5", "7.5"], 2),
        ],
    ),
)
def test_of_listed_files_those_are_left_aside_whose_keys_no_change_can_have(
    kind: str, values: list[str], read: int, spark: SparkSession, tmp_path: Path
) -> None:
    """One file for each key; bounds of long texts are cut, and other types are not compared."""
    bed = CdcBed(spark, tmp_path, SPEC, f"id {kind}, at BIGINT, op STRING, name STRING").prepare()
    rows = [
        spark.sql(f"SELECT CAST({value} AS {kind}) AS id, 1L AS at, 'U' AS op, 'a' AS name")
        for value in values
    ]
    for number, frame in enumerate(rows):
        apply_changes(frame, SPEC, bed.path, Step(bed.query_id, number), alone)
    target = replace_rows.opened(spark, bed.path, Step(bed.query_id, 2))
    (bound,) = rows[0].select(portable(F.col("id"), rows[0].schema["id"].dataType)).collect()[0]
    found = target.looked_at(F.lit(True), "id", bound, bound)
    assert found is not None
    assert target.files is not None
    assert len(target.files.statistics) == 2
    assert found._files.size() == read


def test_bounds_of_a_key_are_those_of_its_column_in_the_files(spark: SparkSession, tmp_path: Path) -> None:
    table = replace(TABLE, properties={"delta.columnMapping.mode": "name"})
    bed = CdcBed(spark, tmp_path).prepare(table)
    for number, key in enumerate((1, 7)):
        bed.apply((key, 1, "U", "a", "x"), batch=number)
    target = replace_rows.opened(spark, bed.path, Step(bed.query_id, 2))
    assert target.schema["id"].metadata["delta.columnMapping.physicalName"] != "id"
    found = target.looked_at(F.col("id") == 7, "id", 7, 7)
    assert found is not None
    assert target.files is not None
    assert (len(target.files.statistics), found._files.size(), found.rows.count()) == (2, 1, 1)


@pytest.mark.parametrize(
    ("kind", "most", "below"),
    [
        (TimestampType(), "2026-01-01T01:00:00.000+01:00", True),
        (TimestampType(), "2026-01-02T00:00:00.000Z", False),
        (TimestampType(), "9999-12-31T23:59:59.999Z", False),
        (TimestampType(), "+10000-01-01T00:00:00.000Z", False),
        (DateType(), "2026-01-01", True),
        (DateType(), "+10000-01-01", False),
    ],
)
def test_a_bound_beyond_the_years_of_python_says_nothing(kind: DataType, most: str, below: bool) -> None:
    day = datetime(2026, 1, 2, tzinfo=timezone.utc)
    value = day.date() if kind == DateType() else int(day.timestamp()) * 1_000_000
    listed = Listed(None, ({"maxValues": {"at": most}, "nullCount": {"at": 0}},))
    assert listed.all_below(value, StructField("at", kind)) is below
    assert null_or_from(StructField("at", kind), value)(listed.statistics[0]) is not below


@pytest.mark.long
@pytest.mark.parametrize("kind", ["BIGINT", "TIMESTAMP", *long_after(0, ["DATE", "STRING"])])
@pytest.mark.parametrize("most_listed", [50, 0], ids=["listed", "not listed"])
def test_files_are_left_aside_whose_versions_all_ended_before_a_batch(
    most_listed: int, kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that have ended are in files of their own, and only those that end with the batch or later
    may be older than a change of it.
    """
    monkeypatch.setattr(scd2, "A_TASK", 1)
    monkeypatch.setattr(apply_batch, "MOST_LISTED", str(most_listed))
    schema = f"id INT, at {kind}, op STRING, name STRING"
    days = [f"'2026-01-0{day} 12:00:00'" for day in (1, 2, 3)]
    times = [f"CAST({at} AS {kind})" for at in {"BIGINT": ["1", "2", "3"]}.get(kind, days)]
    bed = CdcBed(spark, tmp_path, VERSIONS, schema).prepare()
    for number, at in enumerate(times[:2]):
        values = f"CAST(id AS INT) AS id, {at} AS at, 'U' AS op, '{number}' AS name"
        frame = spark.sql(f"SELECT {values} FROM range(9)")
        apply_changes(frame, VERSIONS, bed.path, Step(bed.query_id, number), alone)
    read = []
    for at in times:
        frame = spark.sql(f"SELECT {at} AS at")
        (since,) = frame.select(portable(F.col("at"), frame.schema["at"].dataType)).collect()[0]
        target = replace_rows.opened(spark, bed.path, Step(bed.query_id, 2))
        found = target.looked_at(F.lit(True), "id", 0, 8, since)
        assert found is not None
        ended = found.rows.where(F.col(END_AT).isNotNull()).count()
        read.append((found.rows.count() - ended, ended))
    assert read == [(9, 9), (9, 9), (9, 0)]


@pytest.mark.long
def test_a_conflict_that_does_not_end_is_raised(
    make: Callable[..., CdcBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise ConcurrentAppendException("always")

    monkeypatch.setattr(apply_batch, "_apply_once", refuse)
    with pytest.raises(ConcurrentAppendException, match="always"):
        CdcBed(make().spark, Path("/nowhere")).apply()
    assert len(tried) == apply_batch.TRIES


REFUSED = {
    "a null key": (
        [(None, 1, "U", "a", "x")],
        r'1 row of the batch has a null key \(id\) or a null sequence, such as \{"id":null,"at":1',
    ),
    "null sequences": (
        [(1, None, "U", "a", "x"), (2, None, "D", "b", "x"), (3, 1, "U", "c", "x")],
        "2 rows of the batch have a null key",
    ),
    "a truncate without a sequence": ([(None, None, "T", None, None)], "1 row of the batch"),
}


def test_rows_without_key_or_sequence_refuse_the_batch_before_anything_is_written(
    make: Callable[..., CdcBed],
) -> None:
    bed = make()
    for rows, said in REFUSED.values():
        with pytest.raises(ChangeRefused, match=said):
            bed.apply(*rows, batch=0)
    assert (bed.versions(), bed.remembered().count()) == (2, 0)
    bed.apply((1, 1, "U", "a", "x"), batch=0)
    assert names(bed) == {1: "a"}


@pytest.mark.long
@pytest.mark.parametrize(
    "spec",
    [SPEC, replace(SPEC, ignore_null_updates=True), VERSIONS],
)
def test_maps_arrays_and_odd_names_are_stored_and_tied_rows_of_them_compared(
    spec: CdcSpec, make: Callable[..., CdcBed]
) -> None:
    bed = make(spec, NESTED)
    bed.apply((1, 1, "U", {"b": 1, "a": 2}, [("s", 1)], (1,)))
    bed.apply((1, 1, "U", {"a": 3}, [("s", 1)], (1,)), (2, 1, "U", {}, [], None))
    by_id = {row["id"]: row for row in bed.rows()}
    assert by_id[1]["tags"] == {"a": 3}, "its first entry, by key, is larger"
    assert (by_id[2]["tags"], by_id[2]["items"], by_id[2]["odd.name"]) == ({}, [], None)


@pytest.mark.long
@pytest.mark.parametrize("batches", [1, 2])
def test_equal_values_are_shown_as_one_version_whatever_their_bytes(
    batches: int, make: Callable[..., CdcBed]
) -> None:
    columns = "zero DOUBLE, nothing ARRAY<FLOAT>, tags MAP<STRING, INT>"
    rows = [
        f"SELECT 1 AS id, {at}L AS at, 'U' AS op, {zero} AS zero, array(CAST('NaN' AS FLOAT)) AS nothing,"
        f" map({tags}) AS tags"
        for at, zero, tags in ((0, "0.0D", "'b', 1, 'a', 2"), (1, "-0.0D", "'a', 2, 'b', 1"))
    ]
    bed = make(VERSIONS, f"id INT, at BIGINT, op STRING, {columns}")
    for number, query in enumerate(rows if batches == 2 else [" UNION ALL ".join(rows)]):
        apply_changes(bed.spark.sql(query), VERSIONS, bed.path, Step(bed.query_id, number), alone)
    assert [(row[START_AT], row[END_AT]) for row in bed.rows()] == [(0, None)]


@pytest.mark.long
@pytest.mark.parametrize("spec", [SPEC, replace(VERSIONS, ignore_null_updates=True)])
def test_a_null_variant_is_smaller_than_any_other(spec: CdcSpec, make: Callable[..., CdcBed]) -> None:
    bed = make(spec, "id INT, at BIGINT, op STRING, v VARIANT")

    for number, text in enumerate(("1", "2")):
        texts = bed.spark.createDataFrame([(text,), (None,)], "text STRING")
        rows = texts.selectExpr("1 AS id", "CAST(1 AS BIGINT) AS at", "'U' AS op", "parse_json(text) AS v")
        apply_changes(rows, spec, bed.path, Step(bed.query_id, number), alone)
    assert [row["text"] for row in bed.table().selectExpr("to_json(v) AS text").collect()] == ["2"]


@pytest.mark.long
def test_several_sequence_columns_are_compared_in_order_and_a_literal_comes_first(
    make: Callable[..., CdcBed],
) -> None:
    schema = "id INT, day DATE, n FLOAT, op STRING, name STRING"
    spec = replace(SPEC, sequence_by=("day", "n"), except_column_list=("op", "day", "n"))
    bed = make(spec, schema)
    day, next_day = datetime(2026, 1, 1).date(), datetime(2026, 1, 2).date()
    newer, older = (1, next_day, 1.5, "U", "new"), (1, day, 9.0, "U", "old")
    bed.apply(newer, older, (2, day, 2.0, "U", "late"), (2, day, 10.0, "U", "later"))
    snapshot = CdcBed(
        bed.spark, bed.root, CdcSpec(("id",), (), 0), "id INT, name STRING", "snapshot"
    ).prepare()
    snapshot.apply((1, "first"), (3, "first"))
    bed.apply((None, day, 1.0, "T", None))
    assert names(bed) == {1: "new", 2: "later"}


@pytest.mark.long
def test_the_sequence_of_a_truncate_keeps_its_time_zone(make: Callable[..., CdcBed]) -> None:
    bed = make(SPEC, "id INT, at TIMESTAMP, op STRING, name STRING")
    moment = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc)
    bed.apply(*((number, moment + timedelta(hours=number), "U", str(number)) for number in range(4)))
    bed.apply((None, moment + timedelta(hours=2), "T", None))
    bed.apply((9, moment + timedelta(hours=1, minutes=59), "U", "too old"))
    assert sorted(names(bed)) == [2, 3]


def test_new_columns_and_fields_are_added_behind_the_others_and_the_bookkeeping_stays_last(
    make: Callable[..., CdcBed],
) -> None:
    spec = VERSIONS
    bed = make(spec, "id INT, at BIGINT, op STRING, where STRUCT<city: STRING>")
    bed.apply((1, 1, "U", ("Ulm",)))
    wider = CdcBed(
        bed.spark,
        bed.root,
        spec,
        "id INT, at INT, op STRING, more STRING, where STRUCT<city: STRING, zip: INT>",
        "wider",
    )
    wider.prepare().prepare()
    assert bed.table().columns == ["id", "where", "more", "__START_AT", "__END_AT", BOOKKEEPING]
    wider.apply((1, 2, "U", "m", ("Ulm", 3)), (1, 3, "U", "m", ("Ulm", 3)))
    bed.apply((1, 4, "U", ("Bonn",)))
    found = sorted(bed.rows(), key=lambda row: row["__START_AT"])
    assert [(row["more"], row["where"]["zip"]) for row in found] == [(None, None), ("m", 3), (None, None)]


OTHERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "other keys": ({"keys": ("name",)}, SCHEMA, "has the keys id, and the flow declares name"),
    "another SCD type": (
        {"scd_type": 2, "apply_as_truncates": None},
        SCHEMA,
        "is of SCD type 1, and the flow declares 2",
    ),
    "other nulls": (
        {"ignore_null_updates": True},
        SCHEMA,
        "ignore_null_updates false, and the flow declares true",
    ),
    "another type": (
        {},
        "id INT, at BIGINT, op STRING, name DATE",
        "has name of type string, and the flow gives date",
    ),
    "a wider key": ({}, "id BIGINT, at BIGINT, op STRING", "has id of type int, and the flow gives bigint"),
    "another order": (
        {},
        "id INT, at TIMESTAMP, op STRING",
        "is ordered by bigint, and sequence_by gives timestamp",
    ),
}


def test_a_flow_that_does_not_fit_its_table_is_refused_before_anything_is_touched(
    make: Callable[..., CdcBed],
) -> None:
    bed = make()
    for changed, schema, said in OTHERS.values():
        with pytest.raises(DeclarationError, match=said):
            CdcBed(bed.spark, bed.root, replace(SPEC, **changed), schema).prepare()
    bed.spark.range(1).write.format("delta").save(str(bed.root / "plain" / "customers"))
    with pytest.raises(DeclarationError, match="no AUTO CDC flow made it"):
        CdcBed(bed.spark, bed.root / "plain").prepare()
    with pytest.raises(DeclarationError, match="partitioned by day, which its flow does not store"):
        CdcBed(bed.spark, bed.root / "other").prepare(Table("t", None, {}, ("day",), TABLE.location))
    assert bed.versions() == 2
    assert not (bed.root / "other").exists()


@pytest.mark.long
def test_other_tracked_columns_are_refused_since_versions_that_are_shown_would_go(
    make: Callable[..., CdcBed],
) -> None:
    history = VERSIONS
    bed = make(history)
    bed.apply((1, 1, "U", "a", "x"), (1, 3, "U", "a", "y"))
    shown = bed.rows()
    named, unnamed = (
        replace(history, track_history_column_list=("name",)),
        replace(history, track_history_except_column_list=("City", "name")),
    )
    with pytest.raises(
        DeclarationError,
        match=r"tracks all columns in its history, and the flow declares only name\. Existing versions",
    ):
        CdcBed(bed.spark, bed.root, named).prepare()
    assert (bed.rows(), bed.versions()) == (shown, 3)
    other = CdcBed(bed.spark, bed.root / "other", unnamed).prepare()
    with pytest.raises(
        DeclarationError, match="tracks all but city, name in its history, and the flow declares all columns"
    ):
        CdcBed(bed.spark, other.root, history).prepare()
    before = other.versions()
    CdcBed(
        bed.spark,
        other.root,
        replace(unnamed, track_history_except_column_list=("NAME", "city")),
        SCHEMA + ", more INT",
    ).prepare()
    assert other.versions() == before + 1, "the column alone was added"


MISFITS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown key": (
        {"keys": ("who",)},
        SCHEMA,
        "keys names the column who, which is not there. The columns are id, at",
    ),
    "a key of several values": (
        {"keys": ("name",)},
        "name ARRAY<INT>, at INT, op STRING",
        "keys names the column name of type array<int>",
    ),
    "an unknown sequence": ({"sequence_by": ("when",)}, SCHEMA, "sequence_by names the column when"),
    "a sequence without an order": (
        {},
        "id INT, at MAP<INT, INT>, op STRING",
        "sequence_by names the column at of type map",
    ),
    "a reserved name": ({}, SCHEMA + ", __start_at INT", "keeps for itself. Rename it"),
    "a key that is not stored": (
        {"except_column_list": ("id",)},
        SCHEMA,
        "keys names id, which column_list or except",
    ),
    "an unknown column in a list": (
        {"except_column_list": ("nope",)},
        SCHEMA,
        "except_column_list names the column nope",
    ),
    "a condition that does not parse": (
        {"apply_as_deletes": "op ="},
        SCHEMA,
        "apply_as_deletes is 'op =', which is no condition",
    ),
    "a condition over an unknown column": (
        {"apply_as_truncates": "nope = 1"},
        SCHEMA,
        "apply_as_truncates is 'nope = 1', which is no",
    ),
    "a condition that is none": (
        {"apply_as_deletes": "upper(op)"},
        SCHEMA,
        "which gives string. Give a condition",
    ),
    "a column of no type": ({}, SCHEMA + ", nothing VOID", "The column nothing has no type"),
}


@pytest.mark.parametrize(("changed", "schema", "said"), MISFITS.values(), ids=MISFITS)
def test_a_declaration_that_does_not_fit_its_source_is_refused(
    changed: dict[str, Any], schema: str, said: str, spark: SparkSession
) -> None:
    with pytest.raises(DeclarationError, match=said):
        check_spec(StructType.fromDDL(schema), replace(SPEC, **changed))


def test_the_target_has_what_is_stored_in_the_sources_order_and_the_bookkeeping_last() -> None:
    schema = StructType.fromDDL("a INT, ID INT NOT NULL, b STRING, at INT, n INT")
    listed = CdcSpec(("id",), ("at", "n"), column_list=("B", "id"), scd_type=2)
    sequence = "struct<at:int,n:int>"
    assert (
        target_schema(schema, listed).simpleString()
        == f"struct<ID:int,b:string,__START_AT:{sequence},__END_AT:{sequence},"
        f"__streamkeeper:struct<sequence:{sequence}>>"
    )
    literal = CdcSpec(("id",), (), 0, except_column_list=("a", "n", "at"), ignore_null_updates=True)
    assert (
        target_schema(schema, literal).simpleString()
        == "struct<ID:int,b:string,__streamkeeper:struct<sequence:bigint,columns:map<string,bigint>>>"
    )


@pytest.mark.long
def test_deletes_are_forgotten_that_are_older_than_the_retention_and_no_others(
    make: Callable[..., CdcBed],
) -> None:
    bed = make()
    bed.apply((1, 5, "D", None, None), (None, 2, "T", None, None))
    first = bed.remembered().agg({"learned": "max"}).collect()[0][0].astimezone()
    bed.apply((2, 5, "D", None, None))
    assert forget(bed.spark, bed.path, first, alone) == 0, "what was written right then stays"
    assert forget(bed.spark, bed.path, first + timedelta(microseconds=1), alone) == 2
    assert forget(bed.spark, bed.path, first + timedelta(microseconds=1), alone) == 0
    bed.apply((1, 1, "U", "forgotten", "x"), (2, 4, "U", "remembered", "x"))
    assert names(bed) == {1: "forgotten"}
    with pytest.raises(ValueError, match="without a time zone"):
        forget(bed.spark, bed.path, datetime(2026, 1, 1), alone)


@pytest.mark.long
def test_versions_stay_as_they_are_shown_when_it_is_forgotten_what_they_come_from(
    make: Callable[..., CdcBed],
) -> None:
    bed = make(VERSIONS)
    bed.apply((1, 1, "U", "a", "x"), (1, 4, "U", "a", "x"), (1, 6, "D", None, None))
    forget(bed.spark, bed.path, datetime.now(timezone.utc) + timedelta(days=1), alone)
    bed.apply((1, 2, "U", "b", "x"), (1, 9, "U", "c", "x"))
    shown = [(row["name"], row["__START_AT"], row["__END_AT"]) for row in bed.rows()]
    assert sorted(shown, key=lambda one: one[1]) == [("a", 1, 2), ("b", 2, 4), ("a", 4, 6), ("c", 9, None)]


@pytest.mark.long
def test_a_batch_leaves_neither_settings_nor_blocks_behind(make: Callable[..., CdcBed]) -> None:
    bed = make()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "D", None, None))
    bed.apply((2, 2, "U", "b", "x"))
    context: Any = bed.spark.sparkContext._jsc
    left = {str(rdd.name()) for rdd in context.getPersistentRDDs().values()}
    assert all(name.startswith("Delta Table State") for name in left), "Delta keeps its snapshots by itself"
    for name in ("write.txnAppId", "write.txnVersion", "merge.materializeSource"):
        assert bed.spark.conf.get(f"spark.databricks.delta.{name}", None) in (None, "auto")
    assert bed.spark.conf.get(LISTED, None) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "table", "given", "most"),
    [
        (SPEC, TABLE, "a", 6),
        (VERSIONS, TABLE, "abc", 8),
        (VERSIONS, TABLE, "a", 9),
        (SPEC, WITHOUT_VECTORS, "a", 6),
    ],
    ids=["type 1", "type 2", "type 2, shown as one", "without vectors"],
)
def test_a_batch_in_order_takes_few_spark_jobs(
    spec: CdcSpec, table: Table, given: str, most: int, make: Callable[..., CdcBed]
) -> None:
    """What a small batch costs is planning and scheduling: each further job is some tenth of a second."""
    bed, jobs = make(spec, table=table), []
    context = bed.spark.sparkContext
    for at in (1, 2, 3):
        group = f"{bed.path}, batch {at}"
        context.setLocalProperty("spark.jobGroup.id", group)
        name = given[at % len(given)]
        bed.apply(*((key, at, "D" if key == at else "U", name, "x") for key in range(9)))
        jobs.append(len(context.statusTracker().getJobIdsForGroup(group)))
    context.setLocalProperty("spark.jobGroup.id", None)
    assert max(jobs[1:]) <= most, jobs
    assert jobs[0] <= most + 2, "no checksum tells of a query before its first batch"


@pytest.mark.parametrize("spec", long_after(1, [SPEC, VERSIONS]), ids=["type 1", "type 2"])
def test_upserts_that_lose_to_a_delete_of_their_sequence_are_counted(
    spec: CdcSpec, make: Callable[..., CdcBed]
) -> None:
    bed = make(spec)
    lost, kept = [(1, 1, "U", "a", "b"), (1, 1, "D", None, None)], [(2, 1, "U", "a", "b")]
    ended = [(3, 1, "U", "a", "b"), (3, 2, "D", None, None), (4, 1, "D", None, None), (4, 2, "U", "a", "b")]
    rows = bed.frame([*lost, *kept, *ended])
    assert apply_changes(rows, bed.spec, bed.path, Step(bed.query_id, 0), alone) == Ties(deleted=1)


@pytest.mark.parametrize(
    ("spec", "table", "stored"),
    long_after(1, [(SPEC, TABLE, 2), (SPEC, BY_MERGE, 2), (VERSIONS, TABLE, 0)]),
    ids=["type 1", "by MERGE", "type 2"],
)
def test_upserts_of_other_values_at_one_sequence_are_counted_and_repeated_ones_are_not(
    spec: CdcSpec, table: Table, stored: int, make: Callable[..., CdcBed]
) -> None:
    """Those of a batch, and in type 1 those with the stored row, whichever of both is the larger."""
    bed = make(spec, table=table)
    repeated, older = [(1, 2, "U", "a", "b")] * 3, [(2, 1, "U", "a", "b"), (2, 2, "U", "c", "b")]
    first = [*repeated, *older, *[(3, 2, "U", name, "b") for name in "axm"]]
    again = [(1, 2, "U", "z", "b"), (2, 2, "U", "c", "b"), (3, 2, "U", "b", "b")]
    newer = [(1, 3, "U", "y", "b"), (3, 3, "D", None, None)]
    counts = [
        apply_changes(bed.frame(rows), bed.spec, bed.path, Step(bed.query_id, number), alone)
        for number, rows in enumerate((first, again, newer))
    ]
    assert counts == [Ties(differing=1), Ties(differing=stored), Ties()]
