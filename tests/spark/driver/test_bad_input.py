"""A batch that fails each time for the same value, file or function: what the park names, after how many
tries, and how the flow goes on.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
SCHEMA = "event_id STRING, user_id INT, n STRING, event_time TIMESTAMP"
UDF = """
@F.udf("int")
def whole(n):
    return int(n)
"""
TABLE = 'dp.create_streaming_table("events")'
SINK = """
@dp.foreach_batch_sink(name="events")
def events_sink(rows, batch, transaction):
    {body}
"""
CDC = """dp.create_auto_cdc_flow(name="clean_events", target="events", source="distinct_events",
    keys=["event_id"], sequence_by="event_time", trigger="200 milliseconds")
"""


def cast(text: str = "CAST(n AS INT)") -> str:
    return f'.selectExpr("event_id", "user_id", "{text} AS n", "event_time")'


def auto_cdc(view: str) -> str:
    text = pipeline(schema=SCHEMA, view=view)
    return text[: text.index("@dp.append_flow")] + CDC


def updating(view: str) -> str:
    text = pipeline(schema=SCHEMA, view=view, flow='events.groupBy("event_id").agg(F.max("n").alias("n"))')
    return text.replace(TABLE, 'dp.create_streaming_table("events", keys=["event_id"])').replace(
        "append_flow", "update_flow"
    )


def sunk(body: str, view: str = "") -> str:
    return pipeline(schema=SCHEMA, view=view).replace(TABLE, SINK.format(body=body))


@dataclass(frozen=True)
class Case:
    """A pipeline, the ``n`` of its one event, and what the park says."""

    text: str
    said: tuple[str, ...]
    n: str = "abc"
    code: str = "CAST_INVALID_INPUT"
    user: int = 0
    files: dict[str, bytes] = field(default_factory=dict)


INVALID = ("'abc'", "CAST(n AS INT)", "try_cast", "quarantine")
CASES = {
    "cast in an append flow": Case(pipeline(schema=SCHEMA, view=cast()), INVALID),
    "cast of a DataFrame": Case(
        pipeline(schema=SCHEMA, view='.withColumn("n", F.col("n").cast("int"))'),
        ('"cast" was called from', "/pipelines/events.py:"),
    ),
    "decimals": Case(
        pipeline(schema=SCHEMA, view=cast("CAST(n AS DECIMAL(38,0)) * CAST(n AS DECIMAL(38,0))")),
        ("cannot be represented as Decimal(38, 0)", "* CAST(n AS DECIMAL(38,0))"),
        n="9" * 38,
        code="NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION",
    ),
    "division by zero": Case(
        pipeline(schema=SCHEMA, view=cast("1 / user_id")),
        ("1 / user_id", "try_divide"),
        code="DIVIDE_BY_ZERO",
    ),
    "function of Python": Case(
        pipeline(schema=SCHEMA, more=UDF, view='.withColumn("n", whole("n"))'),
        (
            "ValueError: invalid literal for int() with base 10: 'abc'",
            "/pipelines/events.py, line 9, in whole",
        ),
        code="PYTHON_EXCEPTION",
    ),
    "cast in AUTO CDC": Case(auto_cdc(cast()), INVALID),
    "cast in an update flow": Case(updating(cast()), INVALID),
    "cast in a sink of a function": Case(sunk("rows.collect()", view=cast()), INVALID),
    "function of a sink": Case(
        sunk("[int(row.n) for row in rows.collect()]"),
        ("invalid literal for int() with base 10: 'abc'", "/pipelines/events.py, line 15"),
        code="ValueError",
    ),
    "cast in a shared driver": Case(
        pipeline(schema=SCHEMA, view=cast(), more="dp.configure_pipeline(shared_driver=True)"), INVALID
    ),
    "cut-off gzip": Case(
        pipeline(schema=SCHEMA),
        ("/events/bad%20file.json.gz", "EOFException", "pathGlobFilter", "backfill"),
        code="FAILED_READ_FILE.NO_HINT",
        files={"bad file.json.gz": gzip.compress(b'{"event_id": "e9"}\n' * 10_000)[:-40]},
    ),
    "no Parquet": Case(
        pipeline(source=f'format="parquet", path="{{data}}/events", schema="{SCHEMA}"'),
        ("/events/bad.parquet is not a Parquet file", "pathGlobFilter", "backfill"),
        code="FAILED_READ_FILE.NO_HINT",
        files={"bad.parquet": b"garbage of some length that is no Parquet"},
    ),
    "Parquet with a broken footer": Case(
        pipeline(source=f'format="parquet", path="{{data}}/events", schema="{SCHEMA}"'),
        ("/events/bad.parquet", "can not read class org.apache.parquet.format.FileMetaData"),
        code="FAILED_READ_FILE.NO_HINT",
        files={"bad.parquet": b"PAR1" + b"x" * 100 + b"\x40\0\0\0PAR1"},
    ),
}


def failing(make_bed: Make, case: Case) -> Flowbed:
    """Make the bed of a case, with its input."""
    bed = make_bed(case.text)
    for name, content in case.files.items():
        (bed.root / "data/events" / name).write_bytes(content)
    if not case.files:
        row = {"event_id": "e1", "user_id": case.user, "n": case.n, "event_time": "2026-01-01T00:00:00Z"}
        bed.put([row], "events")
    return bed


@pytest.mark.parametrize("name", long_after(1, CASES))
def test_what_fails_each_time_for_its_input_is_parked_after_three_tries_and_says_all(
    make_bed: Make, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    bed = failing(make_bed, case)
    assert [bed.run() for _ in range(4)] == [
        Outcome.FAILED, Outcome.FAILED, Outcome.PARKED, Outcome.HELD,
    ]  # fmt: skip
    said = capsys.readouterr().out
    for part in case.said:
        assert said.count(part) >= 3, f"{part} in {said}"
    assert "try 1 of 3 that failed so at batch 0; it is tried again" in said
    details = bed.park().details
    assert (details["classed"], details["recovery"]) == ("input at fault", None)
    assert case.said[0] in bed.park().reason, "where the flow is listed, and in the events"
    assert case.code in (details["condition"], details["context"]["type"])
    first = leases.failure_of(bed.home, 1)
    assert first is not None and first["particulars"] == details["particulars"], "the first try told as much"


def test_a_corrected_view_reads_the_batch_again_whole(make_bed: Make) -> None:
    bed = make_bed(pipeline(schema=SCHEMA, view=cast()).replace("trigger=", "park_after=1, trigger="))
    bed.put([{**row(1), "n": "1"}, {**row(2), "n": "abc"}, {**row(3), "n": "3"}], "events")
    assert bed.run() is Outcome.PARKED
    bed.declare(pipeline(schema=SCHEMA, view=cast("try_cast(n AS INT)")))
    assert bed.run() is Outcome.STOPPED
    bed.holds([{**row(1), "n": 1}, {**row(2), "n": None}, {**row(3), "n": 3}])


@pytest.mark.long
def test_a_broken_file_is_left_out_by_a_pattern_and_the_others_of_its_batch_are_read(make_bed: Make) -> None:
    bed = failing(make_bed, CASES["cut-off gzip"])
    bed.put([{**row(1), "n": "1"}], "events")
    assert [bed.run() for _ in range(3)][-1] is Outcome.PARKED
    bed.declare(pipeline(schema=SCHEMA).replace('"maxFiles', '"pathGlobFilter": "[!_]*.json*", "maxFiles'))
    bad = bed.root / "data/events/bad file.json.gz"
    bad.rename(bad.with_name("_bad.json.gz"))
    assert bed.run() is Outcome.STOPPED
    bed.holds([{**row(1), "n": "1"}])


def test_other_batches_and_other_declarations_of_tries_have_a_count_of_their_own(make_bed: Make) -> None:
    text = pipeline(schema=SCHEMA, view=cast(), files=1).replace("trigger=", "park_after=2, trigger=")
    bed = make_bed(text)
    bad = bed.put([{**row(1), "n": "abc"}], "events")
    assert bed.run() is Outcome.FAILED
    bad.write_text(bad.read_text().replace("abc", "1"))
    bed.put([{**row(2), "n": "abc"}], "events")
    assert [bed.run() for _ in range(2)] == [Outcome.FAILED, Outcome.PARKED]
    assert bed.park().details["batch"] == 1
    holds.release(bed.home, holds.PARK)
    bed.declare(text.replace("park_after=2", 'park_after=2, on_failure="retry"'))
    assert bed.run() is Outcome.RETRY_DECLARED


def row(number: int) -> dict[str, object]:
    return {"event_id": f"e{number}", "user_id": 0, "event_time": "2026-01-01T00:00:00Z"}
