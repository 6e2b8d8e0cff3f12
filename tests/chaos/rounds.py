"""One round: produce, await the moment, strike, await that the flow is back, let it catch up, and hold the
table against the oracle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from demo import evidence
from demo.data.generator import Generator
from tests import events_evidence
from tests.chaos.arena import DAG, Arena, Parked
from tests.chaos.choosing import Blow, Moment, Round, Victim
from tests.chaos.components import SCHEDULER
from tests.chaos.striking import NothingToStrike, Strike, Target, strike, targets
from tools.waiting import wait_until

BACK = 300.0
"""Seconds until a step of a round counts as failed: some ten times what it takes on a machine with nothing
else to do.
"""
POLL = 0.02
SUPERVISORS = (Victim.TASK, Victim.WORKER, Victim.SCHEDULER, Victim.SCHEDULER_GROUP)
"""Victims whose end the driver should not notice."""
WATCHED_ANEW = (*SUPERVISORS, Victim.BOTH)
"""Victims whose end takes the watching task along. A driver alone is followed by the next within the same
try.
"""
BEATS = 5
"""Beats after a blow that show that a task goes on watching. SIGTERM asks, and Airflow's worker and the task
may both stay (seen).
"""


@dataclass(frozen=True)
class Result:
    """What a round showed. Seconds count from the blow: to the next commit after it, and where its task was
    struck until one watches: another try, or after SIGTERM the same one.

    ``drivers`` counts those that took the lease since.
    """

    round: Round
    to_commit: float | None
    to_watch: float | None
    drivers: int
    rows: int
    wrong: tuple[str, ...]

    @property
    def replaced(self) -> bool:
        """Whether the driver was ended although it was not struck: harmless, but the stream should outlive
        its supervisor.
        """
        return self.round.victim in SUPERVISORS and self.drivers > 0

    @property
    def verdict(self) -> str:
        """``exact``, or what is wrong."""
        return "; ".join(self.wrong) or ("exact, but the driver was ended too" if self.replaced else "exact")


def play(arena: Arena, chosen: Round) -> Result:
    """Play one round, and give what it showed; what did not come true in time is part of that, not an
    exception.
    """
    already = {one.kind for one in arena.auditor.violations()}
    drivers, wrong = arena.auditor.drivers(), list[str]()
    to_commit = to_watch = None
    rows = 0
    try:
        _until(arena.works, "the flow runs")
        drivers = arena.auditor.drivers()
        with arena.generator() as generator:
            watcher = arena.watched_by()
            struck, before = _strike(arena, chosen, generator)
            _restart(arena, chosen)
            _until(lambda: arena.version() > before, "a new batch is committed", arena)
            to_commit = time.monotonic() - struck.at
            if chosen.blow is not Blow.PAUSE and chosen.victim in WATCHED_ANEW:
                beats = arena.beats()
                stays = chosen.blow is Blow.TERM
                _until(
                    lambda: (
                        arena.watched_by() not in ("", watcher) or (stays and arena.beats() >= beats + BEATS)
                    ),
                    "a task watches the driver",
                    arena,
                )
                to_watch = time.monotonic() - struck.at
            _until(arena.works, "the flow runs again")
        rows, differing = _compare(arena)
        wrong += differing
    except (TimeoutError, Parked, NothingToStrike) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    wrong += [one.words for one in arena.auditor.violations() if one.kind not in already]
    return Result(chosen, to_commit, to_watch, arena.auditor.drivers() - drivers, rows, tuple(wrong))


def _strike(arena: Arena, chosen: Round, generator: Generator) -> tuple[Strike, int]:
    """Strike at the moment; give what was done, and the table's version right after."""
    found = _find(arena, chosen.victim)
    _await_moment(arena, chosen.moment, generator)
    time.sleep(chosen.jitter)  # no condition to await: it is what makes the moment a random one
    struck = strike(chosen, found)
    return struck, arena.version()


def _find(arena: Arena, victim: Victim) -> tuple[Target, ...]:
    def look() -> tuple[Target, ...] | None:
        try:
            return targets(victim, arena.home, arena.service, DAG)
        except NothingToStrike:
            return None  # the flow runs already when its new task has not said so yet

    return wait_until(look, BACK, f"there is a {victim.value} to strike")


def _await_moment(arena: Arena, moment: Moment, generator: Generator) -> None:
    checkpoint = arena.checkpoint()
    assert checkpoint is not None, "the flow runs, so its generation has begun"
    match moment:
        case Moment.COMMITTED:
            last = checkpoint.last_commit()
            _until(lambda: checkpoint.last_commit() != last, "a batch is committed", arena)
        case Moment.IN_FLIGHT:
            _until(
                lambda: checkpoint.offset_batches()[-1:] > checkpoint.commit_batches()[-1:],
                "a batch is in flight",
                arena,
            )
        case Moment.SINK_FIRST:
            version = arena.version()
            _until(lambda: arena.version() > version, "a batch is in the table", arena)
        case Moment.ARRIVED:
            written = generator.written
            _until(lambda: generator.written > written, "a file arrives", arena)


def _restart(arena: Arena, chosen: Round) -> None:
    if chosen.victim in (Victim.SCHEDULER, Victim.SCHEDULER_GROUP, Victim.BOTH):
        arena.service.launch(SCHEDULER)


def _compare(arena: Arena) -> tuple[int, list[str]]:
    """Wait until every file is processed; give the table's rows and how they differ from the oracle's."""
    paths = evidence.present(f"{arena.settings.data}/events")

    def done() -> bool:
        checkpoint = arena.checkpoint()
        return checkpoint is not None and paths <= evidence.committed_files(
            checkpoint, events_evidence.SOURCE
        )

    _until(done, f"all {len(paths)} files are processed", arena)
    found = events_evidence.actual(arena.table)
    return found.total(), evidence.differences(events_evidence.expected(sorted(paths), ()), found, most=2)


def _until(condition: Callable[[], bool], what: str, arena: Arena | None = None) -> None:
    def look() -> bool | None:
        if arena is not None:
            arena.check_free()
        return True if condition() else None

    wait_until(look, BACK, what, POLL)
