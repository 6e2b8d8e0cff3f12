"""What only a driver can do for a source format: look with Spark, and write a position into a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql import SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.sources.replay_steps import Bound
from streamkeeper_jobs.sinks.job import Job

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

L = TypeVar("L")
P = TypeVar("P")


@dataclass(frozen=True)
class Planting:
    """A checkpoint that is being made, and one source whose position goes into it.

    ``folder`` is its name in the state storage. ``bound`` is that of a step of a replay, or None if no
    history is replayed. ``made_of`` is updated with what distinguishes this history from others beyond its
    positions.

    With ``as_it_came`` the offsets of the old checkpoint hold in it, too, and ``first`` is the source's after
    the first of the old batches that are replayed one by one: only what comes before is cut into steps.
    """

    job: Job
    folder: str
    source: Source
    bound: Bound | None
    made_of: Hash
    as_it_came: bool = False
    first: Any | None = None

    def write(self, content: bytes) -> None:
        """Write the one file that the source keeps in the checkpoint."""
        self.job.home.storage.overwrite(f"{self.folder}/sources/{self.source.name}/0", content)


class JobFormat(ABC, Generic[L, P]):
    """A format of source in a driver: ``L`` and ``P`` are those of its
    :class:`streamkeeper.sources.base.format.SourceFormat`.
    """

    twice = False
    """Whether Spark asks a source at each start for its last batch again, counted from the batch before.

    Its position is planted as two batches then: without the first, that batch would be the whole source.
    """

    def ended(self, spark: SparkSession, source: Source) -> str | None:
        """Return why a source gives no more rows to a query that runs; None if it may give more.

        Only sources with a connection are asked.
        """
        return None

    def look(self, job: Job, source: Source, folder: str, schemas: Mapping[str, str]) -> L:
        """Return what a source holds now, exactly as Spark finds it.

        :param folder: the name in the state storage of a temporary folder.
        :raises SourceError: it does not answer, or is not there.
        """
        return self.look_directly(job.spark, source)

    def look_directly(self, spark: SparkSession, source: Source) -> L:
        """Return the same, where it needs no folder: always where unread data can expire.

        :raises SourceError: it does not answer, or is not there.
        """
        raise NotImplementedError(f"unread data of {source.format} does not expire")

    @abstractmethod
    def write_position(self, into: Planting, position: P, look: Callable[[], L]) -> list[Any]:
        """Write what a source keeps in a checkpoint; return its offset after each step, its own the last, or
        the first of the batches that follow one by one.
        """

    def comes_again(
        self, spark: SparkSession, source: Source, position: P, offsets: Sequence[Any], look: Callable[[], L]
    ) -> bool:
        """Return whether the rows between some old offsets, the last of which is to be the position, can be
        read again.
        """
        return True

    def complete(self, job: Job, source: Source, position: P) -> P:
        """Return a position with what only the driver knows of it."""
        return position

    def missing(self, spark: SparkSession, source: Source, position: P, look: Callable[[], L]) -> str | None:
        """Return what of the history is gone and can be accepted as missing; None if nothing is.

        :raises RecoveryError: the history cannot be replayed at all.
        """
        return None

    def for_replay(self, source: Source, position: P, look: Callable[[], L], rebuilds: bool) -> Source:
        """Return the source limited to what a replay needs: its history, or next to nothing."""
        return source

    has_ids = False
    """Whether :meth:`ids` has any, which costs a look."""

    def ids(self, look: L) -> dict[str, str]:
        """Return what tells the parts of a source from others that are made anew under their names."""
        return {}
