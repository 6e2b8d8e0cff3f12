"""Deletes that were remembered by earlier batches: those that still end something are found, files of others
are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from streamkeeper_jobs.cdc import remembered

from streamkeeper.delta.remembered import Run
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import SPEC, CdcBed, killed_before_the_target

SEQUENCES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "decimals": ("at DECIMAL(38, 6)", lambda n: Decimal(f"{10**30 + n}.000001")),
    "microseconds": (
        "at TIMESTAMP",
        lambda n: datetime(2026, 10, 25, 0, 59, 59, 999_900, tzinfo=timezone.utc) + timedelta(microseconds=n),
    ),
    "texts": (
        "at STRING",
        lambda n: "a prefix that is longer than what statistics hold of a text " + chr(ord("a") + n),
    ),
    "several columns": ("at BIGINT, n INT", lambda n: (7, n)),
}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note of each batch how many runs of remembered deletes it reads."""
    runs: list[int] = []
    really = remembered._read

    def noted(session: SparkSession, path: str, schema: StructType, some: Sequence[Run]) -> DataFrame | None:
        runs.extend([len(some)] if some else [])
        return really(session, path, schema, some)

    monkeypatch.setattr(remembered, "_read", noted)
    return runs


@pytest.mark.parametrize(("columns", "at"), long_after(1, SEQUENCES.values()), ids=SEQUENCES)
def test_a_stored_delete_ends_what_is_not_newer_whatever_the_sequences_are(
    columns: str, at: Callable[[int], Any], read: list[int], spark: SparkSession, tmp_path: Path
) -> None:
    several = columns.endswith("n INT")
    names = ("at", "n") if several else ("at",)
    spec = replace(SPEC, sequence_by=names, except_column_list=("op", *names))
    bed = CdcBed(spark, tmp_path, spec, f"id INT, {columns}, op STRING").prepare()

    def change(key: int, number: int, op: str) -> tuple[Any, ...]:
        return (key, *(at(number) if several else (at(number),)), op)

    bed.apply(change(1, 5, "D"), change(2, 5, "D"), change(3, 5, "D"), change(5, 2, "U"))
    bed.apply(change(4, 9, "D"))
    bed.apply(change(1, 5, "U"), change(2, 6, "U"), change(4, 9, "U"))
    assert [row["id"] for row in bed.rows()] == [2, 5], (
        "one at the very sequence of its delete is ended, one after it is not"
    )
    bed.apply(change(3, 4, "U"), change(4, 10, "U"), change(5, 3, "D"))
    assert [row["id"] for row in bed.rows()] == [2, 4], "an older file is read for one that is late"
    before = len(read)
    bed.apply(change(1, 2000, "U"), change(2, 2000, "U"), change(3, 2000, "D"))
    assert [row["id"] for row in bed.rows()] == [1, 2, 4]
    assert (len(read) == before) == (not several), "no file is read where statistics tell that none matters"


def test_no_run_of_deletes_is_read_that_is_older_than_all_of_the_batch(
    read: list[int], spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path).prepare()
    for number in (10, 20, 30):
        bed.apply(*((key, number + key, "D" if key < 3 else "U", "a", "x") for key in range(5)))
    assert read == []
    bed.apply((1, 25, "U", "late", "x"), (2, 33, "U", "new", "x"), (4, 40, "D", None, None))
    assert read == [1], "of three files the one that has a delete after the late one"
    assert [row["id"] for row in bed.rows()] == [2, 3]


@pytest.mark.long
def test_beside_a_truncate_all_deletes_are_looked_up(
    read: list[int], spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path).prepare()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"))
    with killed_before_the_target():
        CdcBed(spark, tmp_path, query_id="other").apply((1, 3, "D", None, None), (None, 9, "T", None, None))
    bed.apply((1, 5, "U", "too old", "x"))
    assert read == [1], "the delete that is older than the upsert"
    assert [row["id"] for row in bed.rows()] == [2], "the key whose row was looked for is ended already"
