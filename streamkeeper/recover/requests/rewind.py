"""What a person asks of ``rewind``: the form's fields, and the request that values of them make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from streamkeeper.flows.generations import BATCH, OFFSETS, REBUILT, STATES, TIMESTAMP, StartAt
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
from streamkeeper.recover.requests.reset_checkpoint import parse_start

KEPT, RESTORED = "kept", "restored"
TARGETS = (KEPT, RESTORED)
"""What becomes of the table."""

_BATCH = re.compile(r"(?:([0-9]+)/)?([0-9]+)")
_TO = ("batch", TIMESTAMP, OFFSETS)


@dataclass(frozen=True)
class RewindRequest:
    """A rewind as asked for; every value was checked against the manifest.

    ``to`` is a batch (of the present generation where it names none), a timestamp or offsets. ``along`` are
    full names of other flows of the table, which may go back with it where the table is put back.
    """

    flow: str
    to: StartAt
    target: str = KEPT
    along: tuple[str, ...] = ()
    state: str = REBUILT
    accept: tuple[str, ...] = ()
    reason: str = ""
    by: str = "someone"


def request_from_json(value: dict[str, Any]) -> RewindRequest:
    """Read a request back from a plan."""
    return request_of(RewindRequest, value, to=StartAt(**value["to"]))


def rewind_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``rewind``, in the order in which a person reads them."""
    flows = tuple(flow.full_name for flow in manifest.flows())
    where = "Position"
    return (
        FormField("flow", "string", "Flow", "The flow that goes back.", None, flows),
        FormField(
            "batch",
            "string",
            "To a batch",
            "The last batch that stays done: `17` of the present generation, or `2/17` of generation 2.",
            nullable=True,
            section=where,
        ),
        FormField(
            "timestamp",
            "string",
            "To a time",
            "What was committed at this moment or before stays done.",
            nullable=True,
            format="date-time",
            section=where,
        ),
        FormField(
            "offsets",
            "object",
            "To positions",
            "A position for every source, by its name, as `streamkeeper inspect` shows it; the target is kept"
            " then.",
            nullable=True,
            section=where,
        ),
        FormField(
            "target",
            "string",
            "Target",
            "`kept`: rows that are read again come a second time, but for a table that is kept by key."
            " `restored`: the table is put back to the version that belongs to the batch.",
            KEPT,
            TARGETS,
            section="Table",
        ),
        FormField(
            "along",
            "array",
            "Other flows",
            "Other flows of the table that go back along where the table is restored: all that wrote it since"
            " must.",
            [],
            flows,
            many=True,
            section="Table",
        ),
        FormField(
            "state",
            "string",
            "State",
            "For a query that keeps state: as it was then (`rebuilt`: copied if it is still there, else made"
            " anew from history), or empty.",
            REBUILT,
            STATES,
            section="State",
        ),
        price_field(),
        *approval_fields(),
    )


def parse_rewind(
    values: Mapping[str, Any], manifest: Manifest, by: str, now: datetime | None = None
) -> RewindRequest:
    """Make a request of a form's values.

    :param values: by field name; missing fields take the form's default.
    :param now: the present moment, which no timestamp may lie after.
    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, rewind_form(manifest))
    flow = find_flow(merged["flow"], manifest, wrong)
    start = _to(merged, flow, now or datetime.now(timezone.utc), wrong)
    along = merged["along"] if isinstance(merged["along"], (list, tuple)) else ()
    if flow is not None:
        wrong += [misfit for name in along if (misfit := _misfit(name, flow, manifest, wrong))]
    if merged["target"] == RESTORED and start is not None and start.mode == OFFSETS:
        wrong.append(
            "target is restored, but positions belong to no version of it. Name a batch or a time, or keep"
            " the target."
        )
    if along and merged["target"] == KEPT:
        wrong.append(
            "along names flows, but the target is kept: each goes back by itself then. Leave along empty, or"
            " choose restored."
        )
    refuse("The rewind was not planned", wrong)
    assert flow is not None and start is not None, "what is missing was listed as wrong"
    return RewindRequest(
        flow=flow.full_name,
        to=start,
        target=merged["target"],
        along=tuple(along),
        state=merged["state"],
        accept=tuple(merged["accept"] or ()),
        reason=merged["reason"] or "",
        by=by,
    )


def _to(values: Mapping[str, Any], flow: Flow | None, now: datetime, wrong: list[str]) -> StartAt | None:
    given = [name for name in _TO if values[name] not in (None, "", {})]
    if len(given) != 1:
        said = f"{' and '.join(given)} are given" if given else "none is given"
        wrong.append(f"{said}. Say to where in one way: batch (such as 17 or 2/17), timestamp, or offsets.")
        return None
    if given[0] != "batch":
        asked = {"start_from": given[0], TIMESTAMP: None, OFFSETS: None, given[0]: values[given[0]]}
        return parse_start(asked, (flow,) if flow is not None and given[0] == OFFSETS else (), now, wrong)
    found = _BATCH.fullmatch(values["batch"]) if isinstance(values["batch"], str) else None
    if found is None:
        wrong.append(
            f"batch is {values['batch']!r}. Allowed is a batch such as 17, or one of a generation such as"
            " 2/17."
        )
        return None
    return StartAt(BATCH, generation=None if found[1] is None else int(found[1]), batch=int(found[2]))


def _misfit(name: Any, flow: Flow, manifest: Manifest, wrong: list[str]) -> str | None:
    """Say why a flow cannot go along; what is wrong with its name is added to ``wrong``."""
    other = find_flow(name, manifest, wrong)
    if other is None:
        return None
    if other.full_name == flow.full_name:
        return f"along names {name}, which is the flow itself. Leave it out."
    if (other.pipeline.name, other.declaration.target) != (flow.pipeline.name, flow.declaration.target):
        return (
            f"along names {name}, which does not write {flow.declaration.target}. Name flows of that table"
            " alone."
        )
    return None
