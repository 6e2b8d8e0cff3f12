"""Advice for a flow, from the numbers of its recent batches, what they ran on, and its table.

Each advice has the figures that it comes from, and the line to declare. Bounds are rules of thumb: those of
state are of "Structured Streaming in production" (a million or two keys an executor in memory, a hundred
times as many in RocksDB; one or two partitions a core; commits that dominate the batch), the others say when
a cost is more than half of what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from streamkeeper.checkpoint.log_entries import PARTITIONS, PROVIDER
from streamkeeper.declare.checkpoint_window import trigger_seconds
from streamkeeper.declare.checks import STATE_STORES
from streamkeeper.declare.model import AnyFlow
from streamkeeper.delta.summary import Summary
from streamkeeper.watch.batch_numbers import Batch, Machinery

KEYS_IN_MEMORY = 1_000_000
"""Keys an executor beyond which the default store, which is in memory, is too small."""
LARGE_SHARE = 0.2
"""Share of a batch, or of reads, beyond which a cost of the state store is worth a change."""
OVERHEAD = 0.5
"""Share of a batch's time that is not spent on rows, beyond which batches are too small."""
IDLE_POLLS = 20
"""Polls a batch beyond which a trigger looks for nothing."""
SHORT_TRIGGER, SHORT_BATCH = 10.0, 5.0
"""Seconds of a trigger up to which polls are frequent, and of a batch up to which it is a small one."""
MANY_FILES, SMALL_FILE = 1_000, 16 * 1024 * 1024
"""Files of a table, and bytes a file on average, beyond and below which they are many and small."""
FEW_ROWS = 1_000
"""State rows a partition below which a partition costs more than it holds."""
LEAST_BATCHES = 5
"""Recent batches without which averages of them say nothing."""

_ROWS = ("addBatch",)
"""Spark's phases of a batch in which rows are read, computed and written."""


@dataclass(frozen=True)
class Advice:
    """One piece of advice: what it is ``about``, the ``figures`` that it comes from, what to ``do``, and the
    line to ``declare``, empty where nothing is declared for it.
    """

    about: str
    figures: str
    do: str
    declare: str = ""


@dataclass(frozen=True)
class Evidence:
    """What advice is given on.

    ``batches`` are recent ones, oldest first, ``polls`` the triggers of the present driver and ``ran`` its
    batches. ``machinery`` and ``table`` are None where they are unknown.
    """

    declared: AnyFlow
    batches: Sequence[Batch]
    machinery: Machinery | None = None
    polls: int = 0
    ran: int = 0
    table: Summary | None = None

    @property
    def with_rows(self) -> list[Batch]:
        """The batches that read rows."""
        return [batch for batch in self.batches if batch.rows]

    @property
    def seconds(self) -> float:
        """Seconds of a batch that read rows, on average; 0 if there was none."""
        return fmean(batch.seconds for batch in self.with_rows) if self.with_rows else 0.0


def advise(evidence: Evidence) -> tuple[Advice, ...]:
    """Return all advice that the evidence gives, none if all is well."""
    return tuple(advice for rule in RULES for advice in rule(evidence))


def unknown(evidence: Evidence) -> Iterator[str]:
    """Yield what could not be judged, and why."""
    if len(evidence.with_rows) < LEAST_BATCHES:
        yield (
            f"{len(evidence.with_rows)} recent batches had rows; for the sizes of batches it takes"
            f" {LEAST_BATCHES}."
        )
    if evidence.machinery is None:
        yield "No driver has told what it runs on, so its state and its cores are not judged."
    if evidence.table is None:
        yield "The table has no readable summary, so its files are not judged."


def _store(evidence: Evidence) -> Iterator[Advice]:
    ran_on = evidence.machinery
    if ran_on is None or ran_on.rocksdb:
        return
    keys = sum(int(operator["numRowsTotal"]) for operator in ran_on.operators)
    each = keys / max(1, ran_on.executors)
    if each > KEYS_IN_MEMORY:
        yield Advice(
            "state store",
            f"{keys:,} rows of state on {ran_on.executors:,} executors: {each:,.0f} each, in memory, which is"
            f" for some {KEYS_IN_MEMORY:,}",
            "keep the state in RocksDB, then reset with state rebuilt: a checkpoint keeps its store",
            'state_store="rocksdb"',
        )


def _commits(evidence: Evidence) -> Iterator[Advice]:
    ran_on = evidence.machinery
    if ran_on is None or not ran_on.operators:
        return
    last = next((batch for batch in evidence.batches if batch.number == ran_on.batch), None)
    if last is None or not last.seconds:
        return
    # Spark sums the times of all partitions (a partition's is its task's).
    took = sum(
        int(one["commitTimeMs"]) / max(1, int(one["numShufflePartitions"])) for one in ran_on.operators
    )
    share = took / 1000 / last.seconds
    if share <= LARGE_SHARE or (ran_on.rocksdb and ran_on.changelog):
        return
    yield Advice(
        "commits of state",
        f"a partition commits its state in {took / 1000:.1f} s, {share:.0%} of batch {last.number}"
        f" ({last.seconds:.1f} s)",
        "let RocksDB write what a batch changed instead of a snapshot; after a failure more is read again",
        'state_store="rocksdb"',
    )


def _partitions(evidence: Evidence) -> Iterator[Advice]:
    ran_on = evidence.machinery
    if ran_on is None or not ran_on.operators:
        return
    partitions = max(int(operator["numShufflePartitions"]) for operator in ran_on.operators)
    rows = sum(int(operator["numRowsTotal"]) for operator in ran_on.operators)
    recommended = 2 * ran_on.cores
    few, many = partitions < ran_on.cores, partitions > 2 * recommended and rows / partitions < FEW_ROWS
    if few or many:
        yield Advice(
            "partitions of state",
            f"{partitions:,} partitions on {ran_on.cores:,} cores, {rows / partitions:,.0f} rows of state in"
            " each",
            f"take one or two a core{'' if few else ': each costs every batch a task and its files'}, then"
            " reset with state rebuilt: a checkpoint keeps its partitions",
            f'spark_conf={{"{PARTITIONS}": {recommended}}}',
        )


def _custom(ran_on: Machinery, name: str) -> int:
    """Return the sum of one of RocksDB's own numbers; 0 where the store does not tell it."""
    return sum(int((operator.get("customMetrics") or {}).get(name, 0)) for operator in ran_on.operators)


def _rocksdb(evidence: Evidence) -> Iterator[Advice]:
    ran_on = evidence.machinery
    if ran_on is None:
        return
    hits = _custom(ran_on, "rocksdbReadBlockCacheHitCount")
    misses = _custom(ran_on, "rocksdbReadBlockCacheMissCount")
    if misses > FEW_ROWS and misses / (hits + misses) > LARGE_SHARE:
        yield Advice(
            "block cache of RocksDB",
            f"{misses:,} of {hits + misses:,} reads missed it in batch {ran_on.batch}"
            f" ({misses / (hits + misses):.0%})",
            "give each partition a larger cache; 8 MB is Spark's default",
            'spark_conf={"spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": 64}',
        )
    stalled = _custom(ran_on, "rocksdbWriterStallLatencyMs")
    last = next((batch for batch in evidence.batches if batch.number == ran_on.batch), None)
    if stalled:
        yield Advice(
            "stalls of RocksDB",
            f"writers waited {stalled / 1000:.1f} s in batch {ran_on.batch}, for flushes and compactions",
            "give memtables more room",
            'spark_conf={"spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": 64}',
        )
    compacted = _custom(ran_on, "rocksdbTotalCompactionLatencyMs") / 1000 / max(1, ran_on.cores)
    if last is not None and last.seconds and compacted / last.seconds > LARGE_SHARE:
        yield Advice(
            "compaction of RocksDB",
            f"{compacted:.1f} s a core in batch {last.number}, {compacted / last.seconds:.0%} of its time",
            "leave it to the maintenance in the background, and give it faster local disks",
            'spark_conf={"spark.sql.streaming.stateStore.rocksdb.compactOnCommit": "false"}',
        )


def _polls(evidence: Evidence) -> Iterator[Advice]:
    every = trigger_seconds(evidence.declared.trigger)
    if every <= SHORT_TRIGGER and evidence.polls > IDLE_POLLS * max(1, evidence.ran):
        longer = max(60.0, SHORT_TRIGGER)
        yield Advice(
            "trigger",
            f"{evidence.polls:,} polls every {evidence.declared.trigger} gave {evidence.ran:,} batches",
            "look for input less often: each poll lists folders or asks brokers",
            f'trigger="{longer:.0f} seconds"',
        )


def _small_batches(evidence: Evidence) -> Iterator[Advice]:
    ran = evidence.with_rows
    if len(ran) < LEAST_BATCHES or evidence.seconds > SHORT_BATCH:
        return
    for_rows = fmean(sum(batch.phases.get(name, 0.0) for name in _ROWS) for batch in ran)
    overhead = 1 - for_rows / evidence.seconds
    every = trigger_seconds(evidence.declared.trigger)
    if overhead > OVERHEAD and evidence.seconds > every / 2:
        yield Advice(
            "size of batches",
            f"{overhead:.0%} of a batch ({evidence.seconds:.1f} s, {fmean(batch.rows for batch in ran):,.0f}"
            f" rows, the last {len(ran)}) is planning and logs, not rows",
            "make batches larger: a longer trigger, or a higher limit of the source",
            f'trigger="{max(60.0, 6 * every):.0f} seconds"',
        )


def _files(evidence: Evidence) -> Iterator[Advice]:
    table = evidence.table
    if table is None or table.files < MANY_FILES or table.bytes / table.files > SMALL_FILE:
        return
    yield Advice(
        "files of the table",
        f"{table.files:,} files of {table.bytes / table.files / 1024 / 1024:.1f} MB on average in version"
        f" {table.version:,}",
        "write fewer (a longer trigger, optimized writes), and put them together each night: tidy_tables",
        f'dp.create_streaming_table("{evidence.declared.target}",'
        ' table_properties={"delta.autoOptimize.optimizeWrite": True})',
    )


def _undeclared_store(evidence: Evidence) -> Iterator[Advice]:
    """Tell that the checkpoint has another store than the one that is declared: a reset has not been made."""
    ran_on, declared_provider = evidence.machinery, evidence.declared.spark_conf.get(PROVIDER)
    declared = next(
        (name for name, conf in STATE_STORES.items() if conf[PROVIDER] == declared_provider), None
    )
    if ran_on is None or not ran_on.operators or declared is None:
        return
    current = "rocksdb" if ran_on.rocksdb else "default"
    if declared != current:
        yield Advice(
            "declared state store",
            f"{declared} is declared, and the checkpoint has {current}",
            "reset with state rebuilt, for the declared store to take effect",
        )


RULES: tuple[Callable[[Evidence], Iterator[Advice]], ...] = (
    _store,
    _undeclared_store,
    _commits,
    _partitions,
    _rocksdb,
    _polls,
    _small_batches,
    _files,
)
"""The rules, in the order in which their advice is shown."""


def in_words(flow: str, advice: Sequence[Advice], missing: Sequence[str]) -> str:
    """Return advice as text."""
    lines = [f"{flow}: {len(advice) or 'no'} {'piece' if len(advice) == 1 else 'pieces'} of advice."]
    for item in advice:
        lines += ["", f"{item.about}: {item.figures}.", f"  {item.do[0].upper()}{item.do[1:]}."]
        lines += [f"  Declare: {item.declare}"] if item.declare else []
    return "\n".join([*lines, *([""] if missing else []), *(f"Not judged: {text}" for text in missing)])


def to_json(flow: str, advice: Sequence[Advice], missing: Sequence[str]) -> dict[str, Any]:
    """Return advice as a JSON object."""
    return {"flow": flow, "advice": [vars(item) for item in advice], "not_judged": list(missing)}
