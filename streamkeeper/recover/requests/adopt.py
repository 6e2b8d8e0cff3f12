"""The request of ``adopt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.adopted_checkpoint import normal_place
from streamkeeper.recover.requests.form import FLOW, Asking, Request, accepted, form_field
from streamkeeper.settings import why_refused_place


@dataclass(frozen=True)
class AdoptRequest(Request):
    """An adoption as requested; every value was checked against the manifest.

    ``checkpoint`` is an absolute path or a URL. ``sources`` map each source of the checkpoint ("0", "1", … or
    a name) to the flow's name for it; None if it has one source, or the flow's names.
    """

    refused = "The adoption was not planned"

    flow: str = form_field(
        "string", "Flow", "The flow that continues with the checkpoint. It must never have run.", names=FLOW
    )
    checkpoint: str = form_field(
        "string",
        "Checkpoint",
        "What the old job has as its checkpointLocation: an absolute path, or a URL such as"
        " s3://bucket/folder. It is copied and not changed.",
    )
    old_job_is_stopped: bool = form_field(
        "boolean",
        "The old job is stopped",
        "Streamkeeper cannot check this. If it still runs, rows that it processes from now on are lost or"
        " duplicated.",
        False,
    )
    sources: dict[str, str] | None = form_field(
        "object",
        "Sources",
        "Which source of the flow each source of the checkpoint is, if it has several without names, in the"
        ' order in which the old job\'s query reads them: {"0": "orders_raw", "1": "customers_raw"}.',
        nullable=True,
        section="Sources",
    )
    accept: tuple[str, ...] = accepted()

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that the path is absolute, and that each source of the flow is named once."""
        checkpoint, sources = values["checkpoint"], values["sources"] or None
        place = normal_place(checkpoint) if checkpoint is not None else ""
        if checkpoint is not None and not (place.startswith("/") or "://" in place):
            asking.wrong.append(
                f"checkpoint is {checkpoint!r}. Allowed is an absolute path, or a URL such as"
                " s3://bucket/folder."
            )
        elif checkpoint is not None and (refused := why_refused_place(place)) is not None:
            asking.wrong.append(f"checkpoint: {refused}")
        if asking.flow is not None and sources is not None:
            asking.wrong += _misfits(sources, asking.flow)
        return {"checkpoint": place, "sources": sources}


def _misfits(sources: Mapping[str, Any], flow: Flow) -> list[str]:
    declared = sorted(source.name for source in flow.sources)
    if sorted(map(str, sources.values())) == declared:
        return []
    return [
        f"sources give the names {', '.join(sorted(map(str, sources.values())))}. Each source of"
        f" {flow.full_name} must be named once: {', '.join(declared)}."
    ]
