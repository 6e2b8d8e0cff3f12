"""Queries looked at without a checkpoint: planned on sources without rows, and sampled; nothing is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.trial.analyze import analyze
from streamkeeper_jobs.trial.sample import sample

from streamkeeper.declare.model import AppendFlow, AutoCdcFlow
from streamkeeper.errors import RequestError
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.trial.verdict import Compatibility, Verdict
from tests.worlds.flow_world import NAME, Flowbed, event, pipeline
from tests.worlds.sources.source_world import WITHIN
from tests.worlds.states.given import COLUMNS, TABLE, numbering, put_table

Make = Callable[..., Flowbed]
KAFKA = 'format="kafka", options={"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}'
EXPECTED = '@dp.expect("named", "{condition}")\n@dp.append_flow(name="clean'


def flow_of(bed: Flowbed) -> Flow:
    loaded = load_pipeline(bed.root / "pipelines" / "events.py", bed.settings.data)
    declared = loaded.flow("clean_events")
    assert isinstance(declared, AppendFlow | AutoCdcFlow)
    return Flow(loaded, declared, "not asked for")


def analyzed(bed: Flowbed, spark: SparkSession, tmp_path: Path) -> Verdict:
    empty = tmp_path / "no rows"
    empty.mkdir(exist_ok=True)
    return analyze(spark, bed.settings, flow_of(bed), empty)


@pytest.mark.parametrize(
    "case",
    [
        (pipeline(), Compatibility.COMPATIBLE, "Spark plans it."),
        (
            pipeline(source=KAFKA, view='.selectExpr("CAST(value AS STRING) AS n")'),
            Compatibility.COMPATIBLE,
            "plans it",
        ),
        (
            pipeline(flow='events.groupBy("user_id").count()'),
            Compatibility.INCOMPATIBLE,
            "events.py, line 14: Spark says",
        ),
        (
            pipeline(view='.where("m > 1")'),
            Compatibility.INCOMPATIBLE,
            "line 8: the function of view distinct_events raises",
        ),
        (
            pipeline().replace('@dp.append_flow(name="clean', EXPECTED.format(condition="m > 1")),
            Compatibility.INCOMPATIBLE,
            "the expectation 'named' of the flow clean_events has the condition 'm > 1', which Spark refuses",
        ),
        (pipeline(schema=None), Compatibility.UNKNOWN, "declares no schema, and"),
        (
            pipeline(source='format="delta", table="nowhere"'),
            Compatibility.UNKNOWN,
            "and there is no table yet",
        ),
    ],
    ids=["files", "Kafka", "output mode", "column", "expectation", "no schema", "no table"],
)
def test_a_query_is_planned_without_rows_brokers_or_state(
    case: tuple[str, Compatibility, str], make_bed: Make, spark: SparkSession, tmp_path: Path
) -> None:
    text, fit, said = case
    bed = make_bed(text)
    (bed.root / "data" / "events").rmdir()
    verdict = analyzed(bed, spark, tmp_path)
    assert (verdict.compatibility, said in verdict.reasons[0]) == (fit, True), verdict
    assert "\n" not in verdict.reasons[0]
    assert not (bed.root / "state").exists()


CHANGES = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/events", schema="id INT, at STRUCT<n: INT>, seen BOOLEAN")
dp.create_streaming_table("kept" %(table)s)


@dp.temporary_view(sources=["raw"])
def changes(raw):
    return raw%(view)s


dp.create_auto_cdc_flow(
    name="clean_events", target="kept", source="changes", keys=["id"], sequence_by=%(by)s,
    stored_as_scd_type=%(scd)s,
)
"""
APPENDED = pipeline(flow='events.withColumnRenamed("n", "a number")')
MAPPED = ", table_properties={'delta.columnMapping.mode': 'name'}"


def changes(by: str, view: str = "", table: str = "", scd: int = 1) -> str:
    return CHANGES % {"by": by, "view": view, "table": table, "scd": scd}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(changes('"at"'), "sequence_by names the column at of type struct<n:int>", id="struct"),
        pytest.param(
            changes('"seen"', scd=2), "sequence_by names the column seen of type boolean", id="boolean"
        ),
        pytest.param(changes('"at.n"'), "sequence_by names the column at.n, which is not there", id="nested"),
        pytest.param(
            changes('"id"', '.withColumnRenamed("seen", "was seen")'),
            "The column 'was seen' has a blank",
            id="name in AUTO CDC",
        ),
        pytest.param(
            changes('"id"', '.selectExpr("id", "named_struct(\'a=b\', 1) AS s")', scd=2),
            "The column 'a=b' has a blank or one of",
            id="name in a struct",
        ),
        pytest.param(APPENDED, "The column 'a number' has a blank", id="name"),
        pytest.param(
            changes('"id"', '.withColumnRenamed("seen", "was seen")', MAPPED), "Spark plans it.", id="mapped"
        ),
    ],
)
def test_what_a_driver_refuses_is_refused_before(
    text: str, said: str, make_bed: Make, spark: SparkSession, tmp_path: Path
) -> None:
    verdict = analyzed(make_bed(text), spark, tmp_path)
    assert said in verdict.reasons[0]
    assert verdict.compatibility is (
        Compatibility.COMPATIBLE if said == "Spark plans it." else Compatibility.INCOMPATIBLE
    )


def test_a_table_by_key_that_is_too_wide_for_the_heap_says_what_to_declare(
    make_bed: Make, spark: SparkSession, tmp_path: Path
) -> None:
    wide = changes('"id"', '.selectExpr("id", *[f"id AS c{number}" for number in range(349)])')
    verdict = analyzed(make_bed(wide), spark, tmp_path)
    assert verdict.compatibility is Compatibility.RESULTS_DIFFER, verdict
    assert "350 columns by key" in verdict.reasons[0]
    assert 'driver=dp.driver(driver_memory="3g")' in verdict.reasons[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        (numbering(), Compatibility.COMPATIBLE, "Spark plans it."),
        (
            numbering(read="given.count_so_far"),
            Compatibility.INCOMPATIBLE,
            "Attribute `count_so_far` is not supported",
        ),
        (numbering(handed_on=None), Compatibility.INCOMPATIBLE, "and its query does not begin with it"),
        (
            numbering(handed_on='given.selectExpr("bigint(user_id) id", "seen").groupBy("id")'),
            Compatibility.INCOMPATIBLE,
            "groups its rows by INT, but that by BIGINT",
        ),
        (
            numbering('rows=[{"a": ["x"]}]', 'schema="a ARRAY<INT>"'),
            Compatibility.INCOMPATIBLE,
            "do not fit 'a ARRAY<INT>'",
        ),
        (numbering(TABLE), Compatibility.INCOMPATIBLE, "is of the table known, and there is none"),
    ],
    ids=["fits", "column", "not handed on", "key", "nested value", "no table"],
)
def test_what_takes_an_initial_state_is_tried_with_it(
    case: tuple[str, Compatibility, str], make_bed: Make, spark: SparkSession, tmp_path: Path
) -> None:
    text, fit, said = case
    verdict = analyzed(make_bed(text), spark, tmp_path)
    assert (verdict.compatibility, said in verdict.reasons[0]) == (fit, True), verdict
    assert fit is Compatibility.COMPATIBLE or verdict.reasons[0].startswith("events.py, line "), verdict


@pytest.mark.long
def test_a_table_of_an_initial_state_has_the_declared_columns(
    make_bed: Make, spark: SparkSession, tmp_path: Path
) -> None:
    bed = make_bed(numbering(TABLE, COLUMNS))
    put_table(bed, {1: "ten"}, columns="user_id INT, seen STRING")
    (said,) = analyzed(bed, spark, tmp_path).reasons
    assert "which has the columns user_id INT,seen STRING. Declared are user_id INT, seen INT" in said


def test_a_sample_is_of_what_the_sources_hold(bed: Flowbed, spark: SparkSession) -> None:
    bed.arrive(1, 2)
    bed.arrive(2, 3)
    rows, name = sample(spark, bed.settings, flow_of(bed), 100)
    assert (name, sorted(row.n for row in rows.collect())) == ("clean_events", [1, 2, 3])
    rows, _ = sample(spark, bed.settings, flow_of(bed), 3, "events_raw")
    assert rows.count() == 3
    with pytest.raises(RequestError, match="It has clean_events, distinct_events, events_raw"):
        sample(spark, bed.settings, flow_of(bed), 3, "nothing")
    assert not (bed.root / "state").exists()
    assert not bed.table.exists()


def test_what_spark_drops_in_streams_alone_is_dropped_from_a_sample(
    make_bed: Make, spark: SparkSession
) -> None:
    bed = make_bed(pipeline(WITHIN))
    bed.arrive(1, 2)
    bed.arrive(2, 3)
    rows, _ = sample(spark, bed.settings, flow_of(bed), 100)
    assert sorted(row.n for row in rows.collect()) == [1, 2, 3]


@pytest.mark.long
def test_both_are_commands(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    state = bed.root / "state"

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "streamkeeper", *arguments],
            env={**os.environ, **bed.settings.as_environment()},
            capture_output=True,
            text=True,
            check=False,
        )

    checked = command("check", "--analyze", "--json")
    value = json.loads(checked.stdout)
    assert (checked.returncode, [one["compatibility"] for one in value["analyzed"]]) == (
        0,
        [Compatibility.COMPATIBLE],
    )
    kept = sorted(state.rglob("*"))
    shown = json.loads(command("run", NAME, "--sample", "1", "--of", "events_raw", "--json").stdout)
    assert (shown["of"], shown["columns"][0], len(shown["rows"])) == ("events_raw", "event_id", 1)
    assert shown["rows"][0][0] in {event(1)["event_id"], event(2)["event_id"]}
    assert sorted(state.rglob("*")) == kept
    assert not bed.table.exists()
    bed.declare(pipeline(flow='events.groupBy("user_id").count()'))
    refused = command("check", "--analyze")
    assert (refused.returncode, "UNSUPPORTED_OPERATION" in refused.stdout) == (1, True)
    nothing = command("run", NAME, "--sample", "1", "--of", "nothing")
    assert (nothing.returncode, "reads nothing that is called 'nothing'" in nothing.stderr) == (1, True)
