"""Calls of local storages by a process, counted: each adds a byte to a file, which outlives the process.

As a program it runs another one of Python's, which counts: ``counted_calls.py FILE PROGRAM ARGUMENT …``.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from streamkeeper.storage import LocalStorage

PROGRAM = Path(__file__)


def count(file: str) -> None:
    """Count this process's calls from now on."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for name, method in list(vars(LocalStorage).items()):
        if not name.startswith("_") and name != "path":
            setattr(LocalStorage, name, _counted(method, number))


def _counted(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        os.write(number, b".")
        return method(*arguments, **named)

    return call


if __name__ == "__main__":
    count(sys.argv.pop(1))
    sys.argv.pop(0)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
