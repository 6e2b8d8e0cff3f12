"""One round: produce, await the moment, strike, await that the flow is back, let it catch up, and hold the
table against the oracle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from demo import evidence
from demo.data.generator import Feed
from tests.chaos.arena import Arena, Parked, Watched
from tests.chaos.choosing import DISTURBING, Blow, Moment, Round, Victim
from tests.chaos.striking import DRIVERS, NothingToStrike, Target, strike, targets
from tools.waiting import NotYet, wait_until

POLL = 0.02
UNNOTICED = (
    Victim.TASK, Victim.WORKER, Victim.SCHEDULER, Victim.SCHEDULER_GROUP, Victim.CELERY, Victim.API,
    Victim.PROCESSOR, Victim.TRIGGERER, Victim.DATABASE, Victim.REDIS, Victim.FILE,
)  # fmt: skip
"""Victims whose end the driver should not notice."""
BEATS = 3
"""Beats after a blow that show that a task goes on watching: of 20 s each by default, so longer than Airflow
takes for a task to be lost. SIGTERM asks, and Airflow's worker and the task may both stay (seen).
"""


@dataclass(frozen=True)
class Result:
    """What a round showed. Seconds count from the blow: to the next commit of every flow after it, and to a
    task that watches each: another try, or the same one where it may stay.

    ``drivers`` counts those that took a lease since; ``rows`` are those of all tables.
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
        return self.round.victim in UNNOTICED and self.drivers > 0

    @property
    def verdict(self) -> str:
        """``exact``, or what is wrong."""
        return "; ".join(self.wrong) or ("exact, but the driver was ended too" if self.replaced else "exact")


def play(arena: Arena, chosen: Round) -> Result:
    """Play a round, and give what it showed; what did not come true in time is part of that."""
    already = {(flow.dag, one.kind) for flow in arena.flows for one in flow.auditor.violations()}
    drivers, wrong = _drivers(arena), list[str]()
    to_commit = to_watch = None
    rows = 0
    try:
        _until(arena, lambda: all(flow.works() for flow in arena.flows), "the flows run")
        drivers = _drivers(arena)
        with ExitStack() as stack:
            feeds = [stack.enter_context(flow.feed()) for flow in arena.flows]
            watchers = [flow.watched_by() for flow in arena.flows]
            struck, before = _strike(arena, chosen, feeds[chosen.flow])
            beats = [flow.beats() for flow in arena.flows]
            for flow, version in zip(arena.flows, before, strict=True):
                _await_commit(arena, flow, version)
            to_commit = time.monotonic() - struck
            if chosen.victim not in DRIVERS:
                for number, flow in enumerate(arena.flows):
                    ended = (
                        number == chosen.flow
                        and chosen.blow is Blow.KILL
                        and chosen.victim in arena.ended_with
                    )
                    _await_watched(arena, flow, watchers[number], None if ended else beats[number])
                to_watch = time.monotonic() - struck
            _until(arena, lambda: all(flow.works() for flow in arena.flows), "the flows run again")
        for flow in arena.flows:
            found, differing = _compare(arena, flow)
            rows += found
            wrong += differing
    except (TimeoutError, Parked, NothingToStrike) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    wrong += [
        one.words
        for flow in arena.flows
        for one in flow.auditor.violations()
        if (flow.dag, one.kind) not in already
    ]
    return Result(chosen, to_commit, to_watch, _drivers(arena) - drivers, rows, tuple(wrong))


def _drivers(arena: Arena) -> int:
    return sum(flow.auditor.drivers() for flow in arena.flows)


def _strike(arena: Arena, chosen: Round, feed: Feed) -> tuple[float, list[int]]:
    """Strike at the moment; give when that was, and the tables' versions right after."""
    found = _find(arena, chosen)
    _await_moment(arena, chosen, feed)
    time.sleep(chosen.jitter)  # no condition to await: it is what makes the moment a random one
    struck = strike(arena, chosen, found)
    return struck, [flow.version() for flow in arena.flows]


def _find(arena: Arena, chosen: Round) -> tuple[Target, ...]:
    if chosen.blow in DISTURBING:
        return ()

    def look() -> tuple[Target, ...] | None:
        try:
            return targets(arena, chosen.victim, chosen.flow)
        except NothingToStrike:
            return None  # the flow runs already when its new task has not said so yet

    return wait_until(look, arena.patience, f"there is a {chosen.victim.value} to strike")


def _await_moment(arena: Arena, chosen: Round, feed: Feed) -> None:
    flow = arena.flows[chosen.flow]
    checkpoint = flow.checkpoint()
    assert checkpoint is not None, "the flow runs, so its generation has begun"
    match chosen.moment:
        case Moment.COMMITTED:
            last = checkpoint.last_commit()
            _until(arena, lambda: checkpoint.last_commit() != last, "a batch is committed", POLL)
        case Moment.IN_FLIGHT:
            _until(
                arena,
                lambda: checkpoint.offset_batches()[-1:] > checkpoint.commit_batches()[-1:],
                "a batch is in flight",
                POLL,
            )
        case Moment.SINK_FIRST:
            version = flow.version()
            _until(arena, lambda: flow.version() > version, "a batch is in the table", POLL)
        case Moment.ARRIVED:
            written = feed.written
            _until(arena, lambda: feed.written > written, "input arrives", POLL)


def _await_commit(arena: Arena, flow: Watched, before: int) -> None:
    _until(arena, lambda: flow.version() > before, f"{flow.dag} commits a new batch")


def _await_watched(arena: Arena, flow: Watched, watcher: str, beats: int | None) -> None:
    """Await that a task watches a flow's driver.

    :param beats: of the watching task when it was struck; None if it was ended, and only another one counts.
    """

    def watches() -> bool:
        stays = beats is not None and flow.beats() >= beats + BEATS
        return stays or flow.watched_by() not in ("", watcher)

    _until(arena, watches, f"a task watches the driver of {flow.dag}")


def _compare(arena: Arena, flow: Watched) -> tuple[int, list[str]]:
    """Wait until all input is processed; give the table's rows and how they differ from the oracle's."""

    def done() -> bool:
        checkpoint = flow.checkpoint()
        if checkpoint is None or (behind := flow.behind(checkpoint)):
            raise NotYet(behind if checkpoint else "its generation has not begun")
        return True

    _until(arena, done, f"all input of {flow.dag} is processed")
    expected, found = flow.compare()
    return found.total(), evidence.differences(expected, found, most=2)


def _until(arena: Arena, condition: Callable[[], bool], what: str, interval: float = 0.2) -> None:
    def look() -> bool | None:
        arena.tend()
        return True if condition() else None

    wait_until(look, arena.patience, what, interval)
