"""Reads that may hang, such as those of a store that does not answer: each waiter waits a bounded time.

A thread that hangs cannot be ended. So at most one is under way for each question, whoever asks it, and a
bounded number for all of them; the API server's own threads are never among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any, TypeVar

from streamkeeper.errors import StreamkeeperError

T = TypeVar("T")


class NoAnswer(StreamkeeperError):
    """A read has not ended in time; it goes on."""


@dataclass(frozen=True)
class _UnderWay:
    begun: float
    outcome: Future[Any]


class Patience:
    """Runs reads in threads of their own.

    :param seconds: how long after its beginning a read is waited for.
    :param most: reads that may be under way at once.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most, self._lock = seconds, most, threading.Lock()
        self._under_way: dict[Hashable, _UnderWay] = {}

    def ask(self, question: Hashable, read: Callable[[], T]) -> T:
        """Return what a read returns; if the same question is under way already, what that one does.

        :raises NoAnswer: it takes longer than it is waited for, or too many others do.
        """
        with self._lock:
            running = self._under_way.get(question)
            if running is None:
                if len(self._under_way) >= self._most:
                    longest = time.monotonic() - min(one.begun for one in self._under_way.values())
                    raise NoAnswer(
                        _silence(longest, f"; {self._most} reads are under way, and no more are begun")
                    )
                running = self._under_way[question] = _UnderWay(time.monotonic(), Future())
                threading.Thread(
                    target=self._run, args=(question, read, running.outcome), daemon=True
                ).start()
        remaining = running.begun + self._seconds - time.monotonic()
        try:
            answer: T = running.outcome.result(max(0.0, remaining))
        except NotYet:
            if running.outcome.done():  # what was read raised a TimeoutError of its own
                raise
            raise NoAnswer(_silence(time.monotonic() - running.begun)) from None
        return answer

    def _run(self, question: Hashable, read: Callable[[], Any], outcome: Future[Any]) -> None:
        try:
            answer = read()
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
            self._end(question)
            outcome.set_exception(error)
        else:
            self._end(question)
            outcome.set_result(answer)

    def _end(self, question: Hashable) -> None:
        with self._lock:
            del self._under_way[question]


def _silence(seconds: float, more: str = "") -> str:
    return (
        f"The state folder has not answered for {seconds:.0f} s{more}. Look at the store that"
        " STREAMKEEPER_STATE names; flows and recoveries wait for it, too."
    )
