"""Output of ``streamkeeper flows``."""

from __future__ import annotations

from dataclasses import replace

from streamkeeper.cli.output import Grid, say, show
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import status
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.status import FlowState, FlowStatus
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.preflight import change
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.times import describe_age


def show_flows(as_json: bool) -> None:
    """Print each flow's state, generation, last batch and its age.

    Errors in pipeline files to standard error.

    :raises StreamkeeperError: some flow cannot be read; the others were shown.
    """
    settings = Settings.from_environment()
    storage, known = open_storage(settings.state), read_manifest(settings)
    found: list[FlowStatus] = []
    unreadable: list[str] = []
    for flow in known.flows():
        try:
            found.append(_look(storage, flow))
        except StreamkeeperError as error:
            unreadable.append(f"{flow.full_name}: {error}")
    heading = ["flow", "state", "generation", "batch", "age", "detail"]
    show([item.to_json() for item in found], as_json, Grid(heading, [_row(item) for item in found]))
    for message in known.errors.values():
        say(f"streamkeeper: {message}")
    if unreadable:
        raise StreamkeeperError("\n".join(["Some flows cannot be inspected:", *unreadable]))


def _look(storage: Storage, flow: Flow) -> FlowStatus:
    home = FlowHome(storage, flow.pipeline.name, flow.name)
    runs = change.to_run(home, flow)
    seen = status.look(storage, runs)
    kept_out = change.read(home, flow.fingerprint) if runs is not flow else None
    if kept_out is None or seen.state is not FlowState.RUNNING:
        return seen
    why = "; ".join(kept_out.verdict.why) or kept_out.verdict.fit
    return replace(seen, state=FlowState.CHANGE_REFUSED, detail=f"{kept_out.state}: {why}; {seen.detail}")


def _row(item: FlowStatus) -> list[str]:
    age = "–" if item.age is None else describe_age(item.age)
    return [item.flow, item.state, _or_dash(item.generation), _or_dash(item.batch), age, item.detail]


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)
