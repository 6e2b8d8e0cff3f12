"""Where a flow stands: what is kept of it, each file read once, when it is asked for first.

A value is made for one look, and knows nothing of what happens after that. Nothing is changed; neither Spark
nor Airflow is asked. Plans, pre-flight, the monitor, the page, metrics and the command line all look here, so
that none of them counts a commit that the others do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.errors import CheckpointError, StorageError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.flows.holds import Hold
from streamkeeper.flows.leases import Heartbeat, Lease, Life
from streamkeeper.observe import position
from streamkeeper.observe.position import CommittedPosition


@dataclass(frozen=True)
class Observed:
    """What is kept of one flow. A property raises StorageError or CheckpointError if its file is damaged."""

    home: FlowHome
    _positions: dict[str, CommittedPosition] = field(default_factory=dict, compare=False)

    @cached_property
    def generations(self) -> tuple[int, ...]:
        """Numbers of all generations that are decided, lowest first."""
        return tuple(self.home.generations())

    @cached_property
    def newest(self) -> Generation | None:
        """The newest generation that is decided, begun or not; None before the first."""
        return generations.read(self.home, self.generations[-1]) if self.generations else None

    @cached_property
    def begun(self) -> tuple[Generation, Start] | None:
        """The newest generation that a driver began, with its start; None before the first."""
        for number in reversed(self.generations):
            start = generations.read_start(self.home, number)
            if start is not None:
                newest = self.newest
                decided = (
                    newest if newest and newest.number == number else generations.read(self.home, number)
                )
                assert decided is not None, f"generation {number} was listed"
                return decided, start
        return None

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the newest generation that began."""
        return None if self.begun is None else Checkpoint(self.home.storage, self.begun[1].checkpoint)

    @cached_property
    def last_commit(self) -> int | None:
        """The last batch of that checkpoint that counts: none that was committed after its fence."""
        if self.begun is None or self.checkpoint is None:
            return None
        return generations.committed(self.home, self.begun[0].number, self.checkpoint.last_commit())

    @property
    def own_commit(self) -> int | None:
        """That batch; None if it is the one that the generation was seeded with."""
        seed = None if self.begun is None else self.begun[1].seed_batch
        last = self.last_commit
        return None if last is None or (seed is not None and last <= seed) else last

    @cached_property
    def committed_at(self) -> float | None:
        """When the last commit was written, in seconds since 1970 by the storage's clock."""
        return None if self.checkpoint is None else self.checkpoint.committed_at(self.last_commit)

    @cached_property
    def offsets(self) -> Mapping[str, Any]:
        """The offsets of the last commit, by the sources' names in the checkpoint; empty before the first."""
        if self.checkpoint is None or self.last_commit is None:
            return {}
        return self.checkpoint.offsets(self.last_commit).sources

    @property
    def is_done(self) -> bool:
        """Whether a once flow has read all its input in its newest generation."""
        return generations.finished(self.home) is not None

    @cached_property
    def lease(self) -> Lease | None:
        """The lease that holds; None before the first driver."""
        return leases.current(self.home)

    @cached_property
    def life(self) -> Life | None:
        """Whether the driver of that lease lives, as far as that is known without waiting."""
        return None if self.lease is None else leases.life(self.home, self.lease)

    @cached_property
    def heartbeat(self) -> Heartbeat | None:
        """The last heartbeat of that lease's driver."""
        return None if self.lease is None else leases.read_heartbeat(self.home, self.lease.epoch)

    @cached_property
    def holds(self) -> list[Hold]:
        """All holds, by owner."""
        return holds.all_of(self.home)

    @cached_property
    def park(self) -> Hold | None:
        """The hold that parks the flow; None if it is not parked. The other holds are not read for it."""
        return holds.parked(self.home)

    def position(self, table_path: str) -> CommittedPosition | None:
        """The position of the generation that began last, by checkpoint and table's log; None without one."""
        if self.begun is None:
            return None
        if table_path not in self._positions:
            self._positions[table_path] = position.look(self.home, table_path, *self.begun)
        return self._positions[table_path]

    def knows_position(self, table_path: str) -> bool:
        """Whether the next generation can begin after the last batch, as far as the checkpoint tells: whether
        offsets and lists of processed files can be read.
        """
        try:
            standing = self.position(table_path)
            entry = None if standing is None else standing.offsets()
            if standing is None or entry is None:
                return True
            for name, offset in entry.sources.items():
                if isinstance(offset, dict) and offset.keys() == {"logOffset"}:
                    deque(standing.checkpoint.files_log(name).entries(offset["logOffset"]), maxlen=0)
        except CheckpointError:
            return False
        except StorageError:
            return True  # nothing says that it is not: whoever plans finds out
        return True
