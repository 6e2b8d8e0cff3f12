"""SCD type 1: each case is a key with a history of its own; all of them share the batches of one table."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from streamkeeper_jobs.cdc import events, scd1, scd1_by_value
from streamkeeper_jobs.cdc.apply_batch import apply_changes
from streamkeeper_jobs.cdc.columns import layout_of, target_schema
from streamkeeper_jobs.cdc.steps import Step
from streamkeeper_jobs.spark.jvm import classes, json_of, scala_seq
from streamkeeper_jobs.spark.session import with_settings

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import Table
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import SPEC, TABLE, VERSIONS, WITHOUT_VECTORS, CdcBed

U, D = "U", "D"
Batch = list[tuple[int, str, str | None]]

CASES: dict[str, tuple[list[Batch], str | None]] = {
    "an insert makes a row": ([[(1, U, "a")]], "a"),
    "an update replaces it": ([[(1, U, "a")], [(2, U, "b")]], "b"),
    "of one batch the newest change counts": ([[(2, U, "b"), (3, U, "c"), (1, U, "a")]], "c"),
    "an update that is late changes nothing": ([[(2, U, "b")], [(1, U, "a")]], "b"),
    "an update without a row makes one": ([[(5, U, "e")]], "e"),
    "a null replaces a value": ([[(1, U, "a")], [(2, U, None)]], "null"),
    "a delete removes the row": ([[(1, U, "a")], [(2, D, None)]], None),
    "a delete that is late leaves the newer row": ([[(3, U, "c")], [(2, D, None)]], "c"),
    "a delete without a row is remembered": ([[(2, D, None)], [(1, U, "a")]], None),
    "a row comes back after its delete": ([[(1, U, "a"), (2, D, None)], [(3, U, "c")]], "c"),
    "a delete in the same batch as its older upsert": ([[(1, U, "a"), (2, D, None)], []], None),
    "an old upsert after delete and new row": ([[(2, D, None)], [(3, U, "c")], [(1, U, "a")]], "c"),
    "two deletes, the later one counts": ([[(4, D, None)], [(2, D, None)], [(3, U, "c")]], None),
    "at one sequence a delete beats an upsert that was there": ([[(2, U, "b")], [(2, D, None)]], None),
    "at one sequence a delete beats an upsert that comes": ([[(2, D, None)], [(2, U, "b")]], None),
    "at one sequence a delete beats an upsert beside it": (
        [[(2, U, "b"), (2, D, None)], [(1, U, "a")]],
        None,
    ),
    "at one sequence the larger row counts, early": ([[(2, U, "z")], [(2, U, "b")]], "z"),
    "at one sequence the larger row counts, late": ([[(2, U, "b")], [(2, U, "z")]], "z"),
    "at one sequence the larger row counts, together": ([[(2, U, "b"), (2, U, "z"), (2, U, None)]], "z"),
    "at one sequence a value counts more than a null": ([[(2, U, "b")], [(2, U, None)]], "b"),
    "a repeated change changes nothing": ([[(1, U, "a"), (1, U, "a")], [(1, U, "a")]], "a"),
    "a delete between two upserts of a batch": (
        [[(1, U, "a"), (2, D, None), (3, U, "c")], [(2, U, "b")]],
        "c",
    ),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    bed = CdcBed(spark, tmp_path_factory.mktemp("newest")).prepare()
    histories = [batches for batches, _ in CASES.values()]
    for number in range(max(len(batches) for batches in histories)):
        rows = [
            (case, at, op, name, "x")
            for case, batches in enumerate(histories)
            if number < len(batches)
            for at, op, name in batches[number]
        ]
        bed.apply(*rows)
    return {row["id"]: row for row in bed.rows()}


@pytest.mark.parametrize("case", CASES)
def test_the_newest_change_of_a_key_is_its_row(case: str, found: dict[int, dict[str, Any]]) -> None:
    number, wanted = list(CASES).index(case), CASES[case][1]
    row = found.get(number)
    assert (row and (row["name"] or "null")) == wanted


@pytest.mark.long
def test_a_truncate_removes_what_is_older_whenever_it_comes(spark: SparkSession, tmp_path: Path) -> None:
    bed = CdcBed(spark, tmp_path).prepare()
    bed.apply((1, 1, "U", "old", "x"), (2, 5, "U", "same", "x"), (3, 9, "U", "new", "x"))
    bed.apply((None, 5, "T", None, None), (4, 4, "U", "old", "x"), (5, 5, "U", "same", "x"))
    assert [row["id"] for row in bed.rows()] == [2, 3, 5]
    bed.apply((1, 4, "U", "late", "x"), (6, 6, "U", "new", "x"), (7, 2, "D", None, None))
    assert [row["id"] for row in bed.rows()] == [2, 3, 5, 6]
    bed.apply((None, 3, "T", None, None))
    assert [row["id"] for row in bed.rows()] == [2, 3, 5, 6], "an older truncate changes nothing"


def test_a_batch_that_comes_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bed = CdcBed(spark, tmp_path).prepare()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "D", None, None))
    before = bed.versions()
    bed.apply((1, 2, "U", "never", "x"), batch=0)
    assert bed.versions() == before
    assert bed.rows() == [{"id": 1, "name": "a", "city": "x"}]


@pytest.mark.parametrize(
    "spec", long_after(1, [SPEC, replace(SPEC, ignore_null_updates=True)]), ids=["ties", "by value"]
)
def test_a_batch_of_more_rows_than_are_sent_around_comes_to_the_same(
    spec: CdcSpec, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (scd1_by_value, scd1):
        monkeypatch.setattr(module, "BROADCAST_ROWS", 0)
    bed = CdcBed(spark, tmp_path, spec).prepare()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"), (3, 1, "U", "c", "x"))
    bed.apply((1, 1, "U", "z", "x"), (2, 2, "U", "d", "x"), (3, 2, "D", None, None), (4, 1, "U", "e", "x"))
    assert {row["id"]: row["name"] for row in bed.rows()} == {1: "z", 2: "d", 4: "e"}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each comparison of a target's rows with a batch."""
    found, fates = [], scd1._fates
    monkeypatch.setattr(scd1, "_fates", lambda *given: found.append(given) or fates(*given))
    return found


TOLD = {
    "BIGINT": True,
    "TIMESTAMP": True,
    "DATE": True,
    "STRING": True,
    "TIMESTAMP_NTZ": False,
    "DECIMAL(9, 1)": False,
}
"""Types of sequences, and whether the bounds that statistics have of them are compared."""


@pytest.mark.parametrize("kind", long_after(1, TOLD))
@pytest.mark.parametrize("table", long_after(1, [TABLE, WITHOUT_VECTORS]), ids=["marked", "written again"])
def test_rows_are_compared_with_a_batch_unless_statistics_say_that_all_are_older(
    compared: list[Any], table: Table, kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path, SPEC, f"id INT, at {kind}, op STRING, name STRING").prepare(table)
    at = "at" if kind in ("BIGINT", "DECIMAL(9, 1)") else "'2026-01-0' || at || ' 12:00:00.123456'"

    def apply(number: int, *rows: tuple[int, int, str, str]) -> dict[int, str]:
        compared.clear()
        frame = spark.createDataFrame(rows, "id INT, at INT, op STRING, name STRING")
        frame = frame.withColumn("at", F.expr(f"CAST({at} AS {kind})"))
        apply_changes(frame, SPEC, bed.path, Step(bed.query_id, number), nullcontext)
        return {row["id"]: row["name"] for row in bed.rows()}

    apply(0, (1, 1, "U", "a"), (2, 1, "U", "b"), (3, 1, "D", ""), (4, 1, "U", "d"))
    shown = apply(1, (1, 2, "U", "new"), (2, 3, "D", ""), (2, 2, "U", "b"), (3, 2, "U", "back"))
    assert (shown, bool(compared)) == ({1: "new", 3: "back", 4: "d"}, not TOLD[kind])
    shown = apply(2, (4, 2, "U", "later"), (2, 2, "U", "late"), (1, 2, "U", "same"))
    assert shown == {1: "same", 3: "back", 4: "later"}
    assert compared, "one of the rows is as old as its change"


def test_a_key_with_many_changes_is_reduced_by_each_task_that_reads_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, plans, reduce = CdcBed(spark, tmp_path).prepare(), [], scd1.reduce

    def watched(*given: Any) -> DataFrame:
        reduced = reduce(*given)
        plans.append(reduced._jdf.queryExecution().executedPlan().toString())
        return reduced

    monkeypatch.setattr(scd1, "reduce", watched)
    bed.apply(*((1, at, "U", str(at), "x") for at in range(100)))
    assert [row["name"] for row in bed.rows()] == ["99"]
    before, _, after = plans[0].partition("Exchange hashpartitioning")
    assert "partial_max" not in before and "partial_max" in after, "grouped before it is brought together"


@pytest.mark.long
@pytest.mark.parametrize("spec", [SPEC, VERSIONS], ids=["type 1", "type 2"])
def test_a_batch_is_applied_by_the_code_that_was_compiled_for_those_before(
    spec: CdcSpec, spark: SparkSession, tmp_path: Path
) -> None:
    """No number of a batch, such as its time or the bounds of its keys, is part of the code."""
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    bed = CdcBed(spark, tmp_path, spec).prepare()
    bed.apply(*((key, 1, "U", "a", "x") for key in range(400)))
    for number in range(2, 7):
        before = compiled.getCount()
        bed.apply(*((key, number, "DU"[key % 7 > 0], "b", "x") for key in range(8 + number, 390 - number)))
    assert compiled.getCount() == before


@pytest.mark.long
def test_a_batch_asks_the_jvm_neither_for_call_sites_nor_for_what_went_wrong(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would do both thousands of times a batch: for each column, and at each list's end."""
    bed = CdcBed(spark, tmp_path).prepare()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "a", "x"))
    batch, asked, send = (
        bed.frame([(1, 2, "U", "b", "x"), (2, 2, "D", "b", "x")]),
        [],
        JavaClient.send_command,
    )
    monkeypatch.setattr(
        JavaClient, "send_command", lambda *given, **more: asked.append(given[1]) or send(*given, **more)
    )
    apply_changes(batch, bed.spec, bed.path, Step(bed.query_id, 1), nullcontext)
    assert not [what for what in asked if "PySparkCurrentOrigin" in what or "exceptionString" in what]
    asked.clear()
    F.col("id") + 1
    assert [what for what in asked if "PySparkCurrentOrigin" in what], "a user's own columns have theirs"


@pytest.mark.long
@pytest.mark.parametrize(("spec", "most"), [(SPEC, 170), (VERSIONS, 280)], ids=["type 1", "type 2"])
def test_a_later_batch_makes_few_columns(
    spec: CdcSpec, most: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes some calls of the JVM, so those that know no batch are made once for a layout."""
    bed, asked, send = CdcBed(spark, tmp_path, spec).prepare(), [], JavaClient.send_command
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "a", "x"))
    batch = bed.frame([(1, 2, "U", "b", "x"), (2, 2, "D", "b", "x")])
    monkeypatch.setattr(
        JavaClient, "send_command", lambda *given, **more: asked.append(given[1]) or send(*given, **more)
    )
    apply_changes(batch, bed.spec, bed.path, Step(bed.query_id, 1), nullcontext)
    assert 0 < sum("org.apache.spark.sql.functions" in what for what in asked) <= most


@pytest.mark.parametrize("spec", [SPEC, VERSIONS], ids=["type 1", "type 2"])
def test_twice_the_columns_are_twice_the_expressions_of_a_batch(spec: CdcSpec, spark: SparkSession) -> None:
    """Not four times: 350 columns would fill the heap of a driver. A map is compared by its entries."""

    def written(columns: int) -> int:
        more = [f"a_column_{number} INT" for number in range(columns)]
        schema = StructType.fromDDL(f"id INT, at BIGINT, op STRING, m MAP<STRING, INT>, {', '.join(more)}")
        layout = layout_of(target_schema(schema, spec), spec.keys)
        made = (*events._columns(schema, spec, layout), scd1._row_of_target(layout))
        return sum(len(str(one)) for one in made)

    assert written(160) < 2.2 * written(80)


def test_no_answer_of_the_jvm_in_a_batch_is_so_long_that_its_rest_waits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than 8 KB the rest comes 40 ms later: so the list of a table's files is read in pieces."""
    bed = CdcBed(spark, tmp_path).prepare()
    with with_settings(spark, {"spark.sql.files.maxRecordsPerFile": "1"}):
        bed.apply(*((key, 1, "U", f"{key}", "x") for key in range(40)))
    batch, answers, send = bed.frame([(1, 20, "U", "b", "x")]), [], JavaClient.send_command
    monkeypatch.setattr(
        JavaClient, "send_command", lambda *given, **more: answers.append(send(*given, **more)) or answers[-1]
    )
    apply_changes(batch, bed.spec, bed.path, Step(bed.query_id, 1), nullcontext)
    assert sum(map(len, answers)) > 2 * 8_192, "the list is long"
    assert max(len(answer.encode()) for answer in answers) <= 8_192


def test_a_long_answer_in_pieces_has_all_its_characters(spark: SparkSession) -> None:
    java = classes(spark)
    given = ['\N{GRINNING FACE}\\"\n é' * 3_000, "a" * 3_997]
    assert json_of(java, scala_seq(java, given)) == given
    assert json_of(java, scala_seq(java, [])) == []
