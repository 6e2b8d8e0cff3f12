"""Plans of several flows or tables: made side by side, and refused together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from streamkeeper.errors import CheckpointError, UsageError
from streamkeeper.recover.requests.form import refuse

T = TypeVar("T")
R = TypeVar("R")
_AT_ONCE = 8
"""Flows that are planned side by side: each waits for its store and its sources most of the time."""


def plan_each(things: Mapping[str, T], plan_one: Callable[[T], R], refused: str) -> list[R]:
    """Return what a function plans for each of some flows or tables, by full name, in their order.

    :param refused: what was not done if one cannot be planned, as the start of a sentence.
    :raises RequestError: of several, some cannot be planned; each is named with its reason.
    :raises StreamkeeperError: as the function, for the only one; or its storage failed.
    """

    def answer(thing: T) -> R | UsageError | CheckpointError:
        try:
            return plan_one(thing)
        except (UsageError, CheckpointError) as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # Each in a copy of the context: all share what this plan has read once (storage.one_look).
        waiting = [pool.submit(copy_context().run, answer, thing) for thing in things.values()]
        answers = [one.result() for one in waiting]
    planned, wrong = list[R](), list[str]()
    for name, one in zip(things, answers, strict=True):
        if not isinstance(one, UsageError | CheckpointError):
            planned.append(one)
        elif len(things) == 1:
            raise one
        else:
            wrong.append(f"{name}: {one}")
    refuse(refused, wrong)
    return planned
