"""Output of a driver."""

from __future__ import annotations


def say(words: str) -> None:
    """Print for the task's log, unbuffered."""
    print(words, flush=True)
