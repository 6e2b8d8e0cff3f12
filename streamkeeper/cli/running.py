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
    typer.Argument(
        help="Flows, as pipeline.flow, by their own name, or by a pattern such as 'orders.*'; `all` for all.",
        metavar="FLOW…",
    ),
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
    input_name: Annotated[
        str | None, typer.Option("--of", metavar="NAME", help="With --sample: rows of this view or source.")
    ] = None,
    master: Master = DEFAULT_MASTER,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; the driver's output goes to standard error.")
    ] = False,
) -> None:
    """Run a flow's driver in the foreground, without Airflow. Ctrl-C stops it."""
    from streamkeeper.manifest.manifest import read_manifest

    settings = settings_in_use()
    declared_flow = read_manifest(settings).find(flow)
    if sample is not None:
        _show_sample(settings, declared_flow, sample, input_name, json)
        return
    if input_name is not None:
        raise typer.BadParameter("--of takes --sample ROWS with it.")
    code = drive(settings, declared_flow, available_now, master, sys.stderr if json else None)
    named = describe_outcome(code)
    if json:
        show({"flow": declared_flow.full_name, "exit_code": code, "outcome": named}, json, "")
    if code != Outcome.STOPPED:
        say(f"streamkeeper: the driver of {declared_flow.full_name} ended with {described(code)}: {named}.")
        raise typer.Exit(2 if code == Outcome.USAGE else 1)


def _show_sample(settings: Settings, flow: Flow, rows: int, input_name: str | None, json: bool) -> None:
    from streamkeeper.trial import look

    sample = look.sampled(settings, flow, rows, input_name)
    cells = [["null" if value is None else value for value in row] for row in sample["rows"]]
    show(sample, json, Grid(sample["columns"], cells))


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
    from streamkeeper.trial import change

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

    settings, manifest = _settings_and_manifest()
    values = {**_which(manifest, names, pipeline, every), "reason": reason, "deadline": deadline}
    values["hours"] = None if for_ is None else seconds_of("--for", for_) / 3600
    request = hold_flows.HoldRequest.parse(values, manifest, by or user())
    homes = [_home(settings, name) for name in request.flows]
    owners = [hold.owner for hold in request.put(homes[0])]
    put = dict(zip(request.flows, owners, strict=True))
    if not wait and deadline is None:
        show(put, json, "\n".join(f"{name}: held by {owner}" for name, owner in put.items()))
        return
    from streamkeeper.drivers import stopping

    stops = stopping.stop_all(homes, request.deadline, term=settings.lease_term, say=say)
    value = {
        stop.flow: {"held_by": request.owner, "driver": stop.by.name.lower(), "epoch": stop.epoch}
        for stop in stops
    }
    show(
        value, json, "\n".join(f"{stop.flow}: held by {request.owner}; it {stop.by.value}" for stop in stops)
    )


def accept(
    flow: Annotated[str, typer.Argument(help="A flow, as pipeline.flow or by its own name.")],
    *,
    json: AsJson = False,
) -> None:
    """Let a changed declaration run that waits for a person, or was refused: the next driver uses it."""
    from dataclasses import replace

    from streamkeeper.errors import RequestError
    from streamkeeper.trial import change

    settings, manifest = _settings_and_manifest()
    declared_flow = manifest.find(flow)
    home = _home(settings, declared_flow.full_name)
    recorded_change = change.read(home, declared_flow.fingerprint)
    if recorded_change is None or not recorded_change.keeps_out:
        raise RequestError(
            f"No change of {declared_flow.full_name} is refused or waits. `streamkeeper flows` shows each"
            " flow's state. Nothing was changed."
        )
    change.write(home, replace(recorded_change, state=change.ChangeState.ACCEPTED), user())
    value = {
        "flow": declared_flow.full_name,
        "fingerprint": recorded_change.fingerprint,
        "was": recorded_change.state,
    }
    text = f"the change {recorded_change.fingerprint} is accepted; it was {recorded_change.state}"
    show(value, json, f"{declared_flow.full_name}: {text}")


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
    waves: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Release the flows of N drivers at a time, and the next ones when these run again.",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(help="Seconds for the flows of a wave to run again (600). If one does not, stop."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Remove your hold from flows; holds of others stay."""
    from dataclasses import replace

    from streamkeeper.flows import holds
    from streamkeeper.recover.requests import hold_flows

    settings, manifest = _settings_and_manifest()
    values = {**_which(manifest, names, pipeline, every), "owner": owner, "any_person": any_person}
    values |= {"wave": waves} | ({} if patience is None else {"patience": patience})
    request = hold_flows.ReleaseRequest.parse(values, manifest, user())
    request = replace(request, owner=holds.PARK) if park else request
    released = request.release(_home(settings, request.flows[0]), user(), say)
    value = {
        one.home.full_name: {"released": bool(one.owners), "left": [hold.owner for hold in one.holds]}
        for one in released
    }
    lines = (
        f"{one.home.full_name}: {hold_flows.describe_release(request.owner, one.owners, one.holds)}"
        for one in released
    )
    show(value, json, "\n".join(lines))


def _settings_and_manifest() -> tuple[Settings, Manifest]:
    from streamkeeper.manifest.manifest import read_manifest

    settings = settings_in_use()
    return settings, read_manifest(settings)


def _which(manifest: Manifest, names: list[str] | None, pipeline: str | None, every: bool) -> dict[str, Any]:
    """Return the form's values for flows by name or pattern, all of which must exist."""
    every = every or names == ["all"]
    flow_names = [] if names == ["all"] else manifest.matching(names or [])
    return {"flows": flow_names, "pipeline": pipeline, "all": every}


def _home(settings: Settings, name: str) -> FlowHome:
    from streamkeeper.flows.files import open_home

    return open_home(settings, name)


def seconds_of(option: str, text: str) -> int:
    """Return the seconds of a time such as ``2h``.

    :raises UsageError: it is none.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} is {text!r}. Allowed is a number with s, m, h or d, such as 2h.")
    return int(match[1]) * _UNITS[match[2]]


def user() -> str:
    """Return the name of the user of this process."""
    import getpass

    return getpass.getuser()
