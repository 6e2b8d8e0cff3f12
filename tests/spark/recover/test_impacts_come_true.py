"""What a plan says that a recovery costs is what its table shows afterwards: rows lost or twice, by a plain
oracle.

Every case is a flow of its own with a random history, some of whose batches read nothing and write rows. The
seed is part of the case (``STREAMKEEPER_SEED``, 1); a seed that failed once is kept among the cases.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from streamkeeper.support.amounts import DUPLICATES
from tests.worlds.flow_world import Flowbed
from tests.worlds.recover.impact_world import (
    FILES,
    QUERIES,
    RECOVERIES,
    Brokers,
    Case,
    Feed,
    Impactd,
    files,
)
from tests.worlds.state_stores import PROVIDER, ROCKS

SEED = int(os.environ.get("STREAMKEEPER_SEED", "1"))


@pytest.fixture(autouse=True)
def own_store(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    """Let a query of one's own state keep it in RocksDB, as a driver's own application that declares it
    does.
    """
    if "timers" in request.node.name:
        spark.conf.set(PROVIDER, ROCKS)


def test_a_rewind_counts_the_windows_that_a_batch_without_rows_had_written(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(QUERIES["windows"].text(files(1)))
    bed.arrive(*range(0, 1200, 5))
    impactd = Impactd(Feed(bed, files(1), bed.arrive), QUERIES["windows"], Random(1))
    impactd.run()
    assert bed.checkpoint(1).last_commit() == 1
    written = len(bed.rows())
    assert written > 100
    impactd._values = lambda _: {"flow": "events.clean_events", "batch": "0"}  # type: ignore[method-assign]
    plan = impactd.plan("rewind kept", ())
    assert [refusal.impact for refusal in plan.refusals] == [DUPLICATES]
    assert f"the table events: {written} rows that it has" in plan.refusals[0].message
    impactd.plan("rewind kept")
    impactd.carry_out()
    bed.arrive(1300)
    impactd.run()
    found = Counter((row["first"], row["many"]) for row in bed.rows())
    assert sum(many == 2 for many in found.values()) == written


@pytest.fixture
def brokers_if_needed(request: pytest.FixtureRequest) -> Brokers:
    """Start the broker for the cases alone whose source is Kafka."""
    return lambda: str(request.getfixturevalue("brokers"))


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        Case("dedupe", "offsets", FILES, 3),
        Case("windows", "earliest", FILES, 1),
        Case("outer join", "rewind kept", FILES, 2),
    ],
    ids=str,
)
def test_rows_that_come_twice_are_those_that_the_plan_said(
    case: Case, spark: SparkSession, tmp_path: Path, brokers_if_needed: Brokers
) -> None:
    Impactd.make(tmp_path / "a bed", spark, case, brokers_if_needed).goes_through(case.recovery)


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_without_a_recovery_the_oracle_finds_nothing_lost_and_nothing_twice(
    query: str, spark: SparkSession, tmp_path: Path, brokers_if_needed: Brokers
) -> None:
    """The proof of the oracle: what it says of an undisturbed flow is what Spark writes.

    (The row of the last event was once counted as one too many for timers, with any recovery and without.)
    """
    case = Case.drawn(query, "none", SEED)
    impactd = Impactd.make(tmp_path / "a bed", spark, case, brokers_if_needed)
    impactd.ends()
    assert impactd.off() == (0, 0), "\n".join(impactd.did)


@pytest.mark.long
@pytest.mark.parametrize(("query", "recovery"), list(product(QUERIES, RECOVERIES)))
def test_whatever_the_query_and_the_recovery_the_impact_comes_true(
    query: str, recovery: str, spark: SparkSession, tmp_path: Path, brokers_if_needed: Brokers
) -> None:
    case = Case.drawn(query, recovery, SEED)
    print(case)
    Impactd.make(tmp_path / "a bed", spark, case, brokers_if_needed).goes_through(recovery)
