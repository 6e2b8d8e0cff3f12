"""Plans: what a recovery will do and what it will cost, as one value.

The same plan is shown, approved, carried out and kept in the ledger. Making one touches nothing (see streamkeeper.resets).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from streamkeeper.generations import StartAt
from streamkeeper.requests import ResetRequest


class Step(str, Enum):
    """The steps of a reset, in their order. Each may be run again after a crash, and then finds what was done."""

    HOLD = "hold"
    PLAN_AGAIN = "plan_again"
    DECIDE = "decide"
    VERIFY_TABLES = "verify_tables"
    RELEASE = "release"
    VERIFY_PROGRESS = "verify_progress"


STEPS = tuple(Step)

WHAT_STEPS_DO = {
    Step.HOLD: "take the table's lock, put a hold on the flow, and wait until its driver has ended its batch and left",
    Step.PLAN_AGAIN: "look again, now that nothing moves, and compare the price with the approved one",
    Step.DECIDE: "write the next generation: immutable; the old checkpoint stays as it is",
    Step.VERIFY_TABLES: "see that the target is there, readable, and not behind where it was",
    Step.RELEASE: "take the hold, the park and the lock away; the flow's next driver seals the old generation in the sink, seeds the new "
    "checkpoint, and runs",
    Step.VERIFY_PROGRESS: "wait until the new generation has committed a batch, or has looked and found nothing new",
}


@dataclass(frozen=True)
class Amount:
    """An amount of source data: files, bytes, and rows where they could be counted.

    ``rows`` is exact if ``rows_unknown`` is None, and a bound with ``at_most``; else ``rows_unknown`` says why there is no number.
    """

    files: int | None = 0
    bytes: int = 0
    rows: int | None = 0
    rows_unknown: str | None = None
    at_most: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is none of it, for sure."""
        return not self.files and not self.rows and self.rows_unknown is None


NONE = Amount()


@dataclass(frozen=True)
class SourcePrice:
    """What the plan costs in one source.

    ``now`` and ``then`` say in words where the flow stands and where the new generation will start. ``lost``: never read by any generation.
    ``repeated``: read by an earlier generation and again by this one. ``replayed``: read once more to rebuild state, with the sink muted.
    ``gone``: history that was read and is not there any more. ``blocked`` says why the plan cannot be carried out, whatever is accepted.
    """

    source: str
    now: str
    then: str
    lost: Amount = NONE
    repeated: Amount = NONE
    replayed: Amount = NONE
    gone: Amount = NONE
    notes: tuple[str, ...] = ()
    blocked: str | None = None

    @property
    def unknown(self) -> bool:
        """Whether it could not even be told if rows are lost or repeated."""
        return all(amount.files is None and amount.rows is None for amount in (self.lost, self.repeated))


@dataclass(frozen=True)
class Refusal:
    """A price that someone must accept first. ``price`` is the word to accept it by, or None if nothing can make the plan go."""

    price: str | None
    message: str


@dataclass(frozen=True)
class Plan:
    """A reset, planned. ``generation`` is the one that is left; ``fingerprint`` the declaration that the plan is for."""

    recovery: str
    recovery_id: str
    flow: str
    target: str
    request: ResetRequest
    generation: int
    next_generation: int
    previous: int
    fingerprint: str
    position: dict[str, Any]
    stateful: bool | None
    operators_before: tuple[str, ...]
    steps: tuple[Step, ...]
    prices: tuple[SourcePrice, ...]
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    failure: dict[str, Any] | None
    at: str
    format: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


def to_json(plan: Plan) -> dict[str, Any]:
    """Give a plan as a JSON object."""
    return asdict(plan)


def from_json(value: dict[str, Any]) -> Plan:
    """Read a plan back from the JSON object that :func:`to_json` gave."""
    request = value["request"]
    return Plan(
        **{
            **value,
            "request": ResetRequest(**{**request, "start": StartAt(**request["start"]), "accept": tuple(request["accept"])}),
            "operators_before": tuple(value["operators_before"]),
            "steps": tuple(Step(step) for step in value["steps"]),
            "prices": tuple(_price(price) for price in value["prices"]),
            "notes": tuple(value["notes"]),
            "refusals": tuple(Refusal(**refusal) for refusal in value["refusals"]),
        }
    )


def worse(approved: Plan, again: Plan) -> list[str]:
    """Say in which ways a plan made again costs more than the approved one; empty if in none."""
    before = {price.source: price for price in approved.prices}
    found = [f"new refusal: {item.message}" for item in again.refusals if item.price not in {old.price for old in approved.refusals}]
    for price in again.prices:
        old = before.get(price.source)
        if old is None:
            found.append(f"source {price.source} was not in the approved plan")
            continue
        for name in ("lost", "repeated", "gone"):
            was, now = getattr(old, name), getattr(price, name)
            if _grew(was, now):
                found.append(f"source {price.source}: {name} went from {in_words(was)} to {in_words(now)}")
    return found


def _grew(was: Amount, now: Amount) -> bool:
    """Tell whether an amount costs more than the one that was accepted; more of what was accepted unseen is no more."""
    if now.rows_unknown and not was.rows_unknown:
        return True
    more_files = was.files is not None and (now.files or 0) > was.files
    more_rows = was.rows is not None and was.rows_unknown is None and (now.rows or 0) > was.rows
    return more_files or more_rows


def in_words(amount: Amount) -> str:
    """Say an amount: ``nothing``, ``3 files, 1.2 kB, 40 rows``."""
    if amount.nothing:
        return "nothing"
    parts = [] if amount.files is None else [f"{amount.files:,} file{'' if amount.files == 1 else 's'}"]
    parts += [size_in_words(amount.bytes)] if parts and amount.bytes else []
    count = f"{'at most ' if amount.at_most else ''}{amount.rows:,} row{'' if amount.rows == 1 else 's'}" if amount.rows is not None else ""
    parts.append(f"rows unknown: {amount.rows_unknown}" if amount.rows_unknown else count)
    return ", ".join(parts)


def size_in_words(size: float) -> str:
    """Say a number of bytes: ``512 B``, ``1.2 kB``, ``3.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _price(value: dict[str, Any]) -> SourcePrice:
    amounts = {name: Amount(**value[name]) for name in ("lost", "repeated", "replayed", "gone")}
    return SourcePrice(**{**value, **amounts, "notes": tuple(value["notes"])})
