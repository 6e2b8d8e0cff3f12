"""The request of ``rewind``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.flows.generations import BATCH, OFFSETS, TIMESTAMP, InitialState, StartAt
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.form import (
    FLOW,
    Asking,
    FormField,
    find_flow,
    form_field,
    form_fields,
    state_then,
)
from streamkeeper.recover.requests.rehearsal import Rehearsable
from streamkeeper.recover.requests.reset_checkpoint import parse_start

KEPT, RESTORED = "kept", "restored"
TARGETS = (KEPT, RESTORED)
"""Treatment of the table."""

WHERE = "Position"

_BATCH = re.compile(r"(?:([0-9]{1,18})/)?([0-9]{1,18})")
_TO = ("batch", TIMESTAMP, OFFSETS)


@dataclass(frozen=True)
class RewindRequest(Rehearsable):
    """A rewind as requested; every value was checked against the manifest.

    ``to`` is a batch (of the present generation if none is named), a timestamp or offsets. ``along`` are full
    names of other flows of the table, which may be rewound with it if the table is restored.
    """

    refused = "The rewind was not planned"

    flow: str = form_field("string", "Flow", "The flow to rewind.", names=FLOW, mends=True)
    to: StartAt = form_fields(
        FormField(
            "batch",
            "string",
            "To a batch",
            "The last batch to keep: 17 of the current generation, or 2/17 of generation 2.",
            nullable=True,
            section=WHERE,
        ),
        FormField(
            "timestamp",
            "string",
            "To a time",
            "Batches committed at this time or earlier are kept.",
            nullable=True,
            format="date-time",
            section=WHERE,
        ),
        FormField(
            "offsets",
            "object",
            "To positions",
            "A position for every source, by name, as streamkeeper inspect shows it; the target is then"
            " kept.",
            nullable=True,
            section=WHERE,
        ),
    )
    target: str = form_field(
        "string",
        "Target",
        "kept: rows that are read again are duplicated, except in a table that is updated by key."
        " restored: the table is restored to the version of that batch.",
        KEPT,
        enum=TARGETS,
        section="Table",
    )
    along: tuple[str, ...] = form_field(
        "array",
        "Other flows",
        "Other flows of the table to rewind with this one. Needed if the table is restored: every flow"
        " that wrote to it since then.",
        [],
        many=True,
        names=FLOW,
        section="Table",
    )
    state: InitialState = state_then()

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that one position is named, and fits the target, and that the other flows write the table."""
        wrong, flow, along = asking.wrong, asking.flow, values["along"]
        to = _to(values, flow, asking)
        if flow is not None:
            wrong += [misfit for name in along if (misfit := _misfit(name, flow, asking))]
        if values["target"] == RESTORED and flow is not None and flow.sink:
            wrong.append(
                f"target is restored, but {flow.declaration.target} is a sink: its rows are kept elsewhere,"
                " and no recovery can change them. Keep the target."
            )
        if values["target"] == RESTORED and to is not None and to.mode == OFFSETS:
            wrong.append(
                "target is restored, but a position has no version of the table. Name a batch or a time,"
                " or keep the target."
            )
        if along and values["target"] == KEPT:
            wrong.append(
                "along names flows, but the target is kept: each flow is then rewound on its own. Leave"
                " along empty, or choose restored."
            )
        return {"to": to}


def _to(values: Mapping[str, Any], flow: Flow | None, asking: Asking) -> StartAt | None:
    filled_fields = [name for name in _TO if values[name] not in (None, "", {})]
    if len(filled_fields) != 1:
        problem = f"{' and '.join(filled_fields)} are given" if filled_fields else "none is given"
        asking.wrong.append(
            f"{problem}. Give exactly one target: batch (such as 17 or 2/17), timestamp, or offsets."
        )
        return None
    if filled_fields[0] != "batch":
        start = {"start": filled_fields[0], filled_fields[0]: values[filled_fields[0]]}
        return parse_start(start, (flow,) if flow is not None and filled_fields[0] == OFFSETS else (), asking)
    match = _BATCH.fullmatch(values["batch"])
    if match is None:
        asking.wrong.append(
            f"batch is {values['batch'][:99]!r}. Allowed is a batch such as 17, or one of a generation such"
            " as 2/17."
        )
        return None
    return StartAt(BATCH, generation=None if match[1] is None else int(match[1]), batch=int(match[2]))


def _misfit(name: str, flow: Flow, asking: Asking) -> str | None:
    """Return why a flow cannot be rewound too; add to ``asking.wrong`` what is wrong with its name."""
    other = find_flow(name, asking.manifest, asking.wrong)
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
