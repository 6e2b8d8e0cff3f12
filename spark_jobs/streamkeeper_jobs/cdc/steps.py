"""What one application of changes works under: a step of a generation, and the writers' turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

Turn = Callable[[], AbstractContextManager[None]]
"""Returns the writers' turn on a target; it is held while the target is read and written."""


@dataclass(frozen=True)
class Step:
    """One micro-batch of a generation: query id and batch number. Delta detects repeated commits by them."""

    query_id: str
    batch_id: int
