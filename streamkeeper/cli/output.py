"""Prints results for machines or for people; a failure to print never ends the work being reported."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from streamkeeper.redaction import visible, visible_json
from streamkeeper.settings import Settings

_LEAST = 24
"""Least width of a last cell beside the others; with less room it is placed below them."""

_announced: set[str] = set()
_lost: list[OSError] = []
_closed: list[BrokenPipeError] = []


@dataclass(frozen=True)
class Grid:
    """A table of texts: a heading, and rows of as many cells."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def ready() -> None:
    """Make the standard streams writable: open, and able to encode any text.

    A closed stream is opened on the null device; else the next file to be opened would take its place, and
    receive the output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _nowhere(number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def lost() -> OSError | None:
    """Return why something could not be printed.

    None if all was, or if only the reader has closed the pipe.
    """
    return _lost[0] if _lost else None


def is_closed() -> bool:
    """Return whether the reader of an output has closed the pipe."""
    return bool(_closed)


def terminal_width() -> int | None:
    """Return the width of the terminal that is written to; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def settings_in_use() -> Settings:
    """Return the settings, and tell a person at a terminal, on standard error, which state folder they name:
    another one is another world. Nothing is told beside JSON.

    :raises SettingsError: they are missing or wrong.
    """
    settings = Settings.from_environment()
    if sys.stderr.isatty() and "--json" not in sys.argv and settings.state not in _announced:
        _announced.add(settings.state)
        say(f"state folder: {settings.state}")
    return settings


def show(value: Any, as_json: bool, text: str | Grid) -> None:
    """Print ``value`` as JSON, or ``text``, on standard output."""
    if as_json:
        plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        _put(visible_json(json.dumps(value, indent=1, ensure_ascii=plain, default=str)), sys.stdout)
    elif isinstance(text, Grid):
        put("\n".join(line.rstrip() for line in lines_of(text, terminal_width())))
    else:
        put(text)


def put(text: str, stream: TextIO | None = None) -> None:
    """Print text without control characters, by default on standard output."""
    _put(visible(text), stream or sys.stdout)


def say(text: str) -> None:
    """Print progress and warnings on standard error."""
    put(text, sys.stderr)


def lines_of(grid: Grid, width: int | None) -> Iterator[str]:
    """Yield a table's lines.

    :param width: of the terminal. If the table does not fit, the last column is wrapped, or placed below the
        others if there is no room beside them. None: each row is one line, however long.
    """
    rows = [grid.heading, *([visible(cell) for cell in row] for row in grid.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.heading))]
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    for row in rows:
        head = "  ".join(cell.ljust(size) for cell, size in zip(row[:-1], widths[:-1], strict=True))
        if width is None or before + widths[-1] <= width:
            yield f"{head}  {row[-1]}"
        elif width - before >= _LEAST:
            first, *more = textwrap.wrap(row[-1], width - before) or [""]
            yield f"{head}  {first}"
            yield from (" " * before + line for line in more)
        else:
            yield from (
                textwrap.wrap(head, width, drop_whitespace=False) if before > width + 2 else [head.rstrip()]
            )
            yield from textwrap.wrap(row[-1], width, initial_indent="    ", subsequent_indent="    ")


def _put(text: str, stream: TextIO) -> None:
    """Print, and continue if that fails: a recovery must not end because nobody reads its progress."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _closed.append(error)
        else:
            _lost.append(error)
        _nowhere(stream.fileno())


def _nowhere(number: int) -> None:
    """Redirect a file descriptor to the null device."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
