"""Metrics of all flows in Prometheus' text format (Prometheus, "Exposition formats", version 0.0.4).

Base units, one unit a name, ``_total`` for counters. Labels are the pipeline and the flow, never an epoch or
an application, which would make new series with each restart. Counters are those of the present driver:
``rate()`` bears their reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from streamkeeper import __version__
from streamkeeper.drivers.batch_numbers import Batch
from streamkeeper.health.flows import STATES, UNREADABLE, FlowHealth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Sample = tuple[Mapping[str, str], float]
_Value = Callable[[FlowHealth], float | None]


def text(rows: tuple[FlowHealth, ...], looked: float | None = None) -> str:
    """Return all metrics of some flows.

    :param looked: when they were looked at, in seconds since 1970; now by default.
    """
    at, now = time.time() if looked is None else looked, time.time()
    aged = (row if row.age is None else replace(row, age=row.age + now - at) for row in rows)
    return "".join(_lines(tuple(aged), at))


def _lines(rows: tuple[FlowHealth, ...], looked: float) -> Iterator[str]:
    yield from _metric("build_info", "gauge", "Release of Streamkeeper.", [({"version": __version__}, 1)])
    yield from _metric(
        "flow_info",
        "gauge",
        "What a flow is.",
        [({**_of(row), "table": row.table, "dag_id": row.dag_id, "trigger": row.trigger}, 1) for row in rows],
    )
    yield from _metric(
        "flow_state",
        "gauge",
        "1 for the state that a flow is in, 0 for the others.",
        [({**_of(row), "state": state}, float(row.state == state)) for row in rows for state in STATES],
    )
    yield from _metric(
        "flow_unreadable",
        "gauge",
        "1 where the files of a flow cannot be read.",
        [(_of(row), float(row.state == UNREADABLE)) for row in rows],
    )
    known = [row for row in rows if row.state != UNREADABLE]
    for name, kind, help, value in _NUMBERS:
        samples = [(_of(row), float(found)) for row in known if (found := value(row)) is not None]
        yield from _metric(name, kind, help, samples)
    ran = [(row, row.batch_numbers) for row in known if row.batch_numbers is not None]
    for name, kind, help, of_batch in _OF_THE_LAST_BATCH:
        samples = [(_of(row), float(found)) for row, last in ran if (found := of_batch(last)) is not None]
        yield from _metric(name, kind, help, samples)
    yield from _metric("last_look_timestamp_seconds", "gauge", "When these were read.", [({}, looked)])


_NUMBERS: tuple[tuple[str, str, str, _Value], ...] = (
    ("flow_generation", "gauge", "Generation of a flow.", lambda row: row.generation),
    ("flow_last_batch", "gauge", "Last committed batch.", lambda row: row.batch),
    (
        "flow_last_commit_timestamp_seconds",
        "gauge",
        "When the last batch was committed.",
        lambda row: None if row.age is None else time.time() - row.age,
    ),
    (
        "flow_input_waiting_since_timestamp_seconds",
        "gauge",
        "Since when input waits that no batch read; absent if none waits.",
        lambda row: row.waiting_since,
    ),
    ("flow_drivers_total", "counter", "Drivers that a flow has had.", lambda row: row.epoch),
    ("flow_input_rows_total", "counter", "Rows that the driver has read.", lambda row: row.totals.rows),
    ("flow_batches_total", "counter", "Batches of the driver.", lambda row: row.totals.batches),
    ("flow_batch_seconds_total", "counter", "Seconds in batches.", lambda row: row.totals.seconds),
    ("flow_late_rows_total", "counter", "Rows dropped as late.", lambda row: row.totals.late),
)
"""Name, type, help and value of the numbers of a flow; None where there is none."""

_OF_THE_LAST_BATCH: tuple[tuple[str, str, str, Callable[[Batch], float | None]], ...] = (
    (
        "flow_batch_duration_seconds",
        "gauge",
        "How long the last batch took.",
        lambda last: last.seconds,
    ),
    (
        "flow_state_rows",
        "gauge",
        "Rows in the state of a flow.",
        lambda last: last.state_rows,
    ),
    (
        "flow_state_memory_bytes",
        "gauge",
        "Memory of the state of a flow.",
        lambda last: last.state_bytes,
    ),
    (
        "flow_watermark_timestamp_seconds",
        "gauge",
        "Watermark of the last batch.",
        lambda last: last.watermark,
    ),
)


def _of(row: FlowHealth) -> dict[str, str]:
    return {"pipeline": row.pipeline, "flow": row.flow.partition(".")[2]}


def _metric(name: str, kind: str, help: str, samples: Sequence[_Sample]) -> Iterator[str]:
    if not samples:
        return
    yield f"# HELP streamkeeper_{name} {help}\n# TYPE streamkeeper_{name} {kind}\n"
    for labels, value in samples:
        said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"streamkeeper_{name}{f'{{{said}}}' if said else ''} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Return a number with all of its digits: ``%g`` rounds a time to minutes."""
    return str(int(value)) if value == int(value) else repr(value)
