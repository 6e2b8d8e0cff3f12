"""Batches that are left half done, their tombstones written and their target not, and come again after
another flow's batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentTransactionException
from pyspark.sql import DataFrame, SparkSession
from streamkeeper_jobs.cdc import Step, app_ids, apply_changes, replace_rows, tombstones
from streamkeeper_jobs.spark.delta_table import seal

from streamkeeper.declare.cdc_spec import END_AT, START_AT, CdcSpec
from streamkeeper.delta.log import last_transaction, latest_version
from tests.worlds.cdc_world import SPEC, CdcBed, alone, killed_before_the_target
from tests.worlds.suites import long_after

VERSIONS = replace(SPEC, scd_type=2, apply_as_truncates=None)
HALF_DONE = ((2, 1, "D", None, None), (1, 3, "U", "a", "x"))
"""What another flow does meanwhile decides whether the upsert is hidden."""
MEANWHILE = ((1, 1, "U", "a", "x"), (1, 5, "U", "a", "x"))
LATE = (1, 2, "U", "b", "x")
COMES_TO = [(1, "a", 1, 2), (1, "b", 2, 3), (1, "a", 3, None)]


@pytest.fixture
def flows(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[CdcBed, CdcBed]]:
    """Make two flows of one table."""

    def make(spec: CdcSpec) -> tuple[CdcBed, CdcBed]:
        one, other = (CdcBed(spark, tmp_path, spec, query_id=name).prepare() for name in ("one", "other"))
        return one, other

    return make


def shown(bed: CdcBed) -> list[tuple[Any, ...]]:
    versions = [(row["id"], row["name"], row[START_AT], row[END_AT]) for row in bed.rows()]
    return sorted(versions, key=lambda version: version[:1] + version[2:3])


def remembered(bed: CdcBed) -> list[tuple[Any, ...]]:
    found = bed.tombstones().collect()
    return sorted((row["kind"], row["key"]["id"], row["sequence"]) for row in found)


def test_a_batch_that_comes_again_remembers_what_is_hidden_by_then(
    flows: Callable[..., tuple[CdcBed, CdcBed]],
) -> None:
    one, other = flows(VERSIONS)
    with killed_before_the_target():
        one.apply(*HALF_DONE, batch=0)
    assert remembered(one) == [("delete", 2, 1)]
    other.apply(*MEANWHILE)
    one.apply(*HALF_DONE, batch=0)
    assert ("upsert", 1, 3) in remembered(one)
    assert remembered(one).count(("delete", 2, 1)) == 1
    other.apply(LATE)
    assert shown(one) == COMES_TO


@pytest.mark.long
def test_a_batch_that_meets_another_commit_remembers_what_is_hidden_by_then(
    flows: Callable[..., tuple[CdcBed, CdcBed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = flows(VERSIONS)
    one.apply((1, 0, "D", None, None))
    really = replace_rows.Opened.replace

    def meet(*given: Any) -> None:
        monkeypatch.setattr(replace_rows.Opened, "replace", really)
        other.apply(*MEANWHILE)
        really(*given)

    monkeypatch.setattr(replace_rows.Opened, "replace", meet)
    one.apply(*HALF_DONE)
    other.apply(LATE)
    assert shown(one) == COMES_TO


@pytest.mark.parametrize(
    "spec",
    long_after(1, [SPEC, VERSIONS, replace(VERSIONS, ignore_null_updates=True)]),
    ids=["1", "2", "2, ignoring nulls"],
)
def test_a_batch_that_comes_again_writes_no_tombstones_where_nothing_came_between(
    spec: CdcSpec, flows: Callable[..., tuple[CdcBed, CdcBed]]
) -> None:
    one, _ = flows(spec)
    rows = [*MEANWHILE, *HALF_DONE, *([(None, 0, "T", None, None)] if spec.apply_as_truncates else [])]
    with killed_before_the_target():
        one.apply(*rows, batch=0)
    before = latest_version(one.tables.tombstones)
    for _ in range(2):
        one.apply(*rows, batch=0)
        assert latest_version(one.tables.tombstones) == before


@pytest.mark.long
def test_a_batch_whose_tombstones_were_put_back_in_between_writes_them_again(
    flows: Callable[..., tuple[CdcBed, CdcBed]],
) -> None:
    """As where the table is put back for another flow, and this one only waits."""
    one, other = flows(SPEC)
    before = latest_version(one.tables.tombstones)
    with killed_before_the_target():
        one.apply((1, 5, "D", None, None), batch=0)
    one.spark.sql(f"RESTORE delta.`{one.tables.tombstones}` TO VERSION AS OF {before}")
    one.apply((1, 5, "D", None, None), batch=0)
    other.apply((1, 4, "U", "late", "x"))
    assert one.rows() == []


@pytest.mark.long
def test_what_is_appended_again_carries_the_step_so_that_recoveries_know_whose_it_is(
    flows: Callable[..., tuple[CdcBed, CdcBed]],
) -> None:
    one, other = flows(VERSIONS)
    with killed_before_the_target():
        one.apply(*HALF_DONE, batch=0)
    other.apply(*MEANWHILE)
    one.apply(*HALF_DONE, batch=0)
    (path, app_id), _ = app_ids(one.tables, one.query_id)
    assert last_transaction(path, app_id, at_most=1).version == 0


@pytest.mark.long
def test_a_generation_that_is_sealed_before_its_batch_comes_again_changes_nothing(
    flows: Callable[..., tuple[CdcBed, CdcBed]],
) -> None:
    one, other = flows(VERSIONS)
    with killed_before_the_target():
        one.apply(*HALF_DONE, batch=0)
    other.apply(*MEANWHILE)
    seal(one.spark, *app_ids(one.tables, one.query_id)[0], lambda: None)
    before, was = latest_version(one.tables.tombstones), shown(one)
    one.apply(*HALF_DONE, (3, 1, "U", "c", "x"), batch=0)
    assert (latest_version(one.tables.tombstones), shown(one)) == (before, was)


@pytest.mark.long
def test_a_seal_that_comes_while_tombstones_are_appended_again_keeps_them_out(
    flows: Callable[..., tuple[CdcBed, CdcBed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = flows(VERSIONS)
    with killed_before_the_target():
        one.apply(*HALF_DONE, batch=0)
    other.apply(*MEANWHILE)
    was, really = remembered(one), tombstones._lacking

    def sealed_meanwhile(*given: Any) -> DataFrame:
        seal(one.spark, *app_ids(one.tables, one.query_id)[0], lambda: None)
        return really(*given)

    monkeypatch.setattr(tombstones, "_lacking", sealed_meanwhile)
    with pytest.raises(ConcurrentTransactionException):
        apply_changes(one.frame(HALF_DONE), VERSIONS, one.tables, Step(one.query_id, 0), alone)
    assert remembered(one) == was
