"""What became of a changed declaration whose flow has its changes tried (``on_change``).

One file a generation, overwritten: it counts for the declaration whose fingerprint it names, and no longer
once a newer generation has begun, or the files have changed again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from streamkeeper.declare.model import RESTART
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.flows.holds import parked_flows
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import now
from streamkeeper.trial import last_run
from streamkeeper.trial.last_run import LastRun
from streamkeeper.trial.verdict import Verdict


class ChangeState(StrEnum):
    """What became of a change."""

    READY = "ready"
    """It fits, and a driver that tried it waits for the lease."""
    REFUSED = "refused"
    """It does not fit: the flow runs on with the code that it had."""
    AWAITS = "awaits"
    """It fits, and a person must accept it."""
    ACCEPTED = "accepted"
    """A person accepted it: the next driver uses it, whatever the verdict was."""


@dataclass(frozen=True)
class Change:
    """A changed declaration, by its fingerprint, and the verdict on it."""

    fingerprint: str
    state: ChangeState
    verdict: Verdict
    at: str = ""

    @property
    def keeps_out(self) -> bool:
        """Whether drivers go on with the code that ran before."""
        return self.state in (ChangeState.REFUSED, ChangeState.AWAITS)

    def in_words(self, by: str = "Its declaration") -> str:
        """Return what a person must know, verdict included."""
        name = self.verdict.flow
        match self.state:
            case ChangeState.REFUSED:
                sentence = (
                    f"{by} changed, and the change is refused: {name} runs on with the code that it had."
                )
            case ChangeState.AWAITS:
                sentence = f"{by} changed and fits. It waits for a person: streamkeeper accept {name}."
            case ChangeState.READY:
                sentence = f"{by} changed and fits: the driver that tried it takes over."
            case ChangeState.ACCEPTED:
                sentence = f"{by} changed, and the change is accepted."
        return f"{sentence}\n{self.verdict.in_words()}"


def read(home: FlowHome, fingerprint: str) -> Change | None:
    """Return what became of a declaration under the generation that runs; None if nobody tried it."""
    begun = Observed(home).begun
    if begun is None:
        return None
    name, way = home.change(begun[0].number), "Remove it: it is tried anew."
    change = read_record(home.storage, name, Change, "a record of a change", way)
    return change if change is not None and change.fingerprint == fingerprint else None


def ill(storage: Storage, manifest: Manifest) -> dict[str, str]:
    """Return the flows that need a recovery, by full name, and why in a few words: parked ones, then those
    whose change is kept out; empty if the storage cannot be read.
    """
    flows = {flow.full_name: flow for flow in manifest.flows()}
    parked = dict.fromkeys(parked_flows(storage, list(flows)), "parked")

    def kept_out(home: FlowHome) -> str:
        change = read(home, flows[home.full_name].fingerprint)
        return (
            f"change {change.state}: {change.verdict.compatibility}"
            if change is not None and change.keeps_out
            else ""
        )

    tried = [name for name, flow in flows.items() if name not in parked and is_tried(flow)]
    try:
        refused = zip(tried, of_each(storage, tried, kept_out), strict=True)
    except StorageError:
        return parked
    return {**parked, **{name: reason for name, reason in refused if reason}}


def write(home: FlowHome, change: Change, by: str = "driver") -> None:
    """Write down what became of a change under the generation that runs."""
    begun = Observed(home).begun
    assert begun is not None, "a change is tried on the state of a generation that began"
    plain = {**asdict(change), "at": now()}
    home.storage.overwrite(home.change(begun[0].number), to_json(plain))
    reasons = "; ".join(change.verdict.reasons) or str(change.verdict.compatibility)
    text = f"declaration {change.fingerprint}: {reasons}"
    kind, number = Kind(f"change-{change.state}"), begun[0].number
    events.note(home, kind, text, [number, change.fingerprint], by=by, generation=number)


def last_runnable(home: FlowHome) -> LastRun | None:
    """Return what ran last if it can run again: files known, and no newer generation decided."""
    observed = Observed(home)
    begun = observed.begun
    if begun is None or begun[0].number != observed.generations[-1]:
        return None
    ran = last_run.read(home, begun[0].number)
    return ran if ran is not None and ran.files else None


def is_tried(flow: Flow) -> bool:
    """Return whether a changed declaration of a flow is tried before it is used."""
    return flow.declaration.on_change != RESTART and not flow.pipeline.shared_driver


def instead_of(home: FlowHome, flow: Flow) -> LastRun | None:
    """Return what the next driver runs instead of a declaration that is kept out; None if it runs that."""
    if not is_tried(flow):
        return None
    change = read(home, flow.fingerprint)
    return last_runnable(home) if change is not None and change.keeps_out else None


def to_run(home: FlowHome, flow: Flow) -> Flow:
    """Return the flow as the next driver runs it: as declared, or as before a change that is kept out."""
    ran = instead_of(home, flow)
    return flow if ran is None else replace(ran.flow(flow.name), broken=flow.broken)
