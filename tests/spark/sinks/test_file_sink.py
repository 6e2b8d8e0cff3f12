"""A sink of files: exact by Spark's own log, also over generations, which Spark alone would skip."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from streamkeeper_jobs.generation.fence_earlier import fence_earlier
from streamkeeper_jobs.sinks import each_batch, file_sink

from streamkeeper.declare.model import Location, Table
from streamkeeper.errors import DeclarationError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import EARLIEST, EMPTY, StartAt
from tests.oracle import counted
from tests.worlds.drivers import cut_off
from tests.worlds.flow_world import COLUMNS, NAME, Flowbed
from tests.worlds.flows.sinks import in_copies, in_files, into, into_files, into_function
from tests.worlds.tables.backup_world import Recoverer


def declare(bed: Flowbed, format: str, folder: str = "out") -> None:
    bed.declare(into_files(format, folder))


def is_exact(bed: Flowbed, format: str, times: int = 1) -> None:
    """Assert that a reader that knows Spark's log finds each event so many times."""
    assert counted(in_files(bed, format), COLUMNS) == counted(bed.events * times, COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_are_exact_over_a_driver_that_died_before_its_note_and_over_generations(
    bed: Flowbed, at_work: Recoverer, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    declare(bed, format)
    bed.arrive(1, 2)
    bed.arrive(3)
    with monkeypatch.context() as patch:
        cut_off(each_batch, "_note", 2, patch, after=False)
        assert bed.run() is Outcome.FAILED
    is_exact(bed, format)
    assert bed.run() is Outcome.STOPPED, "the batch that is there is not written again"
    is_exact(bed, format)
    for number in count(4):  # over an entry that has those before it, which is every tenth
        bed.arrive(number)
        assert bed.run() is Outcome.STOPPED
        if number == 12:
            break
    with monkeypatch.context() as patch:
        cut_off(each_batch, "_note", 1, patch, after=False)
        bed.arrive(13)
        assert bed.run() is Outcome.FAILED
    assert at_work.impacts("reset_checkpoint", flow=NAME) == [], "whether it is there is certain"
    bed.reset()
    bed.arrive(14)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, format)
    bed.reset(StartAt(EARLIEST), state=EMPTY)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, format, times=2)


def test_a_batch_whose_files_are_not_there_is_read_again_after_a_reset(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(bed, "parquet")
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(2)
    with monkeypatch.context() as patch:
        cut_off(each_batch.FileSink, "write", 1, patch, after=False)
        assert bed.run() is Outcome.FAILED
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, "parquet")


def test_a_driver_that_comes_back_late_adds_nothing(bed: Flowbed, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(bed, "parquet")
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(2)
    write, add = file_sink.FileSink.write, file_sink.add
    sinks, raced = list[file_sink.FileSink](), list[int]()

    def seen(sink: file_sink.FileSink, rows: Any, number: int) -> Any:
        sinks.append(sink)
        return write(sink, rows, number)

    def late(sink: Any, entry: int, rows: Any) -> None:
        """Let the next generation fence this one between the look at the log and the write."""
        fence_earlier(replace(sinks[0]._job, watch=Mock()), bed.reset())
        add(sink, entry, rows)
        raced.append(entry)

    with monkeypatch.context() as patch:
        patch.setattr(file_sink.FileSink, "write", seen)
        patch.setattr(file_sink, "add", late)
        bed.run()
    assert len(raced) == 1
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, "parquet")


@pytest.mark.long
def test_a_folder_that_another_query_writes_is_refused(bed: Flowbed) -> None:
    declare(bed, "json")
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    log = bed.root / "data" / "out" / "_spark_metadata"
    newest = max(int(item.name) for item in log.iterdir() if item.name.isdecimal())
    for number in (newest + 1, newest + 2):
        (log / str(number)).write_text("v1\n" + json.dumps({"path": "x"}) + "\n")
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert "another query writes there" in str(bed.park().details)


@pytest.mark.long
def test_a_flow_goes_on_with_another_sink_from_where_it_was(bed: Flowbed) -> None:
    bed.declare(into_function(bed))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    declare(bed, "json")
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    declare(bed, "parquet", "next")
    bed.arrive(3)
    assert bed.run() is Outcome.PARKED, "its entries are in the other folder"
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    parts = [in_copies(bed), in_files(bed, "json"), in_files(bed, "parquet", "next")]
    assert [[row["n"] for row in part] for part in parts] == [[1], [2], [3]]


@pytest.mark.long
def test_a_table_does_not_become_a_sink_of_its_name(bed: Flowbed) -> None:
    bed.declare(into('dp.create_streaming_table("events")'))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    declare(bed, "json")
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert "the sink events has the name of a table that is there" in str(bed.park().details)


def test_rows_that_csv_cannot_take_are_refused() -> None:
    from pyspark.sql.types import StructType

    table = Table("out", None, {"path": "/out"}, (), Location("p.py", 2), sink="csv")
    with pytest.raises(DeclarationError, match=r"the sink out gets the column b, which is nested"):
        each_batch.check_rows(table, StructType.fromDDL("a INT, b STRUCT<c: INT>"))
