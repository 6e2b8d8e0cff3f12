"""Any order, any cut into batches, any repetition, any interleaving of two flows, whole batches or batches
that were killed: always the table that the oracle computes from the set.

One run holds many keys, each with a history of its own, because a batch costs seconds whatever it holds. The
runs go through the kinds of tables in turn; ``STREAMKEEPER_EXAMPLES`` says how many there are,
``STREAMKEEPER_SEED`` repeats one.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.cdc import scd2
from streamkeeper_jobs.cdc.apply_batch import LISTED
from streamkeeper_jobs.spark.delta_snapshot import Listed

from streamkeeper.declare.cdc_spec import END_AT, START_AT, CdcSpec
from streamkeeper.declare.model import Table
from tests import cdc_oracle
from tests.worlds.seeds import RUNS
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import (
    DONE_BY_OTHERS,
    SPEC,
    TABLE,
    VERSIONS,
    WITHOUT_VECTORS,
    CdcBed,
    change,
    in_order,
    killed_before_the_target,
)

COLUMNS = ("id", "at", "op", "name", "address")
STORED = ("id", "name", "address")
SCHEMA = "id INT, at BIGINT, op STRING, name STRING, address STRUCT<city: STRING, zip: INT>"
KEYS, CHANGES, LATEST = 150, 7, 9
ORDERED = 0.4
"""Part of the runs whose batches are each newer than those before, but for the repeated ones."""

Source = tuple[Any, ...]


@dataclass(frozen=True)
class Delivery:
    """One batch of one of the two flows, ``killed`` right before it is committed or not."""

    flow: int
    batch: int
    rows: list[Source]
    killed: bool = False


SPECS: dict[str, CdcSpec] = {
    "type 1": SPEC,
    "type 1, ignoring nulls": replace(SPEC, ignore_null_updates=True),
    "type 2": VERSIONS,
    "type 2, tracking one column": replace(VERSIONS, track_history_column_list=("name",)),
    "type 2, ignoring nulls, not tracking one": replace(
        VERSIONS, ignore_null_updates=True, track_history_except_column_list=("name",)
    ),
}


def history(random: Random, *, truncates: bool) -> list[Source]:
    """Make the changes of all keys: few sequences and few values, so that they tie, repeat and come back; or
    now and then names that never come back, so that each makes a version of its own.
    """
    made: list[Source] = []
    fresh = random.random() < 0.4
    for key in range(KEYS):
        for _ in range(random.randint(1, CHANGES)):
            at, op = random.randint(0, LATEST), random.choice("UUUUD")
            address = random.choice(
                [None, (random.choice([None, "Ulm", "Bonn"]), random.choice([None, 1, 2]))]
            )
            name = f"name {len(made)}" if fresh else random.choice([None, "a", "b"])
            made.append((key, at, op, name, address))
    if truncates:
        made += [(None, random.randint(0, LATEST // 2), "T", None, None) for _ in range(random.randint(0, 2))]
    return made


def deliveries(random: Random, rows: list[Source]) -> list[Delivery]:
    """Shuffle or sort, give some rows twice, cut at random, and share out between two flows.

    Some batches come again, after one of the other flow if that comes next: one batch that is killed, and
    others that are done and not marked so in their checkpoint.
    """
    sent = rows + random.sample(rows, len(rows) // 10)
    random.shuffle(sent)
    if random.random() < ORDERED:
        sent.sort(key=lambda row: row[1])
        new = [place for place, (one, row) in enumerate(pairwise(sent), 1) if one[1] < row[1]]
    else:
        new = list(range(1, len(sent)))
    cuts = sorted(random.sample(new, random.randint(2, 3)))
    parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    flows, killed = [random.randint(0, 1) for _ in parts], random.randrange(len(parts) - 1)
    flows[killed + 1] = 1 - flows[killed]
    made: list[Delivery] = []
    again: list[Delivery] = []
    for place, (flow, part) in enumerate(zip(flows, parts, strict=True)):
        delivery = Delivery(flow, flows[:place].count(flow), part)
        made += [replace(delivery, killed=place == killed), *again]
        comes_again = [delivery] if place == killed or random.random() < 0.3 else []
        others_next = flow not in flows[place + 1 : place + 2] and place + 1 < len(flows)
        again = comes_again if others_next else []
        made += [] if others_next else comes_again
    return made


def wanted(spec: CdcSpec, rows: list[Source]) -> list[dict[str, Any]]:
    changes = [change([as_dict(item) for item in row], COLUMNS, STORED) for row in rows]
    if spec.scd_type == 1:
        return in_order(cdc_oracle.newest(changes, spec.ignore_null_updates))
    tracked = spec.track_history_column_list
    if spec.track_history_except_column_list:
        tracked = tuple(name for name in STORED if name not in spec.track_history_except_column_list)
    found = cdc_oracle.versions(changes, tracked, spec.ignore_null_updates)
    return in_order({**row, START_AT: start, END_AT: end} for row, start, end in found)


def as_dict(item: Any) -> Any:
    return dict(zip(("city", "zip"), item, strict=True)) if isinstance(item, tuple) else item


def applied(  # noqa: PLR0917 - a case of the tables above
    spec: CdcSpec,
    sent: list[Delivery],
    spark: SparkSession,
    root: Path,
    table: Table,
    random: Random | None = None,
) -> list[dict[str, Any]]:
    """Apply deliveries of two flows, and return the rows of their table.

    :param random: lets others do something to the table now and then, and the checksums of versions say
        which files these have, or not.
    """
    flows = two_flows(spark, root, spec, table)
    for delivery in sent:
        if random is not None:
            spark.conf.set(LISTED, random.choice([0, 50]))
        with killed_before_the_target() if delivery.killed else nullcontext():
            flows[delivery.flow].apply(*delivery.rows, batch=delivery.batch)
        if random is not None and random.random() < 0.3:
            random.choice(DONE_BY_OTHERS)(flows[0])
    spark.conf.unset(LISTED)
    return flows[0].rows()


ROWS: list[Source] = [
    (1, 2, "U", "a", ("Ulm", 1)),
    (1, 4, "D", None, None),
    (1, 3, "U", None, ("Bonn", None)),
    (2, 1, "D", None, None),
    (2, 5, "U", "b", None),
    (3, 2, "U", "a", None),
    (3, 2, "U", "b", None),
]
"""Changes of three keys: one ends deleted, one comes back, one has two changes of one sequence."""
LATE = (2, 3, "U", "late", ("Ulm", 2))


@pytest.mark.parametrize("table", long_after(1, [TABLE, WITHOUT_VECTORS]), ids=["marked", "written again"])
@pytest.mark.parametrize("name", ["type 1", "type 2"])
def test_late_repeated_and_killed_batches_of_two_flows_come_to_the_oracles_table(
    name: str, table: Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scd2, "A_TASK", 1)  # ended versions in files of their own
    cut_off = Delivery(0, 0, ROWS[::2], killed=True)
    sent = [
        cut_off,
        Delivery(1, 0, ROWS[1::2]),
        replace(cut_off, killed=False),
        Delivery(1, 1, [LATE, *ROWS[:3]]),
    ]
    assert applied(SPECS[name], sent, spark, tmp_path, table) == wanted(SPECS[name], [*ROWS, LATE])


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_the_table_is_what_the_set_of_changes_comes_to(
    run: int, seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = list(SPECS)[run % len(SPECS)]
    spec, random = SPECS[name], Random(seed)
    rows, table = (
        history(random, truncates=spec.apply_as_truncates is not None),
        random.choice([TABLE, WITHOUT_VECTORS]),
    )
    monkeypatch.setattr(scd2, "A_TASK", random.choice([20, scd2.A_TASK]))
    if random.random() < 0.5:  # else small tables hardly ever have an index of their keys
        monkeypatch.setattr(Listed, "rows", property(lambda _: 10**6))
    assert applied(spec, deliveries(random, rows), spark, tmp_path, table, random) == wanted(spec, rows), (
        f"{name}, seed {seed}"
    )


def two_flows(spark: SparkSession, root: Path, spec: CdcSpec, table: Table) -> tuple[CdcBed, CdcBed]:
    first = CdcBed(spark, root, spec, SCHEMA, "one").prepare(table)
    return first, CdcBed(spark, root, spec, SCHEMA, "other").prepare(table)
