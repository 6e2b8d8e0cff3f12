"""What a driver runs after its flow's declaration changed: the new one after a trial, or what ran before."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from streamkeeper.declare.model import ASK, Pipeline
from streamkeeper.errors import DeclarationError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.import_file import fingerprint, load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.impact import with_impact
from streamkeeper.settings import Settings
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.last_run import LastRun, read_files
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper_jobs.driver.driver import DriverRequest
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import open_session
from streamkeeper_jobs.trial.try_flow import try_flow
from streamkeeper_jobs.trial.warm_up import warm_up

HAND_OVER_SECONDS = 600.0
"""Seconds that a driver that is ready waits for the end of the one that runs."""


def load(
    settings: Settings, file: Path, homes: Sequence[FlowHome]
) -> tuple[Pipeline | DeclarationError, dict[str, str]]:
    """Import a pipeline for its driver, and return it with the texts of its files.

    What ran before is imported instead of a change that is kept out, and instead of a file that raises, where
    the flow has its changes tried.
    """
    pipeline: Pipeline | DeclarationError
    try:
        pipeline = load_pipeline(file, settings.data)
        texts = read_files(file)
    except DeclarationError as error:
        pipeline, texts = error, {}
    ran = _instead(homes[0], pipeline) if len(homes) == 1 else None
    if ran is None:
        return pipeline, texts
    say(f"{homes[0].full_name} runs the code that ran before (fingerprint {ran.fingerprint}).")
    with tempfile.TemporaryDirectory(prefix="streamkeeper-kept-") as folder:
        return load_pipeline(ran.put_files(Path(folder)), settings.data), ran.files


def _instead(home: FlowHome, pipeline: Pipeline | DeclarationError) -> LastRun | None:
    if isinstance(pipeline, DeclarationError):
        ran = change.last_runnable(home)
        return ran if ran is not None and change.is_tried(ran.flow(home.flow)) else None
    declared = pipeline.flow(home.flow)
    if declared is None:
        return None
    return change.instead_of(home, Flow(pipeline, declared, fingerprint(pipeline, declared)))


def tried(request: DriverRequest, take_over: bool) -> bool:
    """Try the declaration if it changed since the flow ran, and return whether the driver may begin.

    :param take_over: wait, once it fits, until the driver that runs has ended.
    :raises LeaseHeld: that driver did not end.
    """
    if not isinstance(request.flow, Flow):
        return True
    new_change = _trial(request, request.flow)
    if new_change is not None:
        say(new_change.in_words())
        if take_over and not new_change.keeps_out:
            warm_up(
                open_session(request.settings, request.flow), request.settings, request.home, request.flow
            )
        change.write(request.home, new_change)
        if new_change.keeps_out:
            return False
    if take_over:
        verdict = Verdict(request.flow.full_name, Compatibility.COMPATIBLE, ("It is used without a trial.",))
        if new_change is None:
            change.write(request.home, Change(request.flow.fingerprint, ChangeState.READY, verdict))
        leases.wait_until_gone(request.home, HAND_OVER_SECONDS, request.settings.lease_term)
    return True


def _trial(request: DriverRequest, flow: Flow) -> Change | None:
    """Return what becomes of a changed declaration; None if nothing is to be tried."""
    home, ran = request.home, change.last_runnable(request.home)
    if not change.is_tried(flow) or ran is None or ran.fingerprint == flow.fingerprint:
        return None
    recorded_change = change.read(home, flow.fingerprint)
    if recorded_change is not None and recorded_change.state is ChangeState.ACCEPTED:
        return None
    say(f"The declaration of {home.full_name} changed, and is tried on a copy of its newest state.")
    text = f"declaration {flow.fingerprint} is tried; {ran.fingerprint} ran last"
    events.note(home, Kind.CHANGE_SEEN, text, [ran.at, flow.fingerprint], by="driver")
    verdict = try_flow(open_session(request.settings, flow), request.settings, home, flow)
    verdict = with_impact(request.settings, verdict)
    if verdict.compatibility in (Compatibility.INCOMPATIBLE, Compatibility.UNKNOWN):
        return Change(flow.fingerprint, ChangeState.REFUSED, verdict)
    waits = flow.declaration.on_change == ASK
    return Change(flow.fingerprint, ChangeState.AWAITS if waits else ChangeState.READY, verdict)
