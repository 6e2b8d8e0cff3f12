"""``streamkeeper flows``, ``flow`` and ``logs``: what the page *Streams* shows, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamkeeper.cli.examples import example
from streamkeeper.cli.output import put, say, settings_in_use, show
from streamkeeper.cli.running import AsJson
from streamkeeper.errors import RequestError
from streamkeeper.support.times import in_iso

if TYPE_CHECKING:
    from streamkeeper.flows.files import FlowHome
    from streamkeeper.flows.leases import Lease
    from streamkeeper.health.driver_log import LogTail

OfPipeline = Annotated[str | None, typer.Option("--pipeline", help="Only flows of this pipeline.")]
InState = Annotated[str | None, typer.Option("--state", help="Only flows in this state.")]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        min=0.5,
        metavar="SECONDS",
        help="Refresh in place, the flow that is furthest behind first, until Ctrl-C.",
    ),
]
FlowName = Annotated[str, typer.Argument(help="A flow, as pipeline.flow or by its own name.", metavar="FLOW")]
EVENTS = 10
"""Newest events of a flow that are shown."""
POLL_SECONDS = 0.5
"""Seconds between two looks at a log that is followed."""
_STARTS = ("number", "at", "reason", "by", "start", "state")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog=example("flows"))(flows)
    app.command(epilog=example("flow"))(flow)
    app.command(epilog=example("logs"))(logs)


def flows(
    *, pipeline: OfPipeline = None, state: InState = None, watch: Watch = None, json: AsJson = False
) -> None:
    """Show each flow's state, generation, last batch and its age, and how far it is behind."""
    from streamkeeper.cli import listing

    chosen = listing.Filter(pipeline, state)
    if watch is None:
        listing.show_flows(json, chosen)
        return
    if json or not sys.stdout.isatty():
        raise typer.BadParameter("--watch refreshes a terminal. Leave it out, or --json and the pipe.")
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        try:
            while True:
                live.update(Text(listing.as_text(chosen, live.console.width)), refresh=True)
                time.sleep(watch)
        except KeyboardInterrupt:
            return


def flow(flow: FlowName, *, json: AsJson = False) -> None:
    """Show all that is known of one flow: its state and why, generations, sources, table, log and more."""
    from streamkeeper.cli import listing
    from streamkeeper.health import details as one_flow
    from streamkeeper.health import flows as health
    from streamkeeper.manifest.manifest import read_manifest
    from streamkeeper.storage import open_storage

    settings = settings_in_use()
    manifest = read_manifest(settings)
    declared_flow = manifest.find(flow)
    (row,) = health.look_at_all(open_storage(settings.state), manifest, [declared_flow.full_name])
    if row.state == health.UNREADABLE:
        raise RequestError(f"{declared_flow.full_name} cannot be read: {row.detail}")
    value = one_flow.look(settings, declared_flow, row)
    show(value, json, "\n".join(_in_words(value, listing.numbers_of(row), listing.sources_of(value, row))))


def _in_words(value: dict[str, Any], numbers: list[str], sources: list[str]) -> Iterator[str]:
    row, table = value["row"], value["table"]
    yield f"{row['flow']}: {row['state']}"
    yield f"  {row['detail']}"
    yield from (f"  {line}" for line in numbers)
    yield from _part("Why it does not run", [_hold(hold) for hold in value["holds"]])
    yield from _part("Change of the declaration", [value["verdict"]] if value["verdict"] else [])
    yield from _part("Sources", sources)
    yield from _part("Last batches", [_batch(batch) for batch in value["batches"][-5:]])
    last = row["batch_numbers"] or {"expectations": {}}
    yield from _part(
        "Expectations, last batch",
        [f"{name}: {met:,} met it, {not_:,} did not" for name, (met, not_) in last["expectations"].items()],
    )
    yield from _part("Generations", [_generation(one) for one in value["generations"]])
    yield from _part("Newest events", [_event(one) for one in value["events"][:EVENTS]])
    rows = "rows not counted" if table["rows"] is None else f"{table['rows']:,} rows"
    size = "not written yet"
    if table["version"] is not None:
        size = f"version {table['version']}, {table['files']:,} files, {table['bytes']:,} bytes, {rows}"
    yield from _part("Table", [f"{table['name']} ({table['path']}): {size}"])
    yield from _part(
        "Backups",
        [
            f"{one['id']}, {one['at']}: version {one['version']}, {one['rows']:,} rows"
            for one in value["backups"]
        ],
    )
    declared = value["declaration"]
    trigger = "once" if declared["flow"]["once"] else f"every {declared['flow']['trigger']}"
    yield from _part(f"Declared in {declared['file']}", [f"{trigger}, {declared['fingerprint']}"])
    yield from _part(
        "What its driver needs",
        [
            f"{name} = {text if isinstance(text, str) else ', '.join(text)}"
            for name, text in declared["driver"].items()
        ],
    )
    spark = [f"{name}: {link}" for name, link in value["spark"].items() if link]
    yield from _part("Spark", spark)
    yield from _part(f"Log ({value['log']['location'] or 'unknown'})", value["log"]["lines"])


def _part(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {part}" for line in lines for part in line.splitlines() or [""])


def _hold(hold: dict[str, Any]) -> str:
    return f"{hold['owner']}, by {hold['by']}, {hold['at']}: {hold['description']}"


def _event(event: dict[str, Any]) -> str:
    by = f", by {event['by']}" if event["by"] else ""
    return f"{in_iso(event['at'])} {event['kind']}: {event['text']}{by}"


def _batch(batch: dict[str, Any]) -> str:
    state = f", {batch['state_rows']:,} rows of state" if batch["state_rows"] else ""
    return f"{batch['number']}: {batch['rows']:,} rows in {batch['seconds']:.1f} s{state}"


def _generation(one: dict[str, Any]) -> str:
    number, at, reason, by, start, state = (one[name] for name in _STARTS)
    costs = "".join(
        f"\n  {impact['source']}: {impact['from']} → {impact['to']}; data loss {impact['lost']}, duplicates"
        f" {impact['repeated']}"
        for impact in one["impacts"]
    )
    begun = "" if one["began"] else ", not begun"
    return f"{number}, {at}: {reason}, by {by}; start {start}, state {state}{begun}{costs}"


def logs(
    flow: FlowName,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", min=0, help="Lines of the end to show.")] = 100,
    epoch: Annotated[
        int | None, typer.Option("--epoch", help="The log of this driver instead of the newest.")
    ] = None,
) -> None:
    """Show the end of a flow's driver log; with --follow also that of the drivers that come after it."""
    from streamkeeper.flows import leases
    from streamkeeper.flows.files import open_home
    from streamkeeper.manifest.manifest import read_manifest

    settings = settings_in_use()
    home = open_home(settings, read_manifest(settings).find(flow).full_name)
    lease = leases.current(home) if epoch is None else leases.read(home, epoch)
    if lease is None:
        raise RequestError(
            f"{home.full_name} has had no driver{'' if epoch is None else f' with epoch {epoch}'}."
            f" There are: {', '.join(map(str, home.epochs())) or 'none'}."
        )
    tail = _begin(lease, lines)
    if not follow:
        return
    try:
        _follow(home, lease, tail)
    except KeyboardInterrupt:
        return


def _begin(lease: Lease, lines: int) -> LogTail:
    """Print the end of a driver's log, and return what shows the rest.

    :raises RequestError: it is not known, or not on this machine.
    """
    from streamkeeper.health.driver_log import LogTail, last_lines, output_of

    output = output_of(lease)
    if output is None:
        raise RequestError(
            f"The driver of epoch {lease.epoch} was started by hand, and its output is where it was started."
        )
    if not output.is_readable():
        raise RequestError(
            f"The log of epoch {lease.epoch} is {output.location}, on {lease.process.host}, and cannot be"
            " read here. Run this command there, or look at the log of the flow's DAG in Airflow."
        )
    tail = LogTail(output, put, limit=sys.maxsize, backlog=0)
    for line in last_lines(output, lines):
        put(line)
    return tail


def _follow(home: FlowHome, lease: Lease, tail: LogTail) -> None:
    from streamkeeper.flows import leases

    while True:
        tail.pump()
        newest = leases.current(home, lease.epoch)
        if newest is not None and newest.epoch != lease.epoch:
            tail.pump()
            say(f"--- driver {newest.epoch} of {home.full_name}, generation {newest.generation} ---")
            lease, tail = newest, _begin(newest, sys.maxsize)
        time.sleep(POLL_SECONDS)
