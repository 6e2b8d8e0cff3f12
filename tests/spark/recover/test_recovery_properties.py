"""Recovery × source × kind of query while the source moves on: whatever comes when, and is cut how, the table
ends as the oracle's.

One run is a flow of its own: events arrive, batches run, and a recovery is planned and carried out, with more
events between its steps. The runs go through sources, queries and recoveries in turn;
``STREAMKEEPER_EXAMPLES`` says how many there are, ``STREAMKEEPER_SEED`` repeats one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.recover import engine as recoveries
from tests.oracle import Row, all_rows, counted, first_per
from tests.worlds.flow_world import COLUMNS, DEDUPE, NAME, Flowbed, pipeline
from tests.worlds.recover.results import SUMS, sums
from tests.worlds.seeds import RUNS
from tests.worlds.sources.file_names import INSIDE
from tests.worlds.sources.source_world import DeltaBed, KafkaBed
from tests.worlds.tables.backup_world import Recoverer

TABLE = "events.events"
KEYED = (
    'dp.create_auto_cdc_flow(name="clean_events", target="events", source="{view}", keys=["user_id"],'
    ' sequence_by="n")\n'
)
FEED = ', table_properties={"delta.enableChangeDataFeed": "true"}'
READER = """
from streamkeeper import pipelines as dp

dp.create_source("feed", format="delta", table="events", options={{"readChangeFeed": True{options}}})

@dp.temporary_view(sources=["feed"])
def rows(feed):
    return feed.select("_change_type", "_commit_version", {columns})

dp.create_streaming_table("followed")
dp.create_auto_cdc_flow(name="follow", target="followed", source="rows", keys=["{key}"], change_feed=True,
    stored_as_scd_type={scd}, trigger="200 milliseconds")
"""
ANYWHERE = (
    "reset_checkpoint",
    "rewind",
    "restore_table",
    "full_refresh",
    "full_refresh_with_backup",
    "rebuild_without_downtime",
)
OF_TOTALS = ("rewind, table kept", *ANYWHERE)
OF_KEYS = ("backfill", "rewind, table kept", *ANYWHERE)


def newest_per_user(events: Sequence[Row]) -> list[Row]:
    """AUTO CDC by user and number: the newest event of each user."""
    found: dict[Any, Row] = {}
    for event in events:
        if event["user_id"] not in found or found[event["user_id"]]["n"] <= event["n"]:
            found[event["user_id"]] = event
    return list(found.values())


@dataclass(frozen=True)
class Query:
    """A kind of query: what comes after its source, what the table must hold, and which recoveries leave it
    exact.
    """

    view: str
    oracle: Callable[[Sequence[Row]], list[Row]]
    recoveries: tuple[str, ...] = ANYWHERE
    keyed: bool = False
    key: str = "user_id"
    columns: tuple[str, ...] = COLUMNS


@dataclass(frozen=True)
class Totals(Query):
    """A query of totals by user, in an output mode: its rows are results of its state."""

    columns: tuple[str, ...] = ("user_id", "count", "sum")
    mode: str = "update"


QUERIES = {
    "stateless": Query("", all_rows, key="event_id"),
    "dropDuplicates": Query(DEDUPE, lambda events: first_per(events, ["event_id"]), key="event_id"),
    "AUTO CDC": Query("", newest_per_user, OF_KEYS, keyed=True),
    "update": Totals(SUMS, sums, OF_TOTALS, keyed=True),
    "complete": Totals(SUMS, sums, OF_TOTALS, mode="complete"),
}


@dataclass
class Moving:
    """A flow whose source moves on. ``arrive`` writes events into it."""

    bed: Flowbed
    arrive: Callable[..., Any]
    query: Query
    random: Random
    events: int = 0
    planned: int = 0
    did: list[str] = field(default_factory=list)

    @property
    def at_work(self) -> Recoverer:
        return Recoverer.of(self.bed)

    def comes(self) -> None:
        """Let some events arrive: new ones, and some that were there before."""
        new = list(range(self.events, self.events + self.random.randint(1, 5)))
        self.events += len(new)
        repeated = min(self.events, self.random.randint(0, 2)) if self.query.view else 0
        again = self.random.sample(range(self.events), repeated)
        numbers = dict.fromkeys([*new, *again])
        self.arrive(*numbers)
        self.did.append(f"arrive {list(numbers)}")

    def run(self) -> None:
        self.did.append("run")
        assert self.bed.run() is Outcome.STOPPED, self.did

    def recover(self, recovery: str) -> None:
        """Plan a recovery and carry it out; events arrive between any two of its steps."""
        self.planned += 1
        kind = recovery.partition(",")[0]
        name = recoveries.recovery_id(kind, str(self.planned))
        self.did.append(recovery)
        values = self._values(recovery)
        for step in self.at_work.plan(kind, name, **values).steps:
            if self.random.random() < 0.2:
                self.comes()
            if step != "verify_progress":
                self.at_work.step(name, step)

    def _values(self, recovery: str) -> dict[str, Any]:
        if recovery == "restore_table":
            self.at_work.backup(f"b{self.planned}", TABLE)
            self.comes()
            if self.random.random() < 0.7:
                self.run()
        values: dict[str, Callable[[], dict[str, Any]]] = {
            "reset_checkpoint": lambda: {"flow": NAME},
            "rewind": lambda: {"flow": NAME, "batch": self._batch(), "target": "restored"},
            "rewind, table kept": lambda: {"flow": NAME, "batch": self._batch()},
            "restore_table": lambda: {"table": TABLE, "backup": "newest"},
            "full_refresh": lambda: {"table": TABLE},
            "rebuild_without_downtime": lambda: {"table": TABLE},
            "full_refresh_with_backup": lambda: {
                "table": TABLE,
                "fill_from": "backup" if self.query.keyed else "sources",
            },
            "backfill": lambda: {"flow": NAME, "chunk": 2},
        }
        return values[recovery]()

    def _batch(self) -> str:
        """Give any batch that the present generation has committed after what it began with."""
        newest = generations.latest(self.bed.home)
        assert newest is not None
        start, checkpoint = self.bed.start(newest.number), self.bed.checkpoint(newest.number)
        last = checkpoint.last_commit()
        assert last is not None
        return f"{newest.number}/{self.random.randint(min((start.seed_batch or -1) + 1, last), last)}"

    def is_exact(self) -> None:
        try:
            wanted = self.query.oracle(self.bed.events)
            self.bed.holds(wanted, self.query.columns)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.did}") from error


@dataclass
class Followed(Moving):
    """A flow whose table another one follows by its change feed, into a table of its own."""

    def __post_init__(self) -> None:
        head, _, rest = self.bed.file.read_text().partition('streaming_table("events"')
        self.bed.declare(f'{head}streaming_table("events"{FEED}{rest}')
        reader = READER.format(
            columns=", ".join(f'"{column}"' for column in self.query.columns),
            key=self.query.key,
            scd=self.random.choice([1, 2]),
            options=self.random.choice(["", ', "maxFilesPerTrigger": 1']),
        )
        (self.bed.settings.pipelines / "reader.py").write_text(reader)

    def run(self) -> None:
        super().run()
        if self.random.random() < 0.6:
            self.follow()

    def follow(self) -> None:
        self.did.append("follow")
        assert self.bed.run("reader.follow") is Outcome.STOPPED, self.did

    def _values(self, recovery: str) -> dict[str, Any]:
        values = super()._values(recovery)
        removes = recovery not in ("backfill", "reset_checkpoint", "rewind, table kept")
        return {**values, "accept": ["downstream"]} if removes else values

    def is_exact(self) -> None:
        super().is_exact()
        self.follow()
        columns = self.query.columns
        followed = replace(self.bed, target="followed")
        present = [row for row in followed.rows() if row.get("__END_AT") is None]
        assert counted(present, columns) == counted(self.bed.rows(), columns), self.did


def declared(text: str, query: Query, view: str) -> str:
    """Give a pipeline whose flow is the query's."""
    if isinstance(query, Totals):
        keys = ', keys=["user_id"]' if query.keyed else ""
        text = text.replace('streaming_table("events"', f'streaming_table("events"{keys}')
        return text.replace("@dp.append_flow", f"@dp.{query.mode}_flow")
    return text[: text.index("@dp.append_flow")] + KEYED.format(view=view) if query.keyed else text


def files(root: Path, spark: SparkSession, query: Query, random: Random) -> Moving:
    bed = Flowbed.make(
        root, spark, declared(pipeline(view=query.view, files=random.randint(1, 3)), query, "distinct_events")
    )
    bed.inside = INSIDE
    return Moving(bed, bed.arrive, query, random)


def delta(root: Path, spark: SparkSession, query: Query, random: Random) -> Moving:
    made = DeltaBed.make(
        root, spark, view=query.view, options=f'"maxFilesPerTrigger": {random.randint(1, 3)}'
    )
    made.bed.declare(declared((root / "pipelines" / "events.py").read_text(), query, "parsed"))
    return Moving(made.bed, made.arrive, query, random)


def goes_through(moving: Moving, recovery: str) -> None:
    """Let a flow run, and a recovery come at some moment; then all that came meanwhile is read, and more."""
    moving.comes()
    moving.run()
    moving.comes()
    if moving.random.random() < 0.7:
        moving.run()
    if moving.random.random() < 0.5:
        moving.comes()
    moving.recover(recovery)
    if moving.random.random() < 0.5:
        moving.run()
        moving.is_exact()
    moving.comes()
    moving.run()
    moving.is_exact()


CASES = list(product(QUERIES, [files, delta]))


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_whatever_comes_when_the_table_ends_as_the_oracle_s(
    run: int, seed: int, spark: SparkSession, tmp_path: Path
) -> None:
    name, source = CASES[run % len(CASES)]
    random = Random(seed)
    moving = source(tmp_path, spark, QUERIES[name], random)
    moving.did.append(f"seed {seed}, {source.__name__}, {name}")
    goes_through(moving, moving.query.recoveries[(run + run // len(CASES)) % len(moving.query.recoveries)])


def test_events_that_arrive_between_the_steps_of_a_recovery_come_once(
    make_bed: Callable[..., Flowbed],
) -> None:
    """By hand what the property does at random: before the plan, under the hold and after the release."""
    bed = make_bed(pipeline(view=DEDUPE))
    bed.inside = INSIDE
    at_work = Recoverer.of(bed)
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(2, 3)
    for number, step in enumerate(at_work.plan("reset_checkpoint", "r1", flow=NAME).steps):
        bed.arrive(2, 10 + number)
        if step != "verify_progress":
            at_work.step("r1", step)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(3, 100)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_a_table_that_follows_another_by_its_change_feed_is_as_that_one_after_each_recovery(
    run: int, seed: int, spark: SparkSession, tmp_path: Path
) -> None:
    name, source = CASES[run % len(CASES)]
    random = Random(seed)
    bed = source(tmp_path, spark, QUERIES[name], random)
    moving = Followed(bed.bed, bed.arrive, bed.query, random)
    moving.did.append(f"seed {seed}, {source.__name__}, {name}")
    goes_through(moving, moving.query.recoveries[(run + run // len(CASES)) % len(moving.query.recoveries)])


@pytest.mark.long
def test_a_rebuild_without_downtime_leaves_the_table_that_follows_by_change_feed_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By hand what the property does at random: every row is deleted and inserted by one commit."""
    bed = files(tmp_path, spark, QUERIES["AUTO CDC"], Random(5))
    moving = Followed(bed.bed, bed.arrive, bed.query, Random(5))
    moving.comes()
    moving.run()
    moving.is_exact()
    moving.recover("rebuild_without_downtime")
    moving.follow()
    moving.run()
    moving.is_exact()


@pytest.mark.long
def test_a_topic_that_moves_on_is_gone_back_in_and_its_table_put_back(kafka: Callable[..., KafkaBed]) -> None:
    flow = kafka(view=DEDUPE)
    goes_through(Moving(flow.bed, flow.arrive, QUERIES["dropDuplicates"], Random(1)), "rewind")


@pytest.mark.long
@pytest.mark.parametrize("recovery", OF_TOTALS)
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_totals_are_those_of_an_oracle_after_each_recovery(
    mode: str, recovery: str, spark: SparkSession, tmp_path: Path
) -> None:
    goes_through(files(tmp_path / "a bed", spark, QUERIES[mode], Random(5)), recovery)
