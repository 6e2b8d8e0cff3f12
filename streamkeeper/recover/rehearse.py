"""``rehearse``: any recovery, or a changed declaration, is tried on a copy; the original stays as it is.

Its plan is that of the recovery that it tries. Its approval is the answer go, and starts that recovery, which
names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.moves.next_generation import held_meanwhile
from streamkeeper.recover.plans.kind import Kind, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import REHEARSE, not_for_sinks
from streamkeeper.recover.requests.rehearsal import NO_RECOVERY, RehearseRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps.rehearse import Rehearsed
from streamkeeper.settings import Settings, typed_path


def plan(settings: Settings, manifest: Manifest, request: RehearseRequest, recovery_id: str) -> Plan:
    """Plan a rehearsal.

    :raises RequestError: the values are none of that recovery's, or there is no such folder, or one whose
        code may not be run.
    """
    if request.pipelines:
        request = replace(request, pipelines=_folder(settings, request.pipelines))
    flow = manifest.find(request.flow)
    if refused := not_for_sinks(flow):
        raise RequestError(refused)
    if request.recovery == NO_RECOVERY:
        return _declaration(settings, flow, request, recovery_id)
    recovery_kind = kind(request.recovery)
    table = f"{flow.pipeline.name}.{flow.declaration.target}"
    values = values_of(recovery_kind, flow.full_name, table, request.request or {})
    inner = recovery_kind.parse(values, manifest, request.by)
    planned = recovery_kind.plan(settings, manifest, inner, recovery_id)
    tried = Rehearsed(recovery_kind.name, inner.to_json(), request.pipelines, request.minutes, request.files)
    note = f"It is carried out on a copy alone. For real, {recovery_kind.name} asks for its own approval."
    return replace(
        planned,
        recovery=REHEARSE,
        request=asdict(request),
        steps=KIND.step_names,
        details=asdict(tried),
        notes=(note, *planned.notes),
        ways=(),
    )


def _folder(settings: Settings, typed: str) -> str:
    folder = typed_path("pipelines", typed)
    if (refused := settings.why_outside(str(folder))) is not None:
        raise RequestError(f"pipelines: {refused} Nothing was rehearsed.")
    if not folder.is_dir():
        raise RequestError(
            f"pipelines is {typed!r}, and there is no such folder on this machine. Nothing was"
            " rehearsed. Give the full path of a folder with pipeline files."
        )
    return str(folder)


def _declaration(settings: Settings, flow: Flow, request: RehearseRequest, recovery_id: str) -> Plan:
    if request.request:
        raise RequestError(
            "request has values, and recovery is none. Choose the recovery that they are of, or leave them"
            " empty."
        )
    tried = Rehearsed(None, {}, request.pipelines, request.minutes, request.files)
    folder = request.pipelines or str(settings.pipelines)
    return replace(
        KIND.draft(request, recovery_id, flow.pipeline.name, (flow.declaration.target,)),
        details=asdict(tried),
        notes=(f"A driver goes on with its declaration in {folder}, on a copy. The flow itself runs on.",),
        flows=(held_meanwhile(settings, flow),),
    )


def values_of(recovery_kind: Kind, flow: str, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recovery's form, with the flow, or its table, where none is given."""
    names = {field.name for field in recovery_kind.form(Manifest("", (), {}, {}))}
    return {"flow": flow, **values} if "flow" in names else {"table": table, **values}


KIND = Kind(
    name=REHEARSE,
    description=(
        "Tries a recovery, or a changed declaration, on a copy of tables and checkpoints, and shows what it"
        " came to."
    ),
    request=RehearseRequest,
    plan=plan,
    steps=(rehearse.STEP,),
    noun="rehearsal",
)
