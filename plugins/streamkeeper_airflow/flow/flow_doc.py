"""What the page of a flow's DAG says of it."""

from __future__ import annotations

from streamkeeper.declare.model import AnyFlow, AutoCdcFlow
from streamkeeper.manifest.manifest import Flow, Manifest


def documentation(flows: list[Flow], manifest: Manifest) -> str:
    """Say what the flows do and, if their file cannot be read at present, why."""
    broken = manifest.errors.get(flows[0].pipeline.name)
    lines = [
        *(
            f"**{flow.full_name}** {does(flow.declaration)} ({flow.declaration.where}),"
            f" {often(flow.declaration)}."
            for flow in flows
        ),
        (
            "They share one Spark application, which ends and starts with all that may run."
            if len(flows) > 1
            else ""
        ),
        (
            "A flow is held by `streamkeeper hold`, a park or a recovery; a parked flow needs"
            " `reset_checkpoint` or a corrected declaration."
        ),
        f"**Its file cannot be read; it goes on as last declared.**\n\n```\n{broken}\n```" if broken else "",
    ]
    return "\n\n".join(line for line in lines if line)


def does(flow: AnyFlow) -> str:
    """Say what a flow does with its rows."""
    return (
        f"applies changes to `{flow.target}`"
        if isinstance(flow, AutoCdcFlow)
        else f"appends to `{flow.target}`"
    )


def often(flow: AnyFlow) -> str:
    """Say when a flow runs."""
    return "once; `reset_checkpoint` runs it again" if flow.once else f"every {flow.trigger}"
