"""The present state of a flow, as far as the plan of its next generation needs it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.settings import Settings
from streamkeeper.sources.replay_steps import OWN_STATES

DEDUPE = frozenset({"dedupe", "dedupeWithinWatermark"})
"""Stateful operators that let a row through or not, and never change it."""


@dataclass(frozen=True)
class FlowNow:
    """A flow that has a checkpoint. ``newest`` is its highest generation, begun or not; ``standing`` is of
    the newest that was begun.

    ``position`` are its offsets by source: empty if nothing was committed, None if they cannot be read.
    ``stateful`` is whether the query as declared now keeps state; None where that is not known. ``failure``
    are the details of its park.
    """

    newest: int
    standing: CommittedPosition
    position: dict[str, Any] | None
    operators: tuple[str, ...]
    stateful: bool | None
    is_safe_to_repeat: bool
    failure: dict[str, Any] | None

    @property
    def lets_rows_through(self) -> bool:
        """Whether each row that it writes is of one of the same batch: no state, or one that drops rows."""
        operators = self.declared_operators
        return self.stateful is False or (bool(operators) and DEDUPE.issuperset(operators))

    @property
    def declared_operators(self) -> Collection[str]:
        """Stateful operators of the query as declared now; those of the checkpoint where that is not
        known.
        """
        declared: Collection[str] | None = (self.failure or {}).get("operators")
        return self.operators if declared is None else declared

    @property
    def makes_its_state(self) -> bool:
        """Whether the query as declared now, if known, keeps a state that the pipeline's own code makes."""
        return not OWN_STATES.isdisjoint(self.declared_operators)


def look_at(settings: Settings, flow: Flow, strict: bool) -> FlowNow:
    """Return the present state of a flow.

    :param strict: whether its position must be read, because it is to continue right after it.
    :raises RequestError: it has no checkpoint.
    :raises CheckpointError: its checkpoint cannot be read as far as it must.
    """
    observed = Observed(open_home(settings, flow.full_name))
    newest, standing = observed.newest, observed.position(settings.table_path(flow.declaration.target))
    if newest is None or standing is None:
        raise RequestError(
            f"The flow {flow.full_name} has no checkpoint yet, so there is nothing to reset. Start it first:"
            f" its DAG, or streamkeeper run {flow.full_name}."
        )
    park = observed.park
    operators = tuple(operator.name for operator in standing.operators)
    declared = (park.details.get("operators") if park else None) or ()
    return FlowNow(
        newest=newest.number,
        standing=standing,
        position=_position(standing, strict),
        operators=operators,
        stateful=_is_stateful(park, flow, standing, operators),
        is_safe_to_repeat=is_safe_to_repeat(flow, {*operators, *declared}),
        failure=park.details if park else None,
    )


def _is_stateful(
    park: Hold | None, flow: Flow, standing: CommittedPosition, operators: tuple[str, ...]
) -> bool | None:
    """Whether the query as declared now keeps state, by its driver's park or its committed batches."""
    if (
        park is not None
        and park.details.get("fingerprint") == flow.fingerprint
        and isinstance(park.details.get("stateful"), bool)
    ):
        return bool(park.details["stateful"])
    if (
        park is None
        and flow.fingerprint == standing.generation.fingerprint
        and standing.last_commit is not None
    ):
        return bool(operators)
    return None


def _position(standing: CommittedPosition, strict: bool) -> dict[str, Any] | None:
    try:
        entry = standing.offsets()
    except CheckpointError:
        if strict:
            raise
        return None
    return {} if entry is None else entry.sources


def is_safe_to_repeat(flow: Flow, operators: Iterable[str]) -> bool:
    """Return whether rows that come again change nothing: changes by key, unless state alters them."""
    return isinstance(flow.declaration, AutoCdcFlow) and DEDUPE.issuperset(operators)
