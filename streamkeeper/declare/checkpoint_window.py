"""Number of batches that a flow's checkpoint retains, for the time that it may be rewound."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from streamkeeper.declare.model import Location
from streamkeeper.errors import DeclarationError

RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""Spark's setting for the number of batches with retained offsets, commits and versions of state."""
LEAST, MOST = 100, 10_000
"""Spark's default, and a limit: checkpoint folders of that many batches are still listed quickly before each
start (two files a batch, and with state a file a batch and partition).
"""

TRIGGER = re.compile(r"([1-9][0-9]{0,8}) (millisecond|second|minute|hour)s?")
_COUNT = re.compile(r"[0-9]{1,9}")
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}


def batches_to_retain(window: float, trigger: str) -> int:
    """Return the most batches that a flow can commit in a time, one a trigger, from :data:`LEAST` to
    :data:`MOST`.

    :param window: seconds.
    :param trigger: as declared, such as ``10 seconds``.
    """
    return min(MOST, max(LEAST, math.ceil(window / trigger_seconds(trigger))))


def reach(conf: Mapping[str, str], trigger: str) -> float:
    """Return the seconds that a checkpoint reaches back at least, at one batch a trigger; 0 if not set."""
    retained = conf.get(RETAIN, "")
    return int(retained) * trigger_seconds(trigger) if _COUNT.fullmatch(retained) else 0.0


def trigger_seconds(trigger: str) -> float:
    """Return the seconds of a declared trigger, such as ``10 seconds``."""
    match = TRIGGER.fullmatch(trigger)
    assert match is not None, f"the trigger {trigger!r} was checked when the flow was declared"
    return int(match[1]) * _SECONDS[match[2]]


def with_window(
    conf: Mapping[str, str], flow: str, window: float | None, trigger: str, *, once: bool, location: Location
) -> dict[str, str]:
    """Return a flow's Spark settings, with the one that its rewind window needs.

    :param window: seconds. With None, the default or the flow's own setting stays.
    :raises DeclarationError: the flow sets the number of batches itself, too, or runs once.
    """
    if window is None:
        return dict(conf)
    if once:
        raise DeclarationError(
            f"{location}: flow {flow} runs once and has a rewind_window. It is not rewound to a batch: a"
            " reset or a refresh runs it again. Leave rewind_window out."
        )
    if RETAIN in conf:
        raise DeclarationError(
            f"{location}: flow {flow} has a rewind_window and sets {RETAIN} to {conf[RETAIN]!r}, which"
            " rewind_window sets. Leave one of them out."
        )
    return {**conf, RETAIN: str(batches_to_retain(window, trigger))}
