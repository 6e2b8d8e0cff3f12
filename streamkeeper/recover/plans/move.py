"""Where a recovery takes a flow: the value by which every kind of recovery plans the next generation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streamkeeper.flows.generations import REBUILT, InitialState, Restart, StartAt
from streamkeeper.observe.past_positions import Place


class TableEffect(StrEnum):
    """What a move does to the table."""

    KEPT = "kept"
    RESTORED = "restored"
    """It goes back to where the flow starts again."""
    EMPTIED = "emptied"


@dataclass(frozen=True)
class Move:
    """A flow's move to its next generation, which begins at ``start`` with a ``state``.

    ``place`` is the batch after which it begins, where it is one; ``of_nothing`` says that the flow had
    written nothing where it goes back to. ``accept`` are the words of accepted impacts. ``keeps_schemas`` is
    whether inferred schemas of sources stay.
    """

    start: StartAt
    state: InitialState = REBUILT
    accept: tuple[str, ...] = ()
    place: Place | None = None
    table: TableEffect = TableEffect.KEPT
    keeps_schemas: bool = True
    of_nothing: bool = False

    @property
    def restores_table(self) -> bool:
        """Whether the table goes back with the flow."""
        return self.table is TableEffect.RESTORED

    @property
    def restart(self) -> Restart:
        """Start and state alone, as sources are asked about them."""
        return Restart(self.start, self.state)
