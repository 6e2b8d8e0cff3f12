"""The request of ``clean_up``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.declare.model import NAME
from streamkeeper.recover.requests.form import MOST_DAYS, PIPELINE, Asking, Request, form_field

DAYS = 30.0
PAUSE_DAYS = 8
"""Days without a clean-up after which nobody believes the clock alone: more than a weekly schedule has."""


@dataclass(frozen=True)
class CleanUpRequest(Request):
    """A clean-up as requested; ``forget_flows`` are names of undeclared flows whose files may go."""

    refused = "Nothing was cleaned up"

    pipeline: str = form_field("string", "Pipeline", "The pipeline to clean up.", names=PIPELINE)
    keep_days: float = form_field(
        "number",
        "Checkpoints",
        "Days to keep the checkpoint of a generation after the next one started. A rewind can return to it"
        " for that time.",
        DAYS,
        least=1,
        most=MOST_DAYS,
        unit="days",
    )
    tombstone_days: float = form_field(
        "number",
        "Tombstones",
        "Days that an AUTO CDC table remembers deletes and truncates. A change that arrives later is"
        " treated as new, even if it is older than a forgotten delete.",
        DAYS,
        least=1,
        most=MOST_DAYS,
        unit="days",
    )
    forget_flows: tuple[str, ...] = form_field(
        "string",
        "Forget flows",
        "Flows that are no longer declared and whose state may be removed, such as old_flow, other_flow."
        " For a renamed flow use streamkeeper rename instead.",
        "",
        section="Forget",
    )

    after_pause: bool = form_field(
        "boolean",
        "After a pause",
        f"Clean up although the last clean-up was more than {PAUSE_DAYS} days ago. Without it, nothing is"
        " removed then: a clock that jumped looks the same.",
        False,
    )

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Read the names of flows; the pipeline may declare none of them."""
        forget_flows = values["forget_flows"]
        named = tuple(name for name in re.split(r"[,\s]+", forget_flows) if name)
        if not all(NAME.fullmatch(name) for name in named):
            asking.wrong.append(
                f"forget_flows is {forget_flows!r}. Allowed are names of flows, without their pipeline's,"
                " such as old_flow, other_flow."
            )
        declared = {flow.name for flow in asking.manifest.flows() if flow.pipeline.name == values["pipeline"]}
        if still := sorted(declared & set(named)):
            asking.wrong.append(
                f"forget_flows names {', '.join(still)}, which the pipeline declares. Only flows that are"
                " no longer declared may be removed."
            )
        return {"forget_flows": named}
