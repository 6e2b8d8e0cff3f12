"""Output of ``streamkeeper flows`` and ``streamkeeper metrics``."""

from __future__ import annotations

from streamkeeper.cli.output import Grid, put, say, show
from streamkeeper.errors import StreamkeeperError
from streamkeeper.health import flows as health
from streamkeeper.health import metrics
from streamkeeper.health.flows import UNREADABLE, FlowHealth
from streamkeeper.settings import Settings
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


def show_metrics() -> None:
    """Print the metrics of all flows; a flow that cannot be read has a metric that says so."""
    put(metrics.text(health.look_now(Settings.from_environment())[1]).rstrip("\n"))


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
