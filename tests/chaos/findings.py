"""What an auditor judges: what it saw at one moment, and what a table's log says. Pure: each takes values and
gives violations.

**Two live drivers.** A driver counts from the moment at which it holds a lease epoch *and* has begun writing:
its heartbeat says that it seeds a state or runs its query. It counts until it left its lease (it does so
after its query stopped) or every process of its session that was seen is gone, the JVM that writes and the
Python that beats alike; a process that is stopped (SIGSTOP) is not gone. A driver that starts, finds the
lease held and leaves never has an epoch; one that has an epoch and still looks at its checkpoint has not
begun. Processes are told apart by pid and start time, on this host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamkeeper.delta.log import FENCE

WRITING = ("seeding", "running", "stopping")
"""Phases of a heartbeat in which a driver's query may write: after ``starting``, until its processes are
gone.
"""


@dataclass(frozen=True)
class Violation:
    """Something that must never be. ``kind`` is for machines, ``words`` for people; ``at`` is the auditor's
    clock, in seconds.
    """

    kind: str
    words: str
    at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class SeenDriver:
    """A driver at one moment: its epoch, its living processes by pid, whether the one that its lease names
    lives, and what it said last.
    """

    epoch: int
    alive: tuple[int, ...]
    holder_alive: bool
    phase: str = "starting"
    left: bool = False

    @property
    def writes(self) -> bool:
        """Whether it counts as a live driver that has begun writing."""
        return bool(self.alive) and not self.left and self.phase in WRITING


@dataclass(frozen=True)
class Sight:
    """What was seen at one moment: every driver that has or had an epoch, oldest first."""

    at: float
    drivers: tuple[SeenDriver, ...]


@dataclass(frozen=True)
class Commit:
    """A version of a table: its ``txn`` actions as (query id, batch), and how many data files it added."""

    version: int
    transactions: tuple[tuple[str, int], ...]
    added: int = 0


def judge_sight(sight: Sight) -> list[Violation]:
    """Find two live drivers, and a lease that was taken over while its holder lived."""
    found = []
    writing = [driver for driver in sight.drivers if driver.writes]
    if len(writing) > 1:
        said = " and ".join(
            f"epoch {driver.epoch} ({driver.phase}, processes {', '.join(map(str, driver.alive))})"
            for driver in writing
        )
        epochs = "+".join(str(driver.epoch) for driver in writing)
        found.append(
            Violation(
                f"two live drivers {epochs}", f"two live drivers that have begun writing: {said}", sight.at
            )
        )
    for before, after in zip(sight.drivers, sight.drivers[1:], strict=False):
        if before.holder_alive and not before.left:
            words = (
                f"epoch {after.epoch} was taken while the holder of epoch {before.epoch} lived and had not"
                " left"
            )
            found.append(Violation(f"taken from the living {before.epoch}", words, sight.at))
    return found


def judge_epochs(before: Sequence[int], after: Sequence[int]) -> list[Violation]:
    """Find epochs that were skipped or are gone: they are only ever created, one after another."""
    found = []
    if gone := sorted(set(before) - set(after)):
        found.append(
            Violation(f"epochs gone {gone}", f"the lease's epochs {gone} are gone; they are never removed")
        )
    if list(after) != list(range(1, len(after) + 1)):
        found.append(
            Violation(
                f"epochs skipped {list(after)}",
                f"the lease's epochs are {list(after)}; they follow one another from 1",
            )
        )
    return found


def judge_log(commits: Iterable[Commit], query_ids: Sequence[str]) -> list[Violation]:
    """Find batches committed twice, out of order, after their generation's fence, without a transaction, or
    by a stranger.

    :param query_ids: those of the flow's generations, oldest first.
    """
    found: list[Violation] = []
    last: dict[str, int] = {}
    for commit in sorted(commits, key=lambda one: one.version):
        if commit.added and not commit.transactions:
            found.append(_at(commit, "no transaction", f"added {commit.added} files without a transaction"))
        for query, batch in commit.transactions:
            if query not in query_ids:
                found.append(
                    _at(commit, "stranger", f"was written by {query}, which is no generation of the flow")
                )
                continue
            found += _misplaced(commit, query, batch, last.get(query), query_ids.index(query) + 1)
            last[query] = max(batch, last.get(query, -1))
    return found


def _misplaced(commit: Commit, query: str, batch: int, last: int | None, generation: int) -> list[Violation]:
    named = f"batch {batch} of generation {generation}"
    if last is None or batch > last:
        return []
    if batch == last:
        what = "the fence" if batch == FENCE else named
        return [_at(commit, "twice", f"commits {what} a second time")]
    if last == FENCE:
        return [_at(commit, "after the fence", f"commits {named} after the generation was fenced")]
    return [_at(commit, "out of order", f"commits {named} after batch {last}")]


def _at(commit: Commit, kind: str, words: str) -> Violation:
    return Violation(f"{kind} in version {commit.version}", f"version {commit.version} of the table {words}")
