"""Output of ``streamkeeper flows``, ``advise`` and ``metrics``."""

from __future__ import annotations

from streamkeeper.cli.output import Grid, put, say, show
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import newest_summary
from streamkeeper.drivers.batch_numbers import machinery, recent, told_by
from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.status import Kept
from streamkeeper.health import advise as advice
from streamkeeper.health import flows as health
from streamkeeper.health import metrics, otlp
from streamkeeper.health.advise import Evidence
from streamkeeper.health.flows import UNREADABLE, FlowHealth
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.times import describe_age


def show_flows(as_json: bool) -> None:
    """Print a row for each flow: its state, generation, last batch, and the numbers of that.

    Errors in pipeline files to standard error.

    :raises StreamkeeperError: some flow cannot be read; the others were shown.
    """
    known, rows = health.look_now(Settings.from_environment())
    found = [row for row in rows if row.state != UNREADABLE]
    heading = ["flow", "state", "generation", "batch", "age", "rows/s", "batch took", "detail"]
    show([item.to_json() for item in found], as_json, Grid(heading, [_row(item) for item in found]))
    for message in known.errors.values():
        say(f"streamkeeper: {message}")
    unreadable = [f"{row.flow}: {row.detail}" for row in rows if row.state == UNREADABLE]
    if unreadable:
        raise StreamkeeperError("\n".join(["Some flows cannot be inspected:", *unreadable]))


def show_metrics(over_otlp: bool) -> None:
    """Print the metrics of all flows, or push them; a flow that cannot be read has a metric that says so.

    :raises PushFailed: no collector took them.
    """
    settings = Settings.from_environment()
    seen = metrics.see(open_storage(settings.state), read_manifest(settings))
    found = metrics.measure(seen)
    if over_otlp:
        otlp.push(found, seen.at)
        say(f"{len(found)} metrics were pushed.")
    else:
        put(metrics.text(found).rstrip("\n"))


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
        rate,
        took,
        item.detail,
    ]


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)
