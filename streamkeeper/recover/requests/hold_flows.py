"""The requests of what ends or sets a hold: ``hold_flows``, ``release_flows`` and ``abandon_recovery``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.drivers.waves import PATIENCE, Released, in_waves, release_in_waves
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.flows.holds import Hold
from streamkeeper.recover.requests.form import (
    FLOW,
    Asking,
    FormField,
    Request,
    chosen_flows,
    form_field,
    form_fields,
    of_pipeline_or_all,
)

DEADLINE = 600.0
"""Default seconds for drivers to stop in good order."""


def _which(verb: str) -> tuple[FormField, ...]:
    return (
        FormField(
            "flows",
            "array",
            "Flows",
            f"The flows to {verb}; or choose a pipeline, or all.",
            [],
            many=True,
            names=FLOW,
        ),
        *of_pipeline_or_all(verb, "flows"),
    )


def _names(values: Mapping[str, Any], asking: Asking) -> tuple[str, ...]:
    return tuple(flow.full_name for flow in chosen_flows(values, asking))


@dataclass(frozen=True)
class HoldRequest(Request):
    """Flows to hold, the hold's owner, the reason, the seconds until drivers are killed (None: never), and
    the hours after which the hold ends by itself (None: it does not).
    """

    refused = "No flow was held"
    run = (FormField("reason", "string", "Reason", "Reason, shown to others.", "", section="Stop"),)

    flows: tuple[str, ...] = form_fields(*_which("hold"))
    owner: str = ""
    deadline: float | None = form_field(
        "number",
        "Deadline",
        "Seconds that drivers have to end their batch and stop. After that they get SIGTERM, and a minute"
        " later SIGKILL: nothing is lost, but the batch is repeated. Empty: no limit.",
        DEADLINE,
        nullable=True,
        least=0,
        unit="seconds",
        section="Stop",
    )
    hours: float | None = form_field(
        "number",
        "For",
        "Hours after which the hold ends by itself, as for maintenance. Empty: when it is released.",
        None,
        nullable=True,
        least=0,
        unit="hours",
        section="Stop",
    )

    def put(self, home: FlowHome) -> list[Hold]:
        """Put the hold on each of the flows.

        :param home: that of any flow of the same state folder.
        """
        seconds = None if self.hours is None else self.hours * 3600

        def put_one(one: FlowHome) -> Hold:
            return holds.put(one, self.owner, self.reason, self.by, seconds=seconds)

        return of_each(home.storage, self.flows, put_one)

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Return the flows, the owner and the reason."""
        owner, reason = holds.person(asking.by), values["reason"] or f"held by {asking.by}"
        return {"flows": _names(values, asking), "owner": owner, "reason": reason}


@dataclass(frozen=True)
class ReleaseRequest(Request):
    """Flows to release, and whose holds: those of one owner, or (None) of all persons.

    ``waves`` are full names of flows: those of a wave are released together (streamkeeper.drivers.waves).
    """

    refused = "No flow was released"
    run = ()

    flows: tuple[str, ...] = form_fields(*_which("release"))
    owner: str | None = form_fields(
        FormField(
            "owner",
            "string",
            "Whose hold",
            "The person whose hold is released. Empty: you.",
            "",
            section="Owner",
        ),
        FormField(
            "any_person",
            "boolean",
            "Anybody's hold",
            "Release the holds of all persons. Parks and holds of recoveries stay.",
            False,
            section="Owner",
        ),
        default=None,
    )
    waves: tuple[tuple[str, ...], ...] = form_fields(
        FormField(
            "wave",
            "number",
            "Drivers in a wave",
            "Release the flows of so many drivers at a time, and the next ones when these run again. Empty:"
            " all at once.",
            nullable=True,
            whole=True,
            least=1,
            unit="drivers",
            section="Waves",
        ),
        default=(),
    )
    patience: float = form_field(
        "number",
        "Patience",
        "Seconds for the flows of a wave to run again. If one does not, it is named, and the later ones stay"
        " held.",
        PATIENCE,
        least=1,
        unit="seconds",
        section="Waves",
    )

    def release(self, home: FlowHome, by: str, say: Callable[[str], None]) -> list[Released]:
        """Release the flows, wave by wave.

        :param home: that of any flow of the same state folder.
        :param by: who asks for it.
        :param say: called after each wave.
        :raises NotRunning: a flow does not run again; those of later waves are held as before.
        """
        return release_in_waves(
            home, self.waves, lambda one: release(one, self.owner, by), self.patience, say=say
        )

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Return the flows, their waves and the owner; check that one owner is named, or all."""
        if values["owner"] and values["any_person"]:
            asking.wrong.append(
                f"owner is {values['owner']!r} and any_person is on. Choose one: a person's hold, or"
                " everybody's."
            )
        owner = None if values["any_person"] else holds.person(values["owner"] or asking.by)
        flows = chosen_flows(values, asking)
        names = tuple(flow.full_name for flow in flows)
        return {"flows": names, "owner": owner, "waves": in_waves(flows, values["wave"])}


@dataclass(frozen=True)
class AbandonRequest(Request):
    """A recovery to give up: its holds and locks go, and what it has changed stays."""

    refused = "Nothing was abandoned"
    run = (FormField("reason", "string", "Reason", "Reason, kept in its ledger.", ""),)

    recovery: str = form_field(
        "string", "Recovery", "Id of the recovery, as its page and its alerts name it.", ""
    )


def release(home: FlowHome, owner: str | None, by: str) -> tuple[list[str], list[Hold]]:
    """Remove an owner's hold from a flow, or (None) those of all persons.

    Return the owners that had one, and the holds that stay.

    :param by: who asks for it.
    """
    owners = [owner] if owner else [name for name in home.owners() if name.startswith(holds.PERSON)]
    return [name for name in owners if holds.release(home, name, by)], holds.all_of(home)


def describe_release(owner: str | None, released: list[str], remaining_holds: list[Hold]) -> str:
    """Return what :func:`release` did to a flow, and who still holds it."""
    if owner is None:
        first = f"released from {', '.join(released)}" if released else "no person held it"
    else:
        first = "released" if released else f"{owner} had no hold"
    owners = ", ".join(hold.owner for hold in remaining_holds)
    return f"{first}; {f'still held by {owners}' if owners else 'free to run'}"
