"""Metrics of all flows: one table of definitions, for Prometheus' text format (Prometheus, "Exposition
formats", version 0.0.4) and for OpenTelemetry (:mod:`streamkeeper.health.otlp`).

Names are OpenTelemetry's, and Prometheus' names are made of them as its own mapping does. Labels are the
pipeline and the flow, never an epoch or an application, which would make new series with each restart. Most
counters are those of the present driver: ``rate()`` bears their reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from streamkeeper import __version__
from streamkeeper.health import flows as health
from streamkeeper.health import recoveries
from streamkeeper.health.flows import STATES, UNREADABLE, Ask, FlowHealth, at_once
from streamkeeper.health.recoveries import Recoveries
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.storage import Storage
from streamkeeper.watch import progress
from streamkeeper.watch.batch_numbers import Batch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGE, COUNTER = "gauge", "counter"
"""Types of metrics."""
_SUFFIXES = {"s": "seconds", "By": "bytes"}
"""What Prometheus' mapping puts for a unit at the end of a name; nothing for one in braces."""


@dataclass(frozen=True)
class Sample:
    """A value with its labels. ``since`` is when a counter began to count, in seconds since 1970; None where
    that is unknown, and for gauges.
    """

    labels: Mapping[str, str]
    value: float
    since: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric and its values now. ``unit`` is one of UCUM, as OpenTelemetry wants it; empty for a truth."""

    name: str
    kind: str
    unit: str
    help: str
    samples: tuple[Sample, ...]

    @property
    def prometheus(self) -> str:
        """Its name for Prometheus: unit and type at its end, each once."""
        words = self.name.replace(".", "_").split("_")
        suffix = _SUFFIXES.get(self.unit)
        words += [suffix] if suffix and suffix not in words else []
        return "_".join([*words, *(["total"] if self.kind == COUNTER else [])])


@dataclass(frozen=True)
class Snapshot:
    """What metrics are made of. ``monitor`` is when the monitor last looked, None if it never did, and ``at``
    when all this was read, in seconds since 1970.
    """

    rows: tuple[FlowHealth, ...]
    recoveries: Recoveries
    monitor: float | None
    at: float

    @property
    def readable(self) -> tuple[FlowHealth, ...]:
        """The rows of the flows that can be read."""
        return tuple(row for row in self.rows if row.state != UNREADABLE)


def see(storage: Storage, manifest: Manifest, ask: Ask = at_once) -> Snapshot:
    """Return a row for each declared flow, however broken, and what else metrics are made of.

    :param ask: reads the row of a flow.
    :raises StorageError: the state folder cannot be read at all.
    """
    at = time.time()
    rows = health.look_at_all(storage, manifest, ask=ask)
    return Snapshot(rows, recoveries.count(storage), progress.looked_at(storage), at)


def measure(snapshot: Snapshot) -> tuple[Metric, ...]:
    """Return all metrics that have a value."""
    metrics = (
        Metric(f"streamkeeper.{name}", kind, unit, help, tuple(samples_of(snapshot)))
        for name, kind, unit, help, samples_of in _DEFINITIONS
    )
    return tuple(metric for metric in metrics if metric.samples)


def text(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name = metric.prometheus
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
    for sample in metric.samples:
        labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in sample.labels.items())
        yield f"{name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Return a number with all of its digits: ``%g`` rounds a time to minutes."""
    return str(int(value)) if value == int(value) else repr(value)


_Samples = Callable[[Snapshot], Iterable[Sample]]


def _of(row: FlowHealth) -> dict[str, str]:
    return {"pipeline": row.pipeline, "flow": row.flow.partition(".")[2]}


def _flow(value: Callable[[FlowHealth], float | None]) -> _Samples:
    """One number of each flow that has it."""
    return lambda snapshot: [
        Sample(_of(row), float(number)) for row in snapshot.readable if (number := value(row)) is not None
    ]


def _driver(value: Callable[[Totals], float | None]) -> _Samples:
    """A number of each flow's present driver, counted since that began."""
    return lambda snapshot: [
        Sample(_of(row), float(number), row.driver_since)
        for row in snapshot.readable
        if (number := value(row.totals)) is not None
    ]


def _of_operators(place: int) -> _Samples:
    """One number of each stateful operator of each flow's last batch: its rows (0) or its bytes (1)."""
    return lambda snapshot: [
        Sample({**_of(row), "operator": name}, float(numbers[place]))
        for row in snapshot.readable
        if row.batch_numbers is not None
        for name, numbers in row.batch_numbers.operators.items()
    ]


def _last(value: Callable[[Batch], float | None]) -> _Samples:
    """A number of each flow's last batch."""
    return _flow(lambda row: None if row.batch_numbers is None else value(row.batch_numbers))


def _lag(name: str) -> _Samples:
    """How much of each source waits, where that is known."""
    return lambda snapshot: [
        Sample({**_of(row), "source": source}, float(amount))
        for row in snapshot.readable
        if row.lag is not None
        for source, lag in row.lag.sources.items()
        if (amount := getattr(lag, name)) is not None
    ]


def _info(snapshot: Snapshot) -> list[Sample]:
    return [
        Sample({**_of(row), "table": row.table, "dag_id": row.dag_id, "trigger": row.trigger}, 1.0)
        for row in snapshot.rows
    ]


def _states(snapshot: Snapshot) -> list[Sample]:
    return [
        Sample({**_of(row), "state": state}, float(row.state == state))
        for row in snapshot.rows
        for state in STATES
    ]


def _unreadable(snapshot: Snapshot) -> list[Sample]:
    return [Sample(_of(row), float(row.state == UNREADABLE)) for row in snapshot.rows]


def _expectations(snapshot: Snapshot) -> list[Sample]:
    return [
        Sample({**_of(row), "expectation": name, "result": result}, float(rows), row.driver_since)
        for row in snapshot.readable
        for name, counts in row.totals.expectations.items()
        for result, rows in zip(("passed", "failed"), counts, strict=True)
    ]


def _recoveries(counts: Mapping[tuple[str, str, str], int], label: str) -> list[Sample]:
    return [
        Sample({"pipeline": pipeline, "recovery": recovery, label: stage}, float(number))
        for (pipeline, recovery, stage), number in sorted(counts.items())
    ]


_DEFINITIONS: tuple[tuple[str, str, str, str, _Samples], ...] = (
    ("build.info", GAUGE, "", "Release of Streamkeeper.", lambda _: [Sample({"version": __version__}, 1.0)]),
    ("flow.info", GAUGE, "", "What a flow is.", _info),
    ("flow.state", GAUGE, "", "1 for the state that a flow is in, 0 for the others.", _states),
    ("flow.unreadable", GAUGE, "", "1 where the files of a flow cannot be read.", _unreadable),
    ("flow.generation", GAUGE, "", "Generation of a flow.", _flow(lambda row: row.generation)),
    ("flow.last_batch", GAUGE, "", "Last committed batch.", _flow(lambda row: row.batch)),
    (
        "flow.last_commit.timestamp",
        GAUGE,
        "s",
        "When the last batch was committed.",
        lambda snapshot: [
            Sample(_of(row), snapshot.at - row.age) for row in snapshot.readable if row.age is not None
        ],
    ),
    (
        "flow.input.waiting_since.timestamp",
        GAUGE,
        "s",
        "Since when input waits that no batch read; absent if none waits.",
        _flow(lambda row: row.waiting_since),
    ),
    ("flow.lag.seconds", GAUGE, "s", "Age of the oldest input of a source that waits.", _lag("seconds")),
    ("flow.lag.records", GAUGE, "{record}", "Records of a source that wait.", _lag("records")),
    ("flow.lag.files", GAUGE, "{file}", "Files of a source that wait.", _lag("files")),
    ("flow.lag.bytes", GAUGE, "By", "Bytes of a source that wait.", _lag("bytes")),
    ("flow.skipped.files", GAUGE, "{file}", "Files of a source that Spark reads no more.", _lag("skipped")),
    ("flow.lag.versions", GAUGE, "{version}", "Versions of a table that wait.", _lag("versions")),
    ("flow.drivers", COUNTER, "{driver}", "Drivers that a flow has had.", _flow(lambda row: row.epoch)),
    (
        "flow.failures_since_commit",
        GAUGE,
        "{failure}",
        "Drivers that failed since the last commit, in half an hour and 5 at most.",
        _flow(lambda row: row.failures),
    ),
    (
        "flow.input.rows",
        COUNTER,
        "{row}",
        "Rows that the driver has read.",
        _driver(lambda totals: totals.rows),
    ),
    (
        "flow.output.rows",
        COUNTER,
        "{row}",
        "Rows that the driver has written; absent where the sink does not count them.",
        _driver(lambda totals: totals.rows_out),
    ),
    ("flow.batches", COUNTER, "{batch}", "Batches of the driver.", _driver(lambda totals: totals.batches)),
    ("flow.batch.seconds", COUNTER, "s", "Time in batches.", _driver(lambda totals: totals.seconds)),
    ("flow.late.rows", COUNTER, "{row}", "Rows dropped as late.", _driver(lambda totals: totals.late)),
    (
        "flow.skipped.commits",
        COUNTER,
        "{commit}",
        "Commits of Delta sources that were passed over (skipChangeCommits).",
        _driver(lambda totals: totals.skipped_commits),
    ),
    (
        "flow.skipped.rows",
        COUNTER,
        "{row}",
        "Rows that were added or changed in them, at most.",
        _driver(lambda totals: totals.skipped_rows),
    ),
    (
        "flow.tied.rows",
        COUNTER,
        "{row}",
        "Upserts of AUTO CDC that the sequence does not order.",
        _driver(lambda totals: totals.ties),
    ),
    (
        "flow.expectation.rows",
        COUNTER,
        "{row}",
        "Rows that passed and that failed an expectation.",
        _expectations,
    ),
    ("flow.batch.duration", GAUGE, "s", "How long the last batch took.", _last(lambda last: last.seconds)),
    ("flow.state.rows", GAUGE, "{row}", "Rows in the state of an operator of a flow.", _of_operators(0)),
    ("flow.state.memory", GAUGE, "By", "Memory of the state of an operator of a flow.", _of_operators(1)),
    (
        "flow.watermark.timestamp",
        GAUGE,
        "s",
        "Watermark of the last batch.",
        _last(lambda last: last.watermark),
    ),
    (
        "recovery.steps",
        GAUGE,
        "{recovery}",
        "Recoveries that are open, by the step that they came to.",
        lambda snapshot: _recoveries(snapshot.recoveries.open, "step"),
    ),
    (
        "recoveries",
        COUNTER,
        "{recovery}",
        "Recoveries that are over.",
        lambda snapshot: _recoveries(snapshot.recoveries.over, "outcome"),
    ),
    (
        "monitor.last_look.timestamp",
        GAUGE,
        "s",
        "When the monitor last looked at the flows.",
        lambda snapshot: [] if snapshot.monitor is None else [Sample({}, snapshot.monitor)],
    ),
    (
        "last_look.timestamp",
        GAUGE,
        "s",
        "When these numbers were read.",
        lambda snapshot: [Sample({}, snapshot.at)],
    ),
)
"""Name, type, unit, help and values of each metric."""
