"""What one application of changes works under: a step of a generation, and the write lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

WriteLocked = Callable[[], AbstractContextManager[None]]
"""Returns the write lock on a target; it is held while the target is read and written."""


@dataclass(frozen=True)
class Step:
    """One micro-batch of a generation: query id and batch number. Delta detects repeated commits by them."""

    query_id: str
    batch_id: int
