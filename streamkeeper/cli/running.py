"""``streamkeeper run``, ``hold`` and ``release``: a driver in the foreground, and stopping flows."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from streamkeeper.cli.examples import example
from streamkeeper.cli.output import Grid, say, settings_in_use, show
from streamkeeper.errors import UsageError
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.settings import DEFAULT_MASTER, Settings

if TYPE_CHECKING:
    from streamkeeper.flows.files import FlowHome
    from streamkeeper.manifest.manifest import Flow, Manifest

_TIME = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
Master = Annotated[str, typer.Option(help="Spark's master.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FlowNames = Annotated[
    list[str] | None,
    typer.Argument(help="Flows, as pipeline.flow or by their own name; `all` for all.", metavar="FLOW…"),
]
OfPipeline = Annotated[str | None, typer.Option("--pipeline", help="All flows of this pipeline instead.")]
OfAll = Annotated[bool, typer.Option("--all", help="Every flow there is instead.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog=example("run"))(run)
    app.command(epilog=example("hold"))(hold)
    app.command(epilog=example("release"))(release)
    app.command(epilog=example("accept"))(accept)


def run(
    flow: Annotated[str, typer.Argument(help="A flow, as pipeline.flow or by its own name.")],
    *,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process all available input, then end.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROWS", help="Show so many rows instead, and touch neither state nor table."
        ),
    ] = None,
    of: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --sample: rows of this view or source.")
    ] = None,
    master: Master = DEFAULT_MASTER,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; the driver's output goes to standard error.")
    ] = False,
) -> None:
    """Run a flow's driver in the foreground, without Airflow. Ctrl-C stops it."""
    from streamkeeper.manifest.manifest import read_manifest

    settings = settings_in_use()
    found = read_manifest(settings).find(flow)
    if sample is not None:
        _show_sample(settings, found, sample, of, json)
        return
    if of is not None:
        raise typer.BadParameter("--of takes --sample ROWS with it.")
    code = drive(settings, found, available_now, master, sys.stderr if json else None)
    named = describe_outcome(code)
    if json:
        show({"flow": found.full_name, "exit_code": code, "outcome": named}, json, "")
    if code != Outcome.STOPPED:
        say(f"streamkeeper: the driver of {found.full_name} ended with {described(code)}: {named}.")
        raise typer.Exit(2 if code == Outcome.USAGE else 1)


def _show_sample(settings: Settings, flow: Flow, rows: int, of: str | None, json: bool) -> None:
    from streamkeeper.preflight import look

    found = look.sampled(settings, flow, rows, of)
    cells = [["null" if value is None else value for value in row] for row in found["rows"]]
    show(found, json, Grid(found["columns"], cells))


def describe_outcome(code: int) -> str:
    """Return a driver's exit code in a word or two: ``stopped``, ``lease held``, ``parked``, ``failed``."""
    return (Outcome(code) if code in set(Outcome) else Outcome.FAILED).words


def drive(
    settings: Settings,
    flow: Flow,
    available_now: bool,
    master: str = DEFAULT_MASTER,
    output: IO[str] | None = None,
) -> int:
    """Run spark-submit for a flow and return its exit code.

    :param output: for its standard output; by default that of this process.
    :raises SettingsError: this host lacks something that every driver needs.
    """
    from streamkeeper.drivers import submit
    from streamkeeper.preflight import change

    home = _home(settings, flow.full_name)
    while True:
        job = submit.driver(settings, [change.to_run(home, flow)], master, available_now)
        job.check_host()
        with subprocess.Popen(
            job.command(), env=job.environment, stdin=subprocess.DEVNULL, stdout=output
        ) as driver:
            try:
                code = driver.wait()
            except KeyboardInterrupt:
                driver.terminate()
                return driver.wait()
        if code != Outcome.CHANGE_REFUSED:
            return code


def hold(
    names: FlowNames = None,
    *,
    pipeline: OfPipeline = None,
    every: OfAll = False,
    reason: Annotated[str, typer.Option(help="Reason, shown to others.")] = "held by hand",
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Let the hold end by itself after 30m, 2h or 1d."),
    ] = None,
    by: Annotated[str, typer.Option(help="Owner of the hold; each owner releases only its own.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the drivers have stopped, without a limit.")
    ] = False,
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Wait this many seconds; then send SIGTERM and, a minute later, SIGKILL to a driver on"
            " this host."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Stop flows, and keep them from running: their drivers end their batch and leave."""
    from streamkeeper.recover.requests import hold_flows

    settings, known = _known()
    values = {**_which(known, names, pipeline, every), "reason": reason, "deadline": deadline}
    values["hours"] = None if for_ is None else seconds_of("--for", for_) / 3600
    asked = hold_flows.HoldRequest.parse(values, known, by or user())
    homes = [_home(settings, name) for name in asked.flows]
    put = {home.full_name: asked.put(home).owner for home in homes}
    if not wait and deadline is None:
        show(put, json, "\n".join(f"{name}: held by {owner}" for name, owner in put.items()))
        return
    from streamkeeper.drivers import stopping

    stops = stopping.stop_all(homes, asked.deadline, term=settings.lease_term, say=say)
    value = {
        stop.flow: {"held_by": asked.owner, "driver": stop.by.name.lower(), "epoch": stop.epoch}
        for stop in stops
    }
    show(value, json, "\n".join(f"{stop.flow}: held by {asked.owner}; it {stop.by.value}" for stop in stops))


def accept(
    flow: Annotated[str, typer.Argument(help="A flow, as pipeline.flow or by its own name.")],
    *,
    json: AsJson = False,
) -> None:
    """Let a changed declaration run that waits for a person, or was refused: the next driver uses it."""
    from dataclasses import replace

    from streamkeeper.errors import RequestError
    from streamkeeper.preflight import change

    settings, known = _known()
    found = known.find(flow)
    home = _home(settings, found.full_name)
    seen = change.read(home, found.fingerprint)
    if seen is None or not seen.keeps_out:
        raise RequestError(
            f"No change of {found.full_name} is refused or waits. `streamkeeper flows` shows each flow's"
            " state. Nothing was changed."
        )
    change.write(home, replace(seen, state=change.ChangeState.ACCEPTED), user())
    value = {"flow": found.full_name, "fingerprint": seen.fingerprint, "was": seen.state}
    show(value, json, f"{found.full_name}: the change {seen.fingerprint} is accepted; it was {seen.state}")


def release(
    names: FlowNames = None,
    *,
    pipeline: OfPipeline = None,
    every: OfAll = False,
    owner: Annotated[str, typer.Option(help="Owner of the hold: a person's name. Default: you.")] = "",
    any_person: Annotated[
        bool, typer.Option("--any-person", help="Release the holds of all persons.")
    ] = False,
    park: Annotated[
        bool, typer.Option("--park", help="Release the park instead: the flow is tried again unchanged.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Remove your hold from flows; holds of others stay."""
    from streamkeeper.flows import holds
    from streamkeeper.recover.requests import hold_flows

    settings, known = _known()
    values = {**_which(known, names, pipeline, every), "owner": owner, "any_person": any_person}
    asked = hold_flows.ReleaseRequest.parse(values, known, user())
    whose = holds.PARK if park else asked.owner
    done: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for name in asked.flows:
        released, left = hold_flows.release(_home(settings, name), whose, user())
        done[name] = {"released": bool(released), "left": [hold.owner for hold in left]}
        lines.append(f"{name}: {hold_flows.describe_release(whose, released, left)}")
    show(done, json, "\n".join(lines))


def _known() -> tuple[Settings, Manifest]:
    from streamkeeper.manifest.manifest import read_manifest

    settings = settings_in_use()
    return settings, read_manifest(settings)


def _which(known: Manifest, names: list[str] | None, pipeline: str | None, every: bool) -> dict[str, Any]:
    """Return the form's values for the named flows, all of which must exist."""
    every = every or names == ["all"]
    found = [] if names == ["all"] else [known.find(name).full_name for name in names or []]
    return {"flows": found, "pipeline": pipeline, "all": every}


def _home(settings: Settings, name: str) -> FlowHome:
    from streamkeeper.flows.files import open_home

    return open_home(settings, name)


def seconds_of(option: str, text: str) -> int:
    """Return the seconds of a time such as ``2h``.

    :raises UsageError: it is none.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} is {text!r}. Allowed is a number with s, m, h or d, such as 2h.")
    return int(found[1]) * _UNITS[found[2]]


def user() -> str:
    """Return the name of the user of this process."""
    import getpass

    return getpass.getuser()
