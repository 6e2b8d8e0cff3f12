"""One way to wait for what others do: look until it is there, or until a deadline.

Whoever is asked may be slow, busy, or not there yet. None of that ends a wait before its deadline.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
TELL_SECONDS = 30.0
"""Seconds between two lines about a wait that goes on."""


class NotYet(Exception):
    """A look found nothing, or had no answer; the message says what it saw instead."""


class NeverCame(TimeoutError):
    """The deadline passed; the message says what was waited for, and what was seen last."""


def wait_until(
    look: Callable[[], Answer | None],
    timeout: float,
    condition: str,
    interval: float = 0.5,
    tell: Callable[[str], None] | None = None,
) -> Answer:
    """Look until something is found, and return it.

    A look that gives None, raises :class:`NotYet`, waits in vain for an answer or is refused a connection
    found nothing yet.

    :param timeout: seconds; a look that is under way then is not cut off.
    :param condition: completes "Waited … s until".
    :param tell: is told every :data:`TELL_SECONDS` what is waited for.
    :raises NeverCame: nothing was found in time.
    """
    began = last_told = time.monotonic()
    while True:
        observation = ""
        try:
            answer = look()
        except (NotYet, TimeoutError, ConnectionError) as error:
            answer, observation = None, f" Seen instead: {str(error) or type(error).__name__}"
        if answer is not None:
            return answer
        now = time.monotonic()
        if now - began >= timeout:
            raise NeverCame(f"Waited {timeout:g} s until {condition}; it did not come.{observation}")
        if tell is not None and now - last_told >= TELL_SECONDS:
            last_told = now
            tell(f"Waiting until {condition}, for {now - began:.0f} of at most {timeout:g} s.{observation}")
        time.sleep(interval)


def told_to_stop() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set from now on; only the main thread may ask for it."""
    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopped.set())
    return stopped
