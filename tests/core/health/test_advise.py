"""Advice: each rule speaks at its bound, with the figures that it comes from, and is silent below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.checkpoint.log_entries import PROVIDER
from streamkeeper.declare.checks import STATE_STORES
from streamkeeper.declare.model import AppendFlow, Location
from streamkeeper.delta.summary import Summary
from streamkeeper.health.advise import Evidence, advise, in_words, unknown
from streamkeeper.watch.batch_numbers import Batch, Machinery

FLOW = AppendFlow("f", "totals", ("raw",), "code", "1 minute", {}, Location("p.py", 3))
BATCHES = tuple(
    Batch(number, 0.0, 10.0, 5_000, phases={"addBatch": 9.0, "walCommit": 0.1}) for number in range(1, 9)
)


def operator(rows: int = 40_000, partitions: int = 4, commit: int = 400, **custom: int) -> Mapping[str, Any]:
    return {
        "operatorName": "dedupe",
        "numRowsTotal": rows,
        "commitTimeMs": commit,
        "numShufflePartitions": partitions,
        "customMetrics": custom,
    }


def ran_on(*operators: Mapping[str, Any], executors: int = 1, changelog: bool = False) -> Machinery:
    return Machinery(8, 2, executors, changelog, operators=operators)


WELL = Evidence(FLOW, BATCHES, ran_on(operator()), polls=10, ran=8, table=Summary(7, 20, 20 * 2**20, {}, {}))


def about(evidence: Evidence) -> list[str]:
    return [advice.about for advice in advise(evidence)]


def with_operators(*operators: Mapping[str, Any], **more: Any) -> Evidence:
    return replace(WELL, machinery=ran_on(*operators, **more))


def batches(**changed: Any) -> Sequence[Batch]:
    return tuple(replace(batch, **changed) for batch in BATCHES)


def declared(**changed: Any) -> AppendFlow:
    return replace(FLOW, **changed)


def test_a_flow_that_is_well_gets_no_advice() -> None:
    assert (advise(WELL), list(unknown(WELL))) == ((), [])


ROCKS = {"rocksdbReadBlockCacheHitCount": 9_000}

CASES: dict[str, tuple[Evidence, Evidence, str, str]] = {
    "state store": (
        with_operators(operator(1_500_000), operator(600_000), executors=2),
        with_operators(operator(1_500_000), operator(500_000), executors=2),
        "2,100,000 rows of state on 2 executors: 1,050,000 each",
        'state_store="rocksdb"',
    ),
    "commits of state": (
        with_operators(operator(commit=8_400)),  # of four partitions: 2.1 s of 10 s
        with_operators(operator(commit=8_000)),
        "in 2.1 s, 21% of batch 8",
        'state_store="rocksdb"',
    ),
    "partitions of state": (
        with_operators(operator(partitions=200, commit=400)),
        with_operators(operator(partitions=8, rows=7_000)),
        "200 partitions on 2 cores, 200 rows of state in each",
        'spark_conf={"spark.sql.shuffle.partitions": 4}',
    ),
    "block cache of RocksDB": (
        with_operators(operator(**ROCKS, rocksdbReadBlockCacheMissCount=3_000)),
        with_operators(operator(**ROCKS, rocksdbReadBlockCacheMissCount=2_000)),
        "3,000 of 12,000 reads missed it in batch 8 (25%)",
        "blockCacheSizeMB",
    ),
    "stalls of RocksDB": (
        with_operators(operator(rocksdbWriterStallLatencyMs=1_500)),
        with_operators(operator(rocksdbWriterStallLatencyMs=0)),
        "waited 1.5 s",
        "writeBufferSizeMB",
    ),
    "compaction of RocksDB": (
        with_operators(operator(rocksdbTotalCompactionLatencyMs=5_000)),  # on two cores
        with_operators(operator(rocksdbTotalCompactionLatencyMs=4_000)),
        "2.5 s a core in batch 8, 25% of its time",
        "compactOnCommit",
    ),
    "trigger": (
        replace(WELL, declared=declared(trigger="2 seconds"), polls=201, ran=10),
        replace(WELL, declared=declared(trigger="2 seconds"), polls=200, ran=10),
        "201 polls every 2 seconds gave 10 batches",
        'trigger="60 seconds"',
    ),
    "size of batches": (
        replace(
            WELL,
            declared=declared(trigger="2 seconds"),
            batches=batches(seconds=2.0, phases={"addBatch": 0.5}),
        ),
        replace(
            WELL,
            declared=declared(trigger="2 seconds"),
            batches=batches(seconds=2.0, phases={"addBatch": 1.5}),
        ),
        "75% of a batch (2.0 s, 5,000 rows, the last 8)",
        'trigger="60 seconds"',
    ),
    "files of the table": (
        replace(WELL, table=Summary(7, 2_000, 2_000 * 2**20, {}, {})),
        replace(WELL, table=Summary(7, 2_000, 2_000 * 17 * 2**20, {}, {})),
        "2,000 files of 1.0 MB on average in version 7",
        "optimizeWrite",
    ),
    "declared state store": (
        replace(WELL, declared=declared(spark_conf=STATE_STORES["rocksdb"])),
        replace(WELL, declared=declared(spark_conf=STATE_STORES["default"])),
        "rocksdb is declared, and the checkpoint has default",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_beyond_its_bound_and_not_before(name: str) -> None:
    beyond, within, figures, line = CASES[name]
    (found,) = advise(beyond)
    assert (found.about, figures in found.figures, line in found.declare) == (name, True, True)
    assert bool(found.declare) == bool(line)
    assert about(within) == []


def test_rocksdb_with_a_changelog_is_no_more_advised_to_have_one() -> None:
    slow = operator(commit=8_400, **ROCKS)
    assert about(with_operators(slow)) == ["commits of state"]
    assert about(with_operators(slow, changelog=True)) == []
    assert PROVIDER in STATE_STORES["rocksdb"]


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        (lambda well: replace(well, batches=well.batches[:4]), "4 recent batches had rows"),
        (lambda well: replace(well, machinery=None), "No driver has told"),
        (lambda well: replace(well, table=None), "no readable summary"),
    ],
    ids=["batches", "machinery", "table"],
)
def test_what_cannot_be_judged_is_said(lacks: Callable[[Evidence], Evidence], said: str) -> None:
    evidence = lacks(WELL)
    (missing,) = unknown(evidence)
    assert said in missing
    assert f"Not judged: {missing}" in in_words("p.f", advise(evidence), (missing,))
