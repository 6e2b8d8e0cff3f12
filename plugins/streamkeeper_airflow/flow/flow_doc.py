"""Display names, descriptions and docs of DAGs."""

from __future__ import annotations

import re

from streamkeeper.declare.model import APPEND, COMPLETE, UPDATE, AnyFlow, AutoCdcFlow
from streamkeeper.manifest.manifest import Flow, Manifest


def name_of_flows(flows: list[Flow]) -> str:
    """Return the name of a flow's DAG: pipeline and flow, or the pipeline if its flows share a driver.

    Airflow's search compares what somebody types with the beginning of a name, letter case included. So DAGs
    that are not of flows keep their id for a name, and no sign before a name puts flows first in the list.
    """
    pipeline = flows[0].pipeline
    return f"{pipeline.name} · {'all flows' if pipeline.shared_driver else flows[0].name}"


def description(flows: list[Flow]) -> str:
    """Return one line of plain text on what the flows of a DAG do."""
    phrases = [f"{does(flow.declaration)}, {often(flow.declaration)}" for flow in flows]
    if len(flows) > 1:
        phrases = [f"{flow.name} {words}" for flow, words in zip(flows, phrases, strict=True)]
    text = "; ".join(phrases).replace("`", "")
    return f"{text[:1].upper()}{text[1:]}." if len(flows) == 1 else f"{text}."


def documentation(flows: list[Flow], manifest: Manifest) -> str:
    """Return Markdown on what the flows do and, if their file cannot be read at present, why."""
    broken = manifest.errors.get(flows[0].pipeline.name)
    lines = [
        *(
            f"**{flow.full_name}** {does(flow.declaration)} ({flow.declaration.location}),"
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
        f"**Its file cannot be read; the flow keeps its last declaration.**\n\n{_fenced(broken)}"
        if broken
        else "",
    ]
    return "\n\n".join(line for line in lines if line)


def _fenced(text: str) -> str:
    """Return a text as a block of code, in a fence longer than any within it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def does(flow: AnyFlow) -> str:
    """Return what a flow does with its rows."""
    does = {UPDATE: "replaces rows by key in", COMPLETE: "replaces with each batch", APPEND: "appends to"}
    return f"{'applies changes to' if isinstance(flow, AutoCdcFlow) else does[flow.mode]} `{flow.target}`"


def often(flow: AnyFlow) -> str:
    """Return when a flow runs."""
    return "once; `reset_checkpoint` runs it again" if flow.once else f"every {flow.trigger}"
