"""How many batches of its checkpoint a flow keeps, for how far back it is to be rewound."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from streamkeeper.declare.model import Where
from streamkeeper.errors import DeclarationError

RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""Spark's setting: it keeps so many batches' offsets, commits and versions of state."""
LEAST, MOST = 100, 10_000
"""Spark's own default; and as many batches as a checkpoint's folders are listed with before each start in
good time (two files a batch, and with state a file a batch and partition).
"""

_TRIGGER = re.compile(r"([1-9][0-9]*) (millisecond|second|minute|hour)s?")
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}


def batches_to_retain(window: float, trigger: str) -> int:
    """Give how many batches a flow commits at most in a time: one a trigger. Never fewer than :data:`LEAST`
    nor more than :data:`MOST`.

    :param window: seconds.
    :param trigger: as it is declared, such as ``10 seconds``.
    """
    return min(MOST, max(LEAST, math.ceil(window / _seconds(trigger))))


def reach(conf: Mapping[str, str], trigger: str) -> float:
    """Give how many seconds a flow's checkpoint reaches back at the least, where that was asked for: a batch
    a trigger; else 0.
    """
    kept = conf.get(RETAIN, "")
    return int(kept) * _seconds(trigger) if kept.isdigit() else 0.0


def _seconds(trigger: str) -> float:
    found = _TRIGGER.fullmatch(trigger)
    assert found is not None, f"the trigger {trigger!r} was checked when the flow was declared"
    return int(found[1]) * _SECONDS[found[2]]


def with_window(
    conf: Mapping[str, str], flow: str, window: float | None, trigger: str, *, once: bool, where: Where
) -> dict[str, str]:
    """Give a flow's Spark settings with what its rewind window asks for.

    :param window: seconds, or None where none is declared: Spark's default stays, or what the flow sets
        itself.
    :raises DeclarationError: the flow sets the number itself, too, or runs once.
    """
    if window is None:
        return dict(conf)
    if once:
        raise DeclarationError(
            f"{where}: flow {flow} runs once and has a rewind_window. It is not rewound to a batch: a reset"
            " or a refresh runs it again. Leave rewind_window out."
        )
    if RETAIN in conf:
        raise DeclarationError(
            f"{where}: flow {flow} has a rewind_window and sets {RETAIN} to {conf[RETAIN]!r}, which"
            " rewind_window sets. Leave one of them out."
        )
    return {**conf, RETAIN: str(batches_to_retain(window, trigger))}
