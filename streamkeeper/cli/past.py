"""``streamkeeper events`` and ``streamkeeper history``: what happened, and a flow's numbers over time."""

from __future__ import annotations

import json as plain_json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer

from streamkeeper.cli import output
from streamkeeper.cli.examples import example
from streamkeeper.cli.output import Grid, put, settings_in_use, show
from streamkeeper.cli.running import seconds_of
from streamkeeper.errors import RequestError
from streamkeeper.flows.files import FlowHome, kept_flows, kept_pipelines
from streamkeeper.history import events, rows
from streamkeeper.history.events import Event, Kind
from streamkeeper.history.rows import Row
from streamkeeper.manifest import names
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.times import describe_age

LAST = 100
"""Newest events that are shown unless a time is given."""
FOLLOWED_SECONDS = 600.0
"""Age of the events that ``--follow`` begins with, unless a time is given."""
HISTORY_SECONDS = 7_200.0
"""How far ``history`` goes back unless a time is given."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; with --follow an object a line.")]
Since = Annotated[str, typer.Option(help="How far to go back: a number with s, m, h or d.", metavar="2h")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("events", epilog=example("events"))(show_events)
    app.command("history", epilog=example("history"))(show_history)


def show_events(
    subject: Annotated[
        str, typer.Argument(help="A pipeline or a flow; all pipelines by default.", metavar="PIPELINE|FLOW")
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events, until Ctrl-C.")] = False,
    since: Since = "",
    kind: Annotated[list[str] | None, typer.Option(help="Only events of this kind; may be repeated.")] = None,
    json: AsJson = False,
) -> None:
    """Show what happened: drivers, parks, holds, changes, recoveries, alerts, and who did it.

    Without --since: the newest 100, or with --follow those of the last ten minutes.
    """
    storage = open_storage(settings_in_use().state)
    pipelines, flow = _which(storage, subject)
    kinds = _kinds(kind or ())
    begin = _begin(since)
    if follow:
        come = events.follow(storage, pipelines, time.time() - FOLLOWED_SECONDS if begin is None else begin)
        _put_each(_chosen(storage, come, flow, kinds), json)
        return
    read = (event for name in pipelines for event in events.read(storage, name, begin))
    chosen = sorted(_chosen(storage, read, flow, kinds), key=lambda event: (event.at, event.id))
    chosen = chosen if begin is not None else chosen[-LAST:]
    text = "\n".join(map(str, chosen)) or "Nothing happened."
    show([event.to_json() for event in chosen], json, text)


def show_history(
    flow: Annotated[str, typer.Argument(help="A flow, as pipeline.flow.")],
    *,
    since: Since = "",
    json: AsJson = False,
) -> None:
    """Show a flow's numbers by minute, kept for seven days.

    Without --since: those of the last two hours.
    """
    storage = open_storage(settings_in_use().state)
    (pipeline,), name = _which(storage, flow)
    if name is None:
        raise RequestError(f"{flow} is a pipeline. Name one of its flows: {_flows_of(storage, pipeline)}.")
    begin = _begin(since)
    begin = time.time() - HISTORY_SECONDS if begin is None else begin
    home = FlowHome(storage, pipeline, name.partition(".")[2])
    minutes = rows.minutes(home, begin)
    heading = ["until (UTC)", "of", "state", "batches", "rows", "rows/s", "in batches", "behind", "restarts"]
    show([row.to_json() for row in minutes], json, Grid(heading, [_cells(row) for row in minutes]))


def _which(storage: Storage, subject: str) -> tuple[list[str], str | None]:
    """Return the pipelines that are meant, and the flow if one is.

    :raises RequestError: nothing is kept under the name.
    """
    pipelines = kept_pipelines(storage)
    if not subject:
        return pipelines, None
    present = names.read(storage)
    pipeline, _, flow = subject.partition(".")
    pipeline = present.pipeline_in(present.folder(pipeline))
    if pipeline not in pipelines:
        raise RequestError(
            f"Nothing is kept of {subject!r}. There are the pipelines {', '.join(pipelines) or '(none)'}."
            " Name one of them, or a flow as pipeline.flow."
        )
    if not flow:
        return [pipeline], None
    name = present.present(subject)
    if name.partition(".")[2] not in {home.flow for home in kept_flows(storage, pipeline)}:
        raise RequestError(f"Nothing is kept of {subject!r}. {pipeline} has {_flows_of(storage, pipeline)}.")
    return [pipeline], name


def _flows_of(storage: Storage, pipeline: str) -> str:
    return ", ".join(home.full_name for home in kept_flows(storage, pipeline)) or "no flow that ran"


def _kinds(requested: Sequence[str]) -> frozenset[str]:
    unknown = sorted(set(requested) - set(Kind))
    if unknown:
        raise RequestError(f"There is no kind of event {', '.join(unknown)}. There are: {', '.join(Kind)}.")
    return frozenset(requested)


def _begin(since: str) -> float | None:
    """Return when a span of time before now began; None if none is given."""
    return time.time() - seconds_of("--since", since) if since else None


def _chosen(
    storage: Storage, candidates: Iterable[Event], flow: str | None, kinds: frozenset[str]
) -> Iterator[Event]:
    flow_names = names.read(storage)
    for event in candidates:
        if (not kinds or event.kind in kinds) and (flow is None or events.of_flow([event], flow_names, flow)):
            yield event


def _put_each(chosen: Iterable[Event], as_json: bool) -> None:
    """Print events as they come, until the reader or a person ends it."""
    try:
        for event in chosen:
            put(plain_json.dumps(event.to_json(), ensure_ascii=True) if as_json else str(event))
            if output.is_closed():
                return
    except KeyboardInterrupt:
        return


def _cells(row: Row) -> list[str]:
    moment = datetime.fromtimestamp(row.at, timezone.utc).strftime("%Y-%m-%d %H:%M")
    rate = f"{row.rows / row.seconds:,.0f}" if row.seconds else "–"
    return [
        moment,
        describe_age(row.seconds),
        row.state,
        str(row.batches),
        str(row.rows),
        rate,
        f"{row.batch_seconds:.1f} s",
        "–" if row.lag_seconds is None else describe_age(row.lag_seconds),
        str(row.drivers),
    ]
