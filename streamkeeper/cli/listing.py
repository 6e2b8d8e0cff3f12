"""Output of ``streamkeeper flows``, ``advise`` and ``metrics``."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkeeper.cli.output import Grid, lines_of, put, say, settings_in_use, show, terminal_width
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import newest_summary
from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.flows.files import open_home
from streamkeeper.health import advise as advice
from streamkeeper.health import flows as health
from streamkeeper.health import metrics, otlp
from streamkeeper.health.advise import Evidence
from streamkeeper.health.flows import IDLE, STATES, UNREADABLE, FlowHealth
from streamkeeper.health.troubles import JUDGED
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.base.format import Lag
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import counted, size_in_words
from streamkeeper.support.times import describe_age, in_seconds
from streamkeeper.watch.batch_numbers import Batch, machinery, recent, told_by

_HEADING = (
    *("flow", "state", "since", "generation", "last batch", "behind", "rows/s", "batch took"),
    *("state size", "last recovery", "detail"),
)
_DASH = "–"
_OFTEN_EMPTY = ("state size", "last recovery")
"""Columns that are left out where no flow has a value."""
_FIRST_LEFT_OUT = ("last recovery", "state size", "rows/s", "generation", "batch took", "last batch")
"""Columns that are left out, in this order, where a terminal is too narrow for all."""
_NAME = 20
"""Characters of a flow's name that are shown however narrow the terminal is."""
_LONGEST = 40
"""Characters of a last recovery that are shown; ``streamkeeper flow`` has all of them."""


@dataclass(frozen=True)
class Filter:
    """Which flows are listed: those of a pipeline, or in a state, or all."""

    pipeline: str | None = None
    state: str | None = None

    def rows(self, rows: Sequence[FlowHealth]) -> list[FlowHealth]:
        """Return the rows that are asked for.

        :raises RequestError: there is no such pipeline or state.
        """
        pipelines = sorted({row.pipeline for row in rows})
        for field, requested, allowed in (
            ("pipeline", self.pipeline, pipelines),
            ("state", self.state, STATES),
        ):
            if requested is not None and requested not in allowed:
                raise RequestError(f"There is no {field} {requested!r}. Allowed are {', '.join(allowed)}.")
        return [
            row for row in rows if self.pipeline in (None, row.pipeline) and self.state in (None, row.state)
        ]


ALL = Filter()


def _behind_first(row: FlowHealth) -> tuple[float, int]:
    lag = row.lag
    return (-(lag.seconds or 0.0), -(lag.records or 0)) if lag is not None else (1.0, 0)


def show_flows(as_json: bool, chosen: Filter = ALL) -> None:
    """Print a row for each flow: its state, generation, last batch, lag, and the numbers of that batch.

    Errors in pipeline files to standard error.

    :raises StreamkeeperError: some flow cannot be read; the others were shown.
    :raises RequestError: there is no such pipeline or state.
    """
    manifest, rows = health.look_now(settings_in_use())
    chosen_rows = chosen.rows(rows)
    readable = [row for row in chosen_rows if row.state != UNREADABLE]
    show([item.to_json() for item in readable], as_json, _grid(readable, terminal_width()))
    for message in manifest.errors.values():
        say(f"streamkeeper: {message}")
    unreadable = [f"{row.flow}: {row.detail}" for row in chosen_rows if row.state == UNREADABLE]
    if unreadable:
        raise StreamkeeperError("\n".join(["Some flows cannot be inspected:", *unreadable]))


def as_text(chosen: Filter, width: int) -> str:
    """Return the same as text, the flow that is furthest behind first, with the broken flows among the
    others, and how many are in each state.

    :raises RequestError: there is no such pipeline or state.
    """
    manifest, rows = health.look_now(settings_in_use())
    chosen_rows = sorted(chosen.rows(rows), key=_behind_first)
    counts = ", ".join(f"{number} {state}" for state, number in health.counts(tuple(chosen_rows)))
    heading = f"{time.strftime('%H:%M:%S')}  {counts or 'no flow'}"
    return "\n".join([heading, "", *lines_of(_grid(chosen_rows, width), width), *manifest.errors.values()])


def _grid(rows: Sequence[FlowHealth], width: int | None) -> Grid:
    """Return the table of some flows; in a terminal with what fits beside each other.

    :param width: of the terminal; None for all columns, and whole texts.
    """
    cells = [dict(zip(_HEADING, _row(row), strict=True)) for row in rows]
    empty = {title for title in _OFTEN_EMPTY if all(cell[title] == _DASH for cell in cells)}
    shown = [title for title in _HEADING if title not in empty]
    if width is not None:
        for cell in cells:
            cell["flow"] = _cut(cell["flow"], max(_NAME, width // 3))
            cell["detail"] = _cut(cell["detail"], 2 * width)
        for title in _FIRST_LEFT_OUT:
            if title in shown and _width_of(shown, cells) > width:
                shown.remove(title)
    return Grid(shown, [[cell[title] for title in shown] for cell in cells])


def _width_of(shown: Sequence[str], cells: Sequence[Mapping[str, str]]) -> int:
    """Return the width of all columns but the last, for which there is room below."""
    return sum(max(len(title), *(len(cell[title]) for cell in cells), 0) + 2 for title in shown[:-1])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def show_metrics(over_otlp: bool) -> None:
    """Print the metrics of all flows, or push them; a flow that cannot be read has a metric that says so.

    :raises PushFailed: no collector took them.
    """
    settings = settings_in_use()
    snapshot = metrics.see(open_storage(settings.state), read_manifest(settings))
    measured = metrics.measure(snapshot)
    if over_otlp:
        otlp.push(measured, snapshot.at)
        say(f"{len(measured)} metrics were pushed.")
    else:
        put(metrics.text(measured).rstrip("\n"))


def show_advice(name: str, as_json: bool) -> None:
    """Print what to declare otherwise in a flow, with the figures that it comes from.

    :raises RequestError: there is no such flow, or it never ran a batch.
    """
    settings = settings_in_use()
    flow = read_manifest(settings).find(name)
    home = open_home(settings, flow.full_name)
    batches, beat = recent(home), Observed(home).heartbeat
    if not batches:
        raise RequestError(f"{flow.full_name} has no recent batch to judge. Start it, and ask again.")
    target = settings.table_path(flow.declaration.target)
    evidence = Evidence(
        flow.declaration,
        batches,
        machinery(home),
        polls=0 if beat is None else beat.triggers,
        ran=told_by(beat).totals.batches,
        table=newest_summary(target) if delta_log.exists(target) else None,
    )
    pieces, missing = advice.advise(evidence), tuple(advice.unknown(evidence))
    text = advice.in_words(flow.full_name, pieces, missing)
    show(advice.to_json(flow.full_name, pieces, missing), as_json, text)


def _row(item: FlowHealth) -> list[str]:
    last = item.batch_numbers
    since = None if item.since is None else in_seconds(item.since)
    committed = "" if item.age is None else f", {describe_age(item.age)} ago"
    return [
        item.flow,
        item.state,
        _DASH if since is None else describe_age(max(0.0, time.time() - since)),
        _or_dash(item.generation),
        f"{_or_dash(item.batch)}{committed}",
        _behind(item),
        _DASH if item.rows_per_second is None else f"{item.rows_per_second:,.0f}",
        _DASH if last is None else f"{last.seconds:.1f} s of {item.trigger}",
        _DASH if last is None or not last.state_rows else _state(last),
        textwrap.shorten(item.last_recovery, _LONGEST, placeholder=" …") or _DASH,
        item.detail,
    ]


def numbers_of(item: FlowHealth) -> list[str]:
    """Return the columns of a flow that have a value, one a line, and what its driver has passed over."""
    cells = dict(zip(_HEADING, _row(item), strict=True)) | {"last recovery": item.last_recovery or _DASH}
    lines = [f"{title}: {cells[title]}" for title in _HEADING[2:-1] if cells[title] != _DASH]
    totals = item.totals
    if totals.skipped_commits:
        rows = f"with at most {totals.skipped_rows:,} rows added or changed in them"
        lines.append(f"skipped: {counted(totals.skipped_commits, 'commits')}, {rows}")
    if totals.ties:
        lines.append(f"ties: {counted(totals.ties, 'upserts')} that the sequence does not order")
    return lines


def sources_of(value: dict[str, Any], item: FlowHealth) -> list[str]:
    """Return each source of a flow with its position and what waits, or why that is unknown.

    :param value: as :func:`streamkeeper.health.details.look` returns it.
    """
    lags = {} if item.lag is None else item.lag.sources
    return [
        f"{one['name']} ({one['kind']}): {one['position'] or 'nothing is read yet'}"
        f"{_waits(lags.get(one['name']))}"
        for one in value["sources"]
    ]


def _waits(lag: Lag | None) -> str:
    if lag is None:
        return ""
    skipped = f"; {lag.skipped_reason}" if lag.skipped else ""
    if lag.unknown:
        return f"; what waits is unknown: {lag.reason}{skipped}"
    numbers = {"records": lag.records, "files": lag.files, "versions": lag.versions}
    parts = [counted(number, name) for name, number in numbers.items() if number]
    parts += [size_in_words(lag.bytes)] if lag.bytes else []
    parts += [f"the oldest for {describe_age(lag.seconds)}"] if lag.seconds else []
    reason = f" ({lag.reason})" if lag.reason else ""
    return (f"; waits: {', '.join(parts)}{reason}" if parts else reason or "; nothing waits") + skipped


def _state(batch: Batch) -> str:
    """Return how large the state of a batch is."""
    return f"{batch.state_rows:,} rows, {size_in_words(batch.state_bytes)}"


def _behind(item: FlowHealth) -> str:
    """Return how far a flow is behind, in seconds and records or files, and whether that grows."""
    lag = item.lag
    if lag is None:
        return _DASH
    nothing_known = all(one.unknown for one in lag.sources.values())
    unknown = "" if not lag.partly_unknown else "unknown" if nothing_known else "partly unknown"
    if lag.seconds == 0:
        return unknown or "nothing waits"
    numbers = {name: getattr(lag, name) for name in ("records", "files", "versions")}
    counts = [counted(number, name) for name, number in numbers.items() if number is not None]
    age = "" if lag.seconds is None else describe_age(lag.seconds)
    parts = [part for part in (age, *counts[:1], unknown) if part]
    arrow = {None: "", "steady": " →", "grows": " ↗", "shrinks": " ↘"}[lag.moves]
    catches_up = lag.moves == "shrinks" and item.state in JUDGED and item.state != IDLE
    ends = lag.caught_up_in if catches_up else None
    caught_up = "" if ends is None else f" caught up in {describe_age(ends)}"
    return (", ".join(parts) or _DASH) + arrow + caught_up


def _or_dash(value: object) -> str:
    return _DASH if value is None else str(value)
