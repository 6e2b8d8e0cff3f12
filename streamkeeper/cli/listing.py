"""Output of ``streamkeeper flows``, ``advise`` and ``metrics``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from streamkeeper.cli.output import Grid, lines_of, put, say, show
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import newest_summary
from streamkeeper.drivers.batch_numbers import machinery, recent, told_by
from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.status import Kept
from streamkeeper.health import advise as advice
from streamkeeper.health import flows as health
from streamkeeper.health import metrics
from streamkeeper.health.advise import Evidence
from streamkeeper.health.flows import STATES, UNREADABLE, FlowHealth
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.times import describe_age

STEADY = 0.05
"""Change of the seconds behind, a second, below which a lag neither grows nor shrinks."""


@dataclass(frozen=True)
class Asked:
    """Which flows are listed, and in which order: as declared, or the one that is furthest behind first."""

    pipeline: str | None = None
    state: str | None = None
    by_lag: bool = False

    def rows(self, rows: Sequence[FlowHealth]) -> list[FlowHealth]:
        """Return the rows that are asked for.

        :raises RequestError: there is no such pipeline or state.
        """
        pipelines = sorted({row.pipeline for row in rows})
        for what, wanted, known in (("pipeline", self.pipeline, pipelines), ("state", self.state, STATES)):
            if wanted is not None and wanted not in known:
                raise RequestError(f"There is no {what} {wanted!r}. Allowed are {', '.join(known)}.")
        found = [
            row for row in rows if self.pipeline in (None, row.pipeline) and self.state in (None, row.state)
        ]
        return sorted(found, key=_behind_first) if self.by_lag else found


ALL = Asked()


def _behind_first(row: FlowHealth) -> tuple[float, int]:
    lag = row.lag
    return (-(lag.seconds or 0.0), -(lag.records or 0)) if lag is not None else (1.0, 0)


def show_flows(as_json: bool, asked: Asked = ALL) -> None:
    """Print a row for each flow: its state, generation, last batch, lag, and the numbers of that batch.

    Errors in pipeline files to standard error.

    :raises StreamkeeperError: some flow cannot be read; the others were shown.
    :raises RequestError: there is no such pipeline or state.
    """
    known, rows = health.look_now(Settings.from_environment())
    wanted = asked.rows(rows)
    found = [row for row in wanted if row.state != UNREADABLE]
    show([item.to_json() for item in found], as_json, _grid(found))
    for message in known.errors.values():
        say(f"streamkeeper: {message}")
    unreadable = [f"{row.flow}: {row.detail}" for row in wanted if row.state == UNREADABLE]
    if unreadable:
        raise StreamkeeperError("\n".join(["Some flows cannot be inspected:", *unreadable]))


def as_text(asked: Asked, width: int) -> str:
    """Return the same as text, with the broken flows among the others, and how many are in each state.

    :raises RequestError: there is no such pipeline or state.
    """
    known, rows = health.look_now(Settings.from_environment())
    wanted = asked.rows(rows)
    counts = ", ".join(f"{number} {state}" for state, number in health.counts(tuple(wanted)))
    heading = f"{time.strftime('%H:%M:%S')}  {counts or 'no flow'}"
    return "\n".join([heading, "", *lines_of(_grid(wanted), width), *known.errors.values()])


def _grid(rows: Sequence[FlowHealth]) -> Grid:
    heading = ["flow", "state", "generation", "batch", "age", "behind", "rows/s", "batch took", "detail"]
    return Grid(heading, [_row(row) for row in rows])


def show_metrics() -> None:
    """Print the metrics of all flows; a flow that cannot be read has a metric that says so."""
    put(metrics.text(health.look_now(Settings.from_environment())[1]).rstrip("\n"))


def show_advice(name: str, as_json: bool) -> None:
    """Print what to declare otherwise in a flow, with the figures that it comes from.

    :raises RequestError: there is no such flow, or it never ran a batch.
    """
    settings = Settings.from_environment()
    flow = read_manifest(settings).find(name)
    home = open_home(settings, flow.full_name)
    batches, told = recent(home), Kept(home).beat
    if not batches:
        raise RequestError(f"{flow.full_name} has no recent batch to judge. Start it, and ask again.")
    target = settings.table_path(flow.declaration.target)
    evidence = Evidence(
        flow.declaration,
        batches,
        machinery(home),
        polls=0 if told is None else told.triggers,
        ran=told_by(told).totals.batches,
        table=newest_summary(target) if delta_log.exists(target) else None,
    )
    found, missing = advice.advise(evidence), tuple(advice.unknown(evidence))
    text = advice.in_words(flow.full_name, found, missing)
    show(advice.to_json(flow.full_name, found, missing), as_json, text)


def _row(item: FlowHealth) -> list[str]:
    age = "–" if item.age is None else describe_age(item.age)
    rate = "–" if item.rows_per_second is None else f"{item.rows_per_second:,.0f}"
    took = "–" if item.batch_numbers is None else f"{item.batch_numbers.seconds:.1f} s"
    return [
        item.flow,
        item.state,
        _or_dash(item.generation),
        _or_dash(item.batch),
        age,
        _behind(item),
        rate,
        took,
        item.detail,
    ]


def _behind(item: FlowHealth) -> str:
    """Return how far a flow is behind, in seconds and records, and whether that grows."""
    lag = item.lag
    if lag is None or (lag.seconds is None and lag.records is None):
        return "–"
    parts = [] if lag.seconds is None else [describe_age(lag.seconds)]
    parts += [] if lag.records is None else [f"{lag.records:,} records"]
    steady = lag.trend is None or abs(lag.trend) < STEADY
    arrow = "" if lag.trend is None else " →" if steady else " ↑" if lag.trend > 0 else " ↓"
    return ", ".join(parts) + arrow


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)
