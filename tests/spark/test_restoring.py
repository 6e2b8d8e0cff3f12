"""Restores of real tables: what was backed up is put back whole, flows go on from where it stood, and a kill anywhere changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper import generations
from streamkeeper.outcomes import Outcome
from tests.spark.backupbed import Recoverer
from tests.spark.flowbed import Flowbed

TABLE = "events.events"


@pytest.fixture
def at_work(bed: Flowbed, spark: SparkSession) -> Recoverer:
    return Recoverer(spark, bed.settings, "events")


def drop(table: Path) -> None:
    shutil.rmtree(table)


def leave(table: Path) -> None:
    """Nothing happens to the table besides what its flow wrote."""


@pytest.mark.parametrize("then", [drop, leave], ids=["dropped", "still there"])
def test_an_append_flow_goes_on_from_the_batch_that_belongs_to_the_backup(
    spark: SparkSession, bed: Flowbed, at_work: Recoverer, then: Callable[[Path], None]
) -> None:
    for numbers in ((0, 1, 2), (3, 4), (5, 5, 1)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    at_work.backup("b1", TABLE)
    bed.arrive(6, 7)
    bed.arrive(7, 0)
    assert bed.run() is Outcome.STOPPED
    then(bed.table)
    evidence = at_work.run("restore_table", "r1", table=TABLE, backup="newest")
    assert evidence["verify_rows"]["tables"]["target"]["rows"] == 6
    newest = generations.latest(bed.home)
    assert newest is not None and newest.number == 2 and newest.recovery == "r1"
    bed.arrive(8)
    assert bed.run() is Outcome.STOPPED
    bed.holds([{**item} for item in {event["event_id"]: event for event in bed.events}.values()])
