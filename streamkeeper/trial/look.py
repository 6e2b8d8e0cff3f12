"""The look before the restart: without Spark where that is enough, else in an application of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from streamkeeper.drivers.submit import PREFLIGHT_JOB, Submission, environment_of, job_settings
from streamkeeper.errors import StreamkeeperError
from streamkeeper.exit_codes import described
from streamkeeper.flows import generations
from streamkeeper.flows.files import open_home
from streamkeeper.manifest import names
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper.sources.formats import format_of
from streamkeeper.storage import open_storage
from streamkeeper.support.json_values import read_as
from streamkeeper.trial import last_run
from streamkeeper.trial.change import read as read_change
from streamkeeper.trial.standing import standing
from streamkeeper.trial.verdict import SAMPLE, UNCHANGED, VERDICT, Compatibility, Verdict


def verdicts(
    settings: Settings, new: Settings, manifest: Manifest, named: Sequence[str]
) -> tuple[Verdict, ...]:
    """Return the verdicts on flows, without the impact of their recoveries; those that need no Spark first.

    :param new: settings whose pipelines folder is the one that is to be deployed.
    :param manifest: what it declares.
    :param named: flows by their names; none for all.
    :raises RequestError: there is no such flow.
    """
    flows = [manifest.find(name) for name in named] or list(manifest.flows())
    before = read_manifest(settings)
    renamed = {flow.full_name: _old_name(settings, flow.full_name, manifest, before) for flow in flows}
    looked = {
        flow.full_name: look(settings, flow)
        if old is None
        else _under_another_name(flow, old, manifest, before)
        for flow, old in zip(flows, renamed.values(), strict=True)
    }
    all_verdicts = [verdict for verdict in looked.values() if verdict is not None]
    if not named:
        all_verdicts += [
            Verdict(file, Compatibility.INCOMPATIBLE, (message,)) for file, message in manifest.errors.items()
        ]
        all_verdicts += _gone(settings, manifest, before, {*renamed.values()})
    untried = [flow for flow in flows if looked[flow.full_name] is None]
    if untried:
        all_verdicts += tried(new, untried)
    return tuple(all_verdicts)


def _old_name(settings: Settings, name: str, manifest: Manifest, before: Manifest) -> str | None:
    """Return the flow that ran, is declared no more and is just like this one, if this one is new."""
    declared_names, mark = {flow.full_name for flow in manifest.flows()}, manifest.likenesses.get(name)
    # One that was renamed already has the state of the deployed flow.
    if mark is None or name in before.likenesses or open_home(settings, name).generations():
        return None
    alike = (old for old, one in before.likenesses.items() if one == mark and old not in declared_names)
    return next((old for old in alike if open_home(settings, old).generations()), None)


def _under_another_name(flow: Flow, old: str, manifest: Manifest, before: Manifest) -> Verdict:
    (was, _, name), now = old.partition("."), flow.pipeline.name
    renames = ((was, now), (f"{now}.{name}", flow.full_name))
    if was == now or (manifest.pipeline(was) is None and before.pipeline(now) is None):
        steps = ", then ".join(f"streamkeeper rename {one} {other}" for one, other in renames if one != other)
        way = f"Give {old} that name first, with its state: {steps}."
    else:
        way = (
            f"A flow stays in its pipeline, which has its tables: declare it in {was}.py. If everything is to"
            " be read again, let it write another table."
        )
    reason = f"It is {old} under another name, and would read everything again."
    return Verdict(flow.full_name, Compatibility.INCOMPATIBLE, (reason, way))


def _gone(
    settings: Settings, manifest: Manifest, before: Manifest, renamed: Collection[str | None]
) -> Iterator[Verdict]:
    flow_names = names.read(open_storage(settings.state))
    declared_names = {flow.full_name for flow in manifest.flows()} | {
        flow.full_name for flow in before.flows() if flow.pipeline.name in manifest.errors
    }
    for flow in before.flows():
        if flow_names.present(flow.full_name) not in declared_names and flow.full_name not in renamed:
            reason = "It is declared no more: its driver ends, and its table and its state stay."
            yield Verdict(flow.full_name, Compatibility.RESULTS_DIFFER, (reason,))


def look(settings: Settings, flow: Flow) -> Verdict | None:
    """Return the verdict on a flow as far as its files tell it; None if Spark must try."""
    home = open_home(settings, flow.full_name)
    observed = Observed(home)
    newest, begun = observed.newest, observed.begun
    if newest is None:
        return Verdict(
            flow.full_name, Compatibility.COMPATIBLE, ("It never ran: its start makes its first checkpoint.",)
        )
    if begun is None or begun[0].number != newest.number:
        reason = f"Generation {newest.number} is decided: the next start makes its checkpoint."
        return Verdict(flow.full_name, Compatibility.COMPATIBLE, (reason,))
    ran = last_run.read(home, newest.number)
    if ran is None or ran.fingerprint != flow.fingerprint:
        return None
    opened = opened_flow(flow, settings, opened_if_possible)
    verdict = standing(settings, home, opened, begun, lambda source: format_of(source).look(source))
    # A Delta table may have other columns by now, and only Spark tells what the flow makes of them.
    if verdict.compatibility is not Compatibility.INCOMPATIBLE and any(
        source.kind.table for source in opened.sources
    ):
        return None
    return replace(verdict, reasons=(UNCHANGED, *verdict.reasons))


def in_a_plan(settings: Settings, flow: Flow) -> str:
    """Return the line of a plan on a declaration that does not simply go on, by its trial beside the driver,
    else by what its files tell; empty if it goes on, or nothing tells.
    """
    home = open_home(settings, flow.full_name)
    change = read_change(home, flow.fingerprint)
    verdict = look(settings, flow) if change is None else change.verdict
    if verdict is not None:
        return "" if verdict.compatibility is Compatibility.COMPATIBLE else verdict.in_short()
    newest = generations.latest(home)
    ran = None if newest is None else last_run.read(home, newest.number)
    if ran is None or ran.fingerprint == flow.fingerprint:
        return ""
    return f"changed since it ran; streamkeeper preflight {flow.full_name} tells whether it goes on."


def tried(settings: Settings, flows: Sequence[Flow], *more: str) -> Iterator[Verdict]:
    """Try flows on copies of their newest states, in one application of Spark on this machine; yield the
    verdicts.

    :param more: ``--analyze``, to plan their queries on sources without rows instead.
    :raises StreamkeeperError: the application ended without a verdict on each.
    """
    for line in _answers(settings, flows, *more, prefix=VERDICT, expected=len(flows)):
        yield read_as(Verdict, json.loads(line))


def sampled(settings: Settings, flow: Flow, rows: int, name: str | None) -> dict[str, Any]:
    """Return rows of a flow, of a view or of a source that it reads, computed by Spark on this machine.

    The object has ``of``, ``columns`` and ``rows``, each value as text or None. No state and no table is
    touched.

    :param rows: how many, at most.
    :raises StreamkeeperError: the application ended without them; its output says why.
    """
    named = () if name is None else ("--of", name)
    (line,) = _answers(settings, [flow], "--sample", str(rows), *named, prefix=SAMPLE, expected=1)
    sample: dict[str, Any] = json.loads(line)
    return sample


def _answers(
    settings: Settings, flows: Sequence[Flow], *more: str, prefix: str, expected: int
) -> Iterator[str]:
    """Run Spark's application, and yield what its lines with a prefix say; others go to standard error."""
    flow_arguments = tuple(part for flow in flows for part in ("--flow", flow.full_name))
    conf = job_settings(settings, [flow.declaration for flow in flows])
    job = Submission(
        "preflight",
        PREFLIGHT_JOB,
        (*flow_arguments, *more),
        conf,
        DEFAULT_MASTER,
        environment_of(settings, DEFAULT_MASTER),
    )
    job.check_host()
    with subprocess.Popen(
        job.command(), env=job.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        answers = 0
        for line in process.stdout:
            if line.startswith(prefix):
                answers += 1
                yield line.removeprefix(prefix)
            else:
                print(line, end="", file=sys.stderr)
    if process.returncode or answers < expected:
        raise StreamkeeperError(
            f"Spark's application ended with {described(process.returncode)} after {answers} of {expected}"
            " answers. Its output is above."
        )
