"""Where a recovery takes a flow: the value by which every kind of recovery plans the next generation."""

from __future__ import annotations

from dataclasses import dataclass

from streamkeeper.flows.generations import REBUILT, InitialState, Restart, StartAt
from streamkeeper.observe.past_positions import Place


@dataclass(frozen=True)
class Move:
    """A flow's move to its next generation, which begins at ``start`` with a ``state``.

    ``place`` is the batch after which it begins, where it is one. With ``restores_table`` the table goes back
    to that place, too; otherwise it is kept. ``accept`` are the words of accepted impacts. ``keeps_schemas``
    is whether inferred schemas of sources stay.
    """

    start: StartAt
    state: InitialState = REBUILT
    accept: tuple[str, ...] = ()
    place: Place | None = None
    restores_table: bool = False
    keeps_schemas: bool = True

    @property
    def restart(self) -> Restart:
        """Start and state alone, as sources are asked about them."""
        return Restart(self.start, self.state)
