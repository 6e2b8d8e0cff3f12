"""Flows of many kinds whose plans are compared with what comes of them: rows that a plain oracle finds lost
or twice in the table.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.recover import engine
from streamkeeper.recover.moves.backfill_source import FillingIn
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, IMPACTS, NONE, UNKNOWN_IMPACT, Amount
from tests.worlds.flow_world import FIRST_FILE, NAME, SCHEMA, Flowbed, pipeline
from tests.worlds.recover.old_jobs import run_declared_job
from tests.worlds.sources.source_world import DeltaBed, KafkaBed
from tests.worlds.state_stores import PROVIDER, ROCKS, with_conf
from tests.worlds.tables.backup_world import Recoverer

Event = Mapping[str, Any]
Found = Counter[tuple[Any, ...]]
Brokers = Callable[[], str]
"""Start the Kafka broker if it does not run yet, and return its address."""
TABLE = "events.events"
FILLS = ("backfill", "backfill backup")
FLUSH = 80_000
"""Number of the last event, which closes what is open and counts nowhere."""

_PARSED = f'.select(F.from_json(F.col("value").cast("string"), "{SCHEMA}").alias("event")).select("event.*")'
_MARKED = '.withWatermark("event_time", "10 seconds")'
_WINDOW = (
    f'{_MARKED}.groupBy(F.{{}}("event_time", "10 seconds").alias("w"), F.expr("n >= 0").alias("all"))'
    '.agg(F.min("n").alias("first"),'
    ' F.count("*").alias("many"))'
)
_JOIN = """
    left = events.withWatermark("event_time", "10 seconds").select("n", F.col("event_time").alias("at"))
    right = again{again}.where("n % 2 = 0").withWatermark("event_time", "10 seconds")
    right = right.select(F.col("n").alias("other"), F.col("event_time").alias("until"))
    near = F.expr("other = n + 3 AND until BETWEEN at AND at + INTERVAL 5 SECONDS")
    return left.join(right, near, "{how}").select("n", "other")
"""
"""A stream that is joined with itself: each of its two sides is a source of its own."""
_TIMERS = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Late(StatefulProcessor):
        def init(self, handle):
            self.handle, self.count = handle, handle.getValueState("count", "many INT")

        def handleInputRows(self, key, rows, timerValues):
            known = self.count.get()[0] if self.count.exists() else 0
            self.count.update((known + len(list(rows)),))
            self.handle.registerTimer(1_767_225_600_000 + (key[0] + 1) * 10_000)
            yield from ()

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield Row(first=key[0] * 10, many=self.count.get()[0])
            self.count.clear()

        def close(self):
            pass

    tens = events.withColumn("tens", F.expr("n DIV 10").cast("int"))
    keyed = tens.withWatermark("event_time", "10 seconds").groupBy("tens")
    return keyed.transformWithState(Late(), "first INT, many INT", "Append", "EventTime")
"""
"""Counts the events of ten seconds, and writes the count when a timer says that they are over."""


@dataclass(frozen=True)
class Source:
    """How a flow's sources are declared, and what makes events of the rows that they give."""

    declared: str
    parsed: str = ""


@dataclass(frozen=True)
class Query:
    """A kind of query: its pipeline file, the columns by which its rows are known, and what they are by a
    plain oracle.

    ``fills`` are the backfills that it allows: of a query without a state that rows share, and not of
    versions from a backup. An event that is lost makes at most ``spoils`` rows of the table others than they
    should be; with ``each_its_row`` it is just its own row.
    """

    text: Callable[[Source], str]
    columns: tuple[str, ...]
    oracle: Callable[[Sequence[Event]], Iterable[tuple[Any, ...]]]
    repeats: bool = False
    spoils: int = 1
    fills: tuple[str, ...] = ()
    each_its_row: bool = False


def files(limit: int) -> Source:
    """Declare files, so many of which make a batch."""
    return Source(
        f'format="json", path="{{data}}/events", schema="{SCHEMA}", options={{"maxFilesPerTrigger": {limit}}}'
    )


def _keyed(scd: int) -> Callable[[Source], str]:
    declared = (
        'dp.create_auto_cdc_flow(name="clean_events", target="events", source="distinct_events",'
        f' keys=["user_id"], sequence_by="n", stored_as_scd_type={scd})\n'
    )

    def text(source: Source) -> str:
        return _of_view("")(source).partition("@dp.append_flow")[0] + declared

    return text


def _of_view(view: str) -> Callable[[Source], str]:
    return lambda source: pipeline(view=source.parsed + view, source=source.declared)


def _joined(how: str) -> Callable[[Source], str]:
    def text(source: Source) -> str:
        declared = pipeline(
            view=source.parsed,
            source=source.declared,
            more=f'dp.create_source("events_again", {source.declared})',
            sources=("distinct_events", "events_again"),
            parameters="events, again",
        )
        before, _, _ = declared.rpartition("    return ")
        return before + _JOIN.format(how=how, again=source.parsed)[1:]

    return text


def _timed(source: Source) -> str:
    before, _, _ = _of_view("")(source).rpartition("    return ")
    return with_conf(f"{before}{_TIMERS[1:]}", **{PROVIDER: ROCKS})


def _windows(events: Sequence[Event]) -> Iterable[tuple[Any, ...]]:
    found: dict[int, list[int]] = {}
    for event in events:
        found.setdefault(event["n"] // 10, []).append(event["n"])
    return [(min(numbers), len(numbers)) for numbers in found.values()]


def _sessions(events: Sequence[Event]) -> Iterable[tuple[Any, ...]]:
    found: list[list[int]] = []
    for number in sorted(event["n"] for event in events):
        if found and number <= found[-1][-1] + 10:  # Spark merges windows that touch
            found[-1].append(number)
        else:
            found.append([number])
    return [(numbers[0], len(numbers)) for numbers in found]


def _pairs(outer: bool) -> Callable[[Sequence[Event]], Iterable[tuple[Any, ...]]]:
    def pairs(events: Sequence[Event]) -> Iterable[tuple[Any, ...]]:
        known = {event["n"] for event in events}
        for number in known:
            matched = number + 3 in known and (number + 3) % 2 == 0
            if matched or outer:
                yield (number, number + 3 if matched else None)

    return pairs


def _newest(events: Sequence[Event]) -> Iterable[tuple[Any, ...]]:
    return {
        event["user_id"]: (event["user_id"], event["n"])
        for event in sorted(events, key=lambda event: event["n"])
    }.values()


QUERIES = {
    "stateless": Query(
        _of_view(""),
        ("n",),
        lambda events: [(event["n"],) for event in events],
        repeats=True,
        fills=FILLS,
        each_its_row=True,
    ),
    "dedupe": Query(
        _of_view('.dropDuplicates(["event_id"])'),
        ("n",),
        lambda events: {(event["n"],) for event in events},
        repeats=True,
        fills=FILLS,
    ),
    "windows": Query(
        _of_view(_WINDOW.format("window") + '.select("first", "many")'), ("first", "many"), _windows
    ),
    "session windows": Query(
        _of_view(_WINDOW.format("session_window") + '.select("first", "many")'),
        ("first", "many"),
        _sessions,
        spoils=2,  # an event may join two windows
    ),
    "inner join": Query(_joined("inner"), ("n", "other"), _pairs(outer=False)),
    "outer join": Query(_joined("left_outer"), ("n", "other"), _pairs(outer=True)),
    "timers": Query(
        _timed, ("first", "many"), lambda events: Counter(event["n"] // 10 * 10 for event in events).items()
    ),
    "AUTO CDC 1": Query(_keyed(1), ("user_id", "n"), _newest, repeats=True, fills=FILLS),
    "AUTO CDC 2": Query(
        _keyed(2),
        ("user_id", "n"),
        lambda events: {(event["user_id"], event["n"]) for event in events},
        repeats=True,
        fills=FILLS[:1],
    ),
}
RECOVERIES = (
    "rewind kept",
    "rewind restored",
    "after-last",
    "earliest",
    "latest",
    "timestamp",
    "offsets",
    "generation",
    "empty",
    "restore",
    "restore backup",
    "full refresh",
    "adopt",
    *FILLS,
)
_KINDS = {
    "rewind kept": "rewind",
    "rewind restored": "rewind",
    "restore": "restore_table",
    "restore backup": "restore_table",
    "full refresh": "full_refresh",
    "adopt": "adopt",
    "backfill": "backfill",
    "backfill backup": "backfill",
}
FILES, DELTA, KAFKA = SOURCES = ("files", "Delta", "Kafka")


@dataclass(frozen=True)
class Case:
    """A recovery of a flow, whose history follows from the seed."""

    query: str
    recovery: str
    source: str
    seed: int

    @classmethod
    def drawn(cls, query: str, recovery: str, seed: int) -> Case:
        """Return a case whose source follows from the seed, too."""
        return cls(query, recovery, Random(f"{seed} {query} {recovery} source").choice(SOURCES), seed)


@dataclass
class Feed:
    """What a flow reads: ``arrive`` puts events there."""

    bed: Flowbed
    source: Source
    arrive: Callable[..., Any]
    by_clock: bool = True
    """Whether its events have the times at which they arrive; files have times of their own."""

    @classmethod
    def make(cls, kind: str, root: Path, spark: SparkSession, limit: int, brokers: Brokers) -> Feed:
        """Make a source of a kind.

        :param limit: the files of a batch; what a Kafka topic has is one batch, since no other cut keeps the
            order of events in both its partitions.
        :param brokers: starts the broker if it was not yet, and gives its address.
        """
        if kind == DELTA:
            table = DeltaBed(Flowbed.make(root, spark))
            declared = f'format="delta", path="{{data}}/source", options={{"maxFilesPerTrigger": {limit}}}'
            return cls(table.bed, Source(declared), table.arrive)
        if kind == KAFKA:
            topic = KafkaBed.make(root, spark, brokers())
            options = {"kafka.bootstrap.servers": topic.brokers, "subscribe": topic.topic}
            return cls(topic.bed, Source(f'format="kafka", options={options}', _PARSED), topic.arrive)
        bed = Flowbed.make(root, spark)
        return cls(bed, files(limit), bed.arrive, by_clock=False)


@dataclass
class Impactd:
    """A flow with a history, whose recoveries are planned, carried out, and held against their plans.

    ``moments`` are those after which its events arrived, in seconds since the epoch. ``by_old_job`` says
    whether its query runs without Streamkeeper still, until it is adopted.
    """

    feed: Feed
    query: Query
    random: Random
    events: int = 0
    did: list[str] = field(default_factory=list)
    made: Plan | None = None
    moments: list[float] = field(default_factory=list)
    by_old_job: bool = False

    @property
    def bed(self) -> Flowbed:
        return self.feed.bed

    @property
    def at_work(self) -> Recoverer:
        return Recoverer.of(self.bed)

    @classmethod
    def make(cls, root: Path, spark: SparkSession, case: Case, brokers: Brokers) -> Impactd:
        """Make a flow that has read some events, in some runs."""
        random, chosen = Random(f"{case.seed} {case.query} {case.recovery}"), QUERIES[case.query]
        feed = Feed.make(case.source, root, spark, random.randint(1, 3), brokers)
        feed.bed.declare(chosen.text(feed.source))
        impactd = cls(feed, chosen, random, did=[f"{case}"], by_old_job=case.recovery == "adopt")
        for _ in range(random.randint(2, 3)):
            for _ in range(random.randint(1, 2)):
                impactd.comes()
            impactd.run()
        return impactd

    def comes(self) -> None:
        """Let a file of events arrive: new ones, seconds apart, and some that were there before where that
        makes no other windows.
        """
        numbers = [
            self.events + step for step in range(0, self.random.randint(3, 40), self.random.randint(1, 13))
        ]
        self.events = numbers[-1] + self.random.randint(1, 25)
        known = [event["n"] for event in self.bed.events]
        if self.query.repeats and known:
            numbers += self.random.sample(known, min(len(known), 2))
        self.random.shuffle(numbers)
        self.moments.append(time.time() if self.feed.by_clock else FIRST_FILE + len(self.moments) + 0.5)
        self.feed.arrive(*dict.fromkeys(numbers))
        self.did.append(f"arrive {numbers}")

    def run(self) -> None:
        self.did.append("run")
        if self.by_old_job:
            run_declared_job(self.bed)
            return
        assert self.bed.run() is Outcome.STOPPED, self.did

    def plan(
        self, recovery: str, accept: Sequence[str] = tuple(IMPACTS), values: Mapping[str, Any] | None = None
    ) -> Plan:
        """Plan a recovery; its values are drawn unless they are given."""
        values = {"accept": list(accept), **(self._values(recovery) if values is None else values)}
        self.did.append(f"{recovery} {values}")
        of = _KINDS.get(recovery, "reset_checkpoint")
        self.made = self.at_work.draft(of, engine.recovery_id(of, str(len(self.did))), **values)
        return self.made

    def carry_out(self) -> None:
        """Carry the recovery out that was planned last."""
        made = self.made
        assert made is not None and made.refusals == (), made
        engine.propose(self.bed.settings, made)
        engine.approve(self.bed.settings, "events", made.recovery_id, "ada")
        self.at_work.carry_out(made)
        self.by_old_job = False

    def goes_through(self, recovery: str) -> None:
        """Carry a recovery out at some moment, let more come, and hold what the table has then against the
        plan.
        """
        if self.random.random() < 0.5:
            self.comes()
        values = self._values(recovery)
        if recovery in FILLS and recovery not in self.query.fills:
            self._is_refused(recovery, values)
            return
        before = self.off()
        asked = {refusal.impact for refusal in self.plan(recovery, (), values).refusals}
        made = self.plan(recovery, values=values)
        self.carry_out()
        self.run()
        self.ends()
        lost, twice = self.off()
        again, unread = _said(made, self.bed)
        told = (
            f"twice {twice}, lost {lost}, before {before}; said: {again}, {unread}; asked: {asked}\n"
        ) + "\n".join(self.did)
        assert not lost or asked & {DATA_LOSS, UNKNOWN_IMPACT}, told
        assert not twice or asked & {DUPLICATES, UNKNOWN_IMPACT, *((DATA_LOSS,) if lost else ())}, told
        if again.rows_unknown or any(amount.rows is None for amount in unread):
            return
        never_read = sum(amount.rows or 0 for amount in unread)
        spoilt = never_read * self.query.spoils
        assert lost <= spoilt, told
        assert twice <= (again.rows or 0) + spoilt, told
        assert spoilt or again.at_most or twice == again.rows, told
        if self.query.each_its_row and not any(amount.at_most for amount in unread):
            assert lost == never_read, told

    def _is_refused(self, recovery: str, values: Mapping[str, Any]) -> None:
        """See that a recovery which could not be exact is refused in its plan, and changes nothing."""
        with pytest.raises(RequestError):
            self.plan(recovery, values=values)
        self.ends()
        assert self.off() == (0, 0), "\n".join(self.did)

    def ends(self) -> None:
        """Let some events come, and the last one."""
        self.comes()
        self.run()
        self.feed.arrive(FLUSH)
        self.run()

    def off(self) -> tuple[int, int]:
        """Give how many rows are lost, and how many too many, by the oracle; what the last event makes is
        left out.
        """
        wanted: Found = Counter(self.query.oracle([event for event in self.bed.events if event["n"] < FLUSH]))
        found: Found = Counter(
            row
            for row in (tuple(item[name] for name in self.query.columns) for item in self._rows())
            if max(row[:1]) < FLUSH
        )
        if "user_id" in self.query.columns:
            found = Counter({row: count for row, count in found.items() if row[1] < FLUSH})
            users = {event["user_id"] for event in self.bed.events if event["n"] >= FLUSH}
            found = Counter({row: count for row, count in found.items() if row[0] not in users})
            wanted = Counter({row: count for row, count in wanted.items() if row[0] not in users})
        return (wanted - found).total(), (found - wanted).total()

    def _values(self, recovery: str) -> dict[str, Any]:
        if recovery == "adopt":
            self._may_have_died()
        if recovery == "restore backup" or recovery in self.query.fills[1:]:
            self.at_work.backup("b1", TABLE)
        if recovery == "restore backup":
            self.comes()
            self.run()
        made: dict[str, Callable[[], dict[str, Any]]] = {
            "restore": lambda: {"table": TABLE, "version": self._version()},
            "restore backup": lambda: {"table": TABLE, "backup": "newest"},
            "full refresh": lambda: {"table": TABLE},
            "rewind kept": lambda: {"flow": NAME, "batch": str(self._batch()), "target": "kept"},
            "rewind restored": lambda: {"flow": NAME, "batch": str(self._batch()), "target": "restored"},
            "adopt": lambda: {
                "flow": NAME,
                "checkpoint": str(self._old_checkpoint()),
                "old_job_is_stopped": True,
                "sources": {str(number): name for number, name in enumerate(self._sources())},
            },
            "backfill": lambda: {"flow": NAME, "source": "events_raw", "chunk": self.random.randint(1, 3)},
            "backfill backup": lambda: {"flow": NAME, "read": "backup"},
            "timestamp": lambda: {"flow": NAME, "start": recovery, "timestamp": self._moment()},
            "offsets": lambda: {"flow": NAME, "start": recovery, "offsets": self._offsets()},
            "generation": lambda: {"flow": NAME, "start": recovery, "generation": 1},
            "empty": lambda: {"flow": NAME, "start": "after-last", "state": "empty"},
        }
        return made.get(recovery, lambda: {"flow": NAME, "start": recovery})()

    def _offsets(self) -> dict[str, Any]:
        if self.feed.by_clock:
            return self.bed.checkpoint(1).offsets(self._batch()).sources
        offset = {"logOffset": self.random.randint(-1, 1)}
        return dict.fromkeys(self._sources(), offset)

    def _sources(self) -> list[str]:
        declared = self.query.text(self.feed.source)
        return [name for name in ("events_raw", "events_again") if f'"{name}"' in declared]

    def _moment(self) -> str:
        return datetime.fromtimestamp(self.random.choice(self.moments), timezone.utc).isoformat()

    def _rows(self) -> list[dict[str, Any]]:
        return self.bed.rows() if delta_log.exists(str(self.bed.table)) else []

    def _old_checkpoint(self) -> Path:
        return self.bed.root / "old job" / "checkpoint"

    def _may_have_died(self) -> None:
        """Let the old job's last batch be one during which it died: written or not, and not committed."""
        folder, table = self._old_checkpoint(), str(self.bed.table)
        last = max(int(file.name) for file in (folder / "commits").glob("[0-9]*"))
        if last == 0 or self.random.random() < 0.4:
            return
        for name in (str(last), f".{last}.crc"):
            (folder / "commits" / name).unlink()
        newest = delta_log.latest_version(table)
        log = self.bed.table / "_delta_log" / f"{newest or 0:020d}.json"
        written = newest and any(
            json.loads(line).get("txn", {}).get("version") == last for line in log.read_text().splitlines()
        )
        self.did.append(f"the old job died in batch {last}")
        if written and self.random.random() < 0.5:
            for file in log.parent.glob(f"*{newest:020d}.*"):
                file.unlink()
            self.did.append("before it was written")

    def _batch(self) -> int:
        last = self.bed.checkpoint(self._newest()).last_commit()
        assert last is not None
        return self.random.randint(0, last)

    def _newest(self) -> int:
        newest = generations.latest(self.bed.home)
        assert newest is not None
        return newest.number

    def _version(self) -> int:
        newest = delta_log.latest_version(str(self.bed.table))
        assert newest is not None
        return self.random.randint(1, newest)


def _said(made: Plan, bed: Flowbed) -> tuple[Amount, list[Amount]]:
    """Give the rows that a plan says come twice, and what no generation reads."""
    if made.flows:
        [flow] = made.flows
        return flow.written_again or NONE, [impact.lost for impact in flow.impacts]
    if isinstance(bed.flow().declaration, AutoCdcFlow):
        return NONE, []
    read = made.details_as(FillingIn).reads or NONE
    return replace(read, at_most=True), []
