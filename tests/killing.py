"""Killing a process after a change that it made to the storage: an exception that nothing catches, and
nothing is changed afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from streamkeeper.storage import LocalStorage

HEEDING_CTRL_C = (
    sys.executable,
    "-c",
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " runpy.run_module('streamkeeper', run_name='__main__', alter_sys=True)",
)
"""Command of the command line that heeds Ctrl-C also below a background job of a shell, which does not."""

_CHANGING = ("create", "overwrite", "bring", "remove")


class Killed(BaseException):
    """Ends a process: no ``except Exception`` sees it."""


def dying(
    target: Any,
    name: str,
    at: int,
    patch: pytest.MonkeyPatch,
    *,
    after: bool,
    end: Callable[[], BaseException] = Killed,
) -> None:
    """Let the n-th call of a function be the last thing that happens: it raises ``end``."""
    original: Callable[..., Any] = getattr(target, name)
    count = iter(range(1, 1_000))

    def call(*arguments: Any, **named: Any) -> Any:
        last = next(count) == at
        if last and not after:
            raise end()
        result = original(*arguments, **named)
        if last:
            raise end()
        return result

    patch.setattr(target, name, call)


def watch_storage(
    patch: pytest.MonkeyPatch, before: Callable[[], None], after: Callable[[str, str], None]
) -> None:
    """Let ``before()`` be called before each change, and ``after(method, path)`` when it is made; either may
    raise.

    A file that is copied by two methods is told twice.
    """
    for name in _CHANGING:
        patch.setattr(LocalStorage, name, _watched(name, getattr(LocalStorage, name), before, after))


@dataclass
class Mortal:
    """A process that dies right after its n-th change: what it tries to change from then on, such as giving a
    lock back on its way out, is not done. A kill right before a change leaves the same behind as one right
    after the change before it.

    What is changed while it is ``idle`` is others' doing.
    """

    dies_after: int
    changes: int = 0
    idle: bool = False

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Count the changes from now on."""
        watch_storage(patch, self._live, self._count)

    def _live(self) -> None:
        if self.changes >= self.dies_after and not self.idle:
            raise Killed

    def _count(self, *_: str) -> None:
        self.changes += not self.idle
        self._live()


def _watched(
    method: str, original: Callable[..., Any], before: Callable[[], None], after: Callable[[str, str], None]
) -> Any:
    def change(storage: LocalStorage, *arguments: Any) -> Any:
        before()
        result = original(storage, *arguments)
        after(method, storage.path(str(arguments[-1] if method in ("bring", "copy") else arguments[0])))
        return result

    return change
