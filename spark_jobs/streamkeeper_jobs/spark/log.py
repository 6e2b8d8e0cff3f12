"""What a driver says."""

from __future__ import annotations


def say(words: str) -> None:
    """Print for the task's log, at once."""
    print(words, flush=True)
