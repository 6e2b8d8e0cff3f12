"""The request of ``adopt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.adopted_checkpoint import normal_place
from streamkeeper.recover.requests.form import (
    FLOW,
    Asking,
    FormField,
    Request,
    accepted,
    form_field,
    form_fields,
)
from streamkeeper.settings import why_refused_place

_MANY = "Many jobs"


@dataclass(frozen=True)
class AdoptRequest(Request):
    """An adoption as requested; every value was checked against the manifest.

    ``checkpoints`` are absolute paths or URLs, by the full names of their flows. ``sources`` map, by flow,
    each source of the checkpoint ("0", "1", … or a name) to the flow's name for it; a flow is missing if it
    has one source, or its checkpoint has the flow's names.
    """

    refused = "The adoption was not planned"

    checkpoints: dict[str, str] = form_fields(
        FormField(
            "flow",
            "string",
            "Flow",
            "The flow that continues with the checkpoint. It must never have run. Several: below, under Many"
            " jobs.",
            nullable=True,
            names=FLOW,
        ),
        FormField(
            "checkpoint",
            "string",
            "Checkpoint",
            "What the old job has as its checkpointLocation: an absolute path, or a URL such as"
            " s3://bucket/folder. It is copied and not changed.",
            nullable=True,
        ),
        FormField(
            "checkpoints",
            "object",
            "Checkpoints",
            "Instead of one flow: the checkpoint of each flow, for one plan of all:"
            ' {"sales.orders_flow": "/lake/checkpoints/orders"}. Or a pattern of names, and a path with'
            ' {pipeline} and {flow}: {"sales.*": "s3://lake/checkpoints/{flow}"}; a full name goes before a'
            " pattern.",
            nullable=True,
            section=_MANY,
        ),
    )
    old_job_is_stopped: bool = form_field(
        "boolean",
        "The old job is stopped",
        "Each old job is stopped. Streamkeeper cannot check this. If one still runs, rows that it processes"
        " from now on are lost or duplicated.",
        False,
    )
    sources: dict[str, dict[str, str]] = form_fields(
        FormField(
            "sources",
            "object",
            "Sources",
            "Which source of the flow each source of the checkpoint is, if it has several without names, in"
            ' the order in which the old job\'s query reads them: {"0": "orders_raw", "1": "customers_raw"}.'
            ' Of several flows by flow: {"sales.orders_flow": {"0": "orders_raw", "1": "customers_raw"}}.',
            nullable=True,
            section="Sources",
        )
    )
    accept: tuple[str, ...] = accepted()

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that each path is absolute, and that each source of a flow is named once."""
        places, wrong = _places(values, asking), asking.wrong
        checkpoints = {flow: _place(flow, place, len(places), wrong) for flow, place in places.items()}
        return {"checkpoints": checkpoints, "sources": _sources(values["sources"] or {}, checkpoints, asking)}


def _places(values: Mapping[str, Any], asking: Asking) -> dict[str, Any]:
    """Return the checkpoints as given, by the full names of the flows that exist."""
    flow, place, several = values["flow"], values["checkpoint"], values["checkpoints"]
    if not several:
        missing = [name for name in ("flow", "checkpoint") if values[name] is None]
        if missing and not asking.wrong:
            asking.wrong.append(
                f"{' and '.join(missing)}: nothing is given. Give a flow and its checkpoint, an absolute path"
                " or a URL; or the checkpoints of several flows."
            )
        return {flow: place} if flow is not None and place is not None else {}
    if flow is not None or place is not None:
        asking.wrong.append(
            "flow or checkpoint is given, and checkpoints too. Give a flow and its checkpoint, or leave both"
            " empty and give the checkpoints of several flows."
        )
        return {}
    places = dict[str, Any]()
    for name in sorted(several, key=lambda name: any(sign in name for sign in "*?[")):
        try:
            flows = asking.manifest.matching([name])
        except RequestError as error:
            asking.wrong.append(f"checkpoints: {error}")
            continue
        for full_name in flows:
            places.setdefault(full_name, several[name])
    return places


def _place(flow: str, text: Any, total: int, wrong: list[str]) -> str:
    """Return a checkpoint's place in one spelling, with the flow's names filled in."""
    name = "checkpoint" if total == 1 else f"checkpoint of {flow}"
    pipeline, _, own = flow.partition(".")
    filled = str(text).replace("{pipeline}", pipeline).replace("{flow}", own)
    place = normal_place(filled)
    if not (isinstance(text, str) and (place.startswith("/") or "://" in place)):
        wrong.append(f"{name} is {text!r}. Allowed is an absolute path, or a URL such as s3://bucket/folder.")
    elif (refused := why_refused_place(place)) is not None:
        wrong.append(f"{name}: {refused}")
    return place


def _sources(
    names_by_key: Mapping[str, Any], checkpoints: Mapping[str, str], asking: Asking
) -> dict[str, dict[str, str]]:
    """Return by flow what its checkpoint's sources are; checked against the flow's."""
    flows = {flow.full_name: flow for flow in asking.manifest.flows() if flow.full_name in checkpoints}
    by_flow = dict(names_by_key)
    if names_by_key and len(flows) == 1 and not any(isinstance(one, Mapping) for one in by_flow.values()):
        by_flow = dict.fromkeys(flows, names_by_key)
    for name, names in by_flow.items():
        if name in flows and isinstance(names, Mapping):
            asking.wrong += _misfits(names, flows[name])
        elif flows:
            asking.wrong.append(
                f"sources have {name!r}: {names!r}. Give them by the flows whose checkpoints are given"
                f" ({', '.join(flows)}), each with the names of its sources:"
                f' {{"{next(iter(flows))}": {{"0": "…", "1": "…"}}}}.'
            )
    return by_flow


def _misfits(sources: Mapping[str, Any], flow: Flow) -> list[str]:
    declared = sorted(source.name for source in flow.sources)
    if sorted(map(str, sources.values())) == declared:
        return []
    return [
        f"sources give the names {', '.join(sorted(map(str, sources.values())))}. Each source of"
        f" {flow.full_name} must be named once: {', '.join(declared)}."
    ]
