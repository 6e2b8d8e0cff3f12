"""What a person asks of ``hold_flows`` and ``release_flows``: the forms' fields, and the request that values
of them make.

As with recoveries (:mod:`streamkeeper.recover.requests.form`) every value is checked, together, before
anything is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.requests.form import FormField, read_values, refuse

DEADLINE = 600.0
"""Seconds that the form gives drivers to stop in good order."""


@dataclass(frozen=True)
class HoldRequest:
    """Flows to hold, whose hold it is, why, and how long drivers may take before they are ended by force
    (None: as long as it takes).
    """

    flows: tuple[str, ...]
    owner: str
    by: str
    reason: str
    deadline: float | None


@dataclass(frozen=True)
class ReleaseRequest:
    """Flows to release, and whose holds: one owner's, or (None) those of all persons."""

    flows: tuple[str, ...]
    owner: str | None


def hold_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``hold_flows``, in the order in which a person reads them."""
    return (
        *_which(manifest, "hold"),
        FormField(
            "reason", "string", "Reason", "Why, for those who find the flows held.", "", section="Stop"
        ),
        FormField(
            "deadline",
            "number",
            "Deadline",
            "Seconds that drivers get to end their batch and leave. After that they get SIGTERM, and a minute"
            " later SIGKILL; nothing is lost by that, but the batch is done again. Empty: wait for as long as"
            " it takes.",
            DEADLINE,
            nullable=True,
            section="Stop",
        ),
    )


def release_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``release_flows``, in the order in which a person reads them."""
    return (
        *_which(manifest, "release"),
        FormField(
            "owner",
            "string",
            "Whose hold",
            "The person whose hold is removed. Empty: yours.",
            "",
            section="Owner",
        ),
        FormField(
            "any_person",
            "boolean",
            "Anybody's hold",
            "Remove the holds of all persons. Those of parks and recoveries stay.",
            False,
            section="Owner",
        ),
    )


def parse_hold(values: Mapping[str, Any], manifest: Manifest, by: str) -> HoldRequest:
    """Make a request of the values of :func:`hold_form`; missing ones take the form's default.

    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, flows, wrong = _read(values, hold_form(manifest), manifest)
    deadline = merged["deadline"]
    if isinstance(deadline, (int, float)) and not 0 <= deadline < float("inf"):
        wrong.append(
            f"deadline is {deadline!r}; it must be a number of seconds, 0 or above. Leave it empty to wait"
            " for as long as it takes."
        )
    refuse("No flow was held", wrong)
    return HoldRequest(
        flows,
        holds.person(by),
        by,
        merged["reason"] or f"held by {by}",
        None if deadline is None else float(deadline),
    )


def parse_release(values: Mapping[str, Any], manifest: Manifest, by: str) -> ReleaseRequest:
    """Make a request of the values of :func:`release_form`; missing ones take the form's default.

    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, flows, wrong = _read(values, release_form(manifest), manifest)
    if merged["owner"] and merged["any_person"] is True:
        wrong.append(
            f"owner is {merged['owner']!r} and any_person is on. Choose one: a person's hold, or everybody's."
        )
    refuse("No flow was released", wrong)
    return ReleaseRequest(flows, None if merged["any_person"] else holds.person(merged["owner"] or by))


def release(home: FlowHome, owner: str | None) -> tuple[list[str], list[Hold]]:
    """Remove an owner's hold from a flow, or (None) those of all persons; give the owners that had one, and
    the holds that stay.
    """
    owners = [owner] if owner else [name for name in home.owners() if name.startswith(holds.PERSON)]
    return [name for name in owners if holds.release(home, name)], holds.all_of(home)


def describe_release(owner: str | None, released: list[str], left: list[Hold]) -> str:
    """Say what :func:`release` did to a flow, and who still holds it."""
    if owner is None:
        first = f"released from {', '.join(released)}" if released else "no person held it"
    else:
        first = "released" if released else f"{owner} had no hold"
    return f"{first}; {'still held by ' + ', '.join(hold.owner for hold in left) if left else 'free to run'}"


def _which(manifest: Manifest, verb: str) -> tuple[FormField, ...]:
    flows = tuple(flow.full_name for flow in manifest.flows())
    pipelines = tuple(pipeline.name for pipeline in manifest.pipelines)
    return (
        FormField(
            "flows",
            "array",
            "Flows",
            f"The flows to {verb}; or choose a pipeline, or all.",
            [],
            flows,
            many=True,
        ),
        FormField(
            "pipeline",
            "string",
            "Pipeline",
            f"Or: {verb} all flows of this pipeline.",
            None,
            pipelines,
            nullable=True,
        ),
        FormField("all", "boolean", "All flows", f"Or: {verb} every flow there is.", False),
    )


def _read(
    values: Mapping[str, Any], form: tuple[FormField, ...], manifest: Manifest
) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
    """Give all values, the flows that they mean, and what is wrong with them."""
    merged, wrong = read_values(values, form)
    return merged, () if wrong else _flows(merged, manifest, wrong), wrong


def _flows(values: Mapping[str, Any], manifest: Manifest, wrong: list[str]) -> tuple[str, ...]:
    given = [name for name in ("flows", "pipeline", "all") if values[name]]
    if len(given) != 1:
        wrong.append(
            f"Given are {' and '.join(given) or 'none'} of flows, pipeline and all. Give exactly one of them."
        )
        return ()

    def meant(flow: Flow) -> bool:
        return (
            bool(values["all"])
            or flow.full_name in (values["flows"] or ())
            or flow.pipeline.name == values["pipeline"]
        )

    found = tuple(flow.full_name for flow in manifest.flows() if meant(flow))
    if not found:
        wrong.append(
            "No flow is declared there, so there is nothing to do. Declare one, and run `streamkeeper check`."
        )
    return found
