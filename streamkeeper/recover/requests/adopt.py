"""What a person asks of ``adopt``: the form's fields, and the request that values of them make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.flows.adopted_checkpoint import normal_place
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.requests.form import (
    FormField,
    approval_fields,
    find_flow,
    price_field,
    read_values,
    refuse,
    request_of,
)


@dataclass(frozen=True)
class AdoptRequest:
    """An adoption as asked for; every value was checked against the manifest.

    ``checkpoint`` is an absolute path or a URL. ``sources`` give the flow's name of each source of the
    checkpoint, by the checkpoint's own ("0", "1", … or a name); None where they are to be told apart by what
    they are.
    """

    flow: str
    checkpoint: str
    old_job_is_stopped: bool = False
    sources: dict[str, str] | None = None
    accept: tuple[str, ...] = ()
    reason: str = ""
    by: str = "someone"


def request_from_json(value: dict[str, Any]) -> AdoptRequest:
    """Read a request back from a plan."""
    return request_of(AdoptRequest, value)


def adopt_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``adopt``, in the order in which a person reads them."""
    flows = tuple(flow.full_name for flow in manifest.flows())
    return (
        FormField(
            "flow",
            "string",
            "Flow",
            "The flow that goes on with the checkpoint; it must not have begun yet.",
            None,
            flows,
        ),
        FormField(
            "checkpoint",
            "string",
            "Checkpoint",
            "What the old job has as its checkpointLocation: an absolute path, or a URL such as"
            " `s3://bucket/folder`. It is copied, and nothing in it is changed.",
            None,
        ),
        FormField(
            "old_job_is_stopped",
            "boolean",
            "The old job is stopped",
            "Nobody but you can know that. Where it still runs, what it does from now on is not in the table,"
            " or comes twice.",
            False,
        ),
        FormField(
            "sources",
            "object",
            "Sources",
            'Which source of the flow each source of the checkpoint is, where that cannot be told: `{"0":'
            ' "orders_raw", "1": "customers_raw"}`, in the order in which the old job\'s query reads them.',
            nullable=True,
        ),
        price_field(),
        *approval_fields(),
    )


def parse_adopt(values: Mapping[str, Any], manifest: Manifest, by: str) -> AdoptRequest:
    """Make a request of a form's values.

    :param values: by field name; missing fields take the form's default.
    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, adopt_form(manifest))
    flow = find_flow(merged["flow"], manifest, wrong)
    place = normal_place(merged["checkpoint"]) if isinstance(merged["checkpoint"], str) else ""
    if isinstance(merged["checkpoint"], str) and not (place.startswith("/") or "://" in place):
        wrong.append(
            f"checkpoint is {merged['checkpoint']!r}. Allowed is an absolute path, or a URL such as"
            " s3://bucket/folder."
        )
    sources = merged["sources"] or None
    if flow is not None and isinstance(sources, dict):
        wrong += _misfits(sources, flow)
    refuse("The adoption was not planned", wrong)
    assert flow is not None, "what is missing was listed as wrong"
    return AdoptRequest(
        flow.full_name,
        place,
        merged["old_job_is_stopped"],
        sources,
        tuple(merged["accept"] or ()),
        merged["reason"] or "",
        by,
    )


def _misfits(sources: Mapping[str, Any], flow: Flow) -> list[str]:
    declared = sorted(source.name for source in flow.pipeline.sources_of(flow.declaration))
    if sorted(map(str, sources.values())) == declared:
        return []
    return [
        f"sources give the names {', '.join(sorted(map(str, sources.values())))}. Each source of"
        f" {flow.full_name} must be named once: {', '.join(declared)}."
    ]
