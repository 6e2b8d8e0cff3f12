"""Requests that may be rehearsed, and the request of ``rehearse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkeeper.declare.model import REHEARSABLE
from streamkeeper.recover.requests.form import RUN, Request, accepted, form_field

MINUTES = 10.0
"""Minutes for which a rehearsed driver reads, if nothing else is asked for."""
NO_RECOVERY = "none"
"""What is rehearsed is the declaration alone: the flows go on with it."""
_APPROVAL = RUN[0].section


@dataclass(frozen=True, kw_only=True)
class Rehearsable(Request):
    """A request with impacts that can be rehearsed; ``rehearsal`` is the id of a rehearsal, or empty."""

    rehearse: bool = form_field(
        "boolean",
        "Rehearse first",
        "Before the approval: carry it out on a copy of the tables and checkpoints, and show with the plan"
        " what it came to. The flows run on meanwhile. With Only plan, nothing else is done.",
        False,
        section=_APPROVAL,
    )
    rehearsal: str = form_field(
        "string",
        "Rehearsed before",
        "The id of a rehearsal of just this. Its evidence is shown with the plan. The plan is refused if the"
        " generation, the declaration or the impact is another one now.",
        "",
        section=_APPROVAL,
    )
    accept: tuple[str, ...] = accepted()


@dataclass(frozen=True)
class RehearseRequest(Request):
    """A rehearsal as requested: of a recovery with the values of its form, or of a declaration alone.

    ``pipelines`` is a folder whose declarations are rehearsed; empty for those that are deployed. ``files``
    bounds what a batch reads of each source, in files or in records of Kafka; None for what is declared.
    """

    refused = "The rehearsal was not planned"

    flow: str = form_field(
        "string", "Flow", "The flow whose pipeline is rehearsed.", names="flow", mends=True
    )
    recovery: str = form_field(
        "string",
        "Recovery",
        "Recovery to rehearse. none: rehearse only the declaration, for example one from another folder.",
        NO_RECOVERY,
        enum=(NO_RECOVERY, *REHEARSABLE),
    )
    request: dict[str, Any] | None = form_field(
        "object",
        "Values",
        'The values of that recovery\'s form, such as {"start": "earliest"}. The flow above, or'
        " its table, is filled in.",
        nullable=True,
    )
    pipelines: str = form_field(
        "string",
        "Folder",
        "A folder with the pipelines to rehearse, such as a branch's checkout. Empty: what is deployed.",
        "",
    )
    minutes: float = form_field(
        "number",
        "Minutes",
        "A driver that has not read all its input then ends its batch, and what it did counts.",
        MINUTES,
        least=0.1,
        most=1440,
        unit="minutes",
        section="Bounds",
    )
    files: int | None = form_field(
        "number",
        "Files a batch",
        "At most so many files, or records of Kafka, of each source in a batch; the driver ends after one.",
        nullable=True,
        whole=True,
        least=1,
        section="Bounds",
    )
