"""Printing one result, for machines or for people, whatever becomes of what is printed: it never ends the
work that it tells of.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey rather than show: escapes, and marks that turn the direction of writing."""
_LEAST = 24
"""Columns that a last cell needs beside the others; with fewer it goes below them."""

_lost: list[OSError] = []


@dataclass(frozen=True)
class Grid:
    """A table of texts: a heading and rows of as many cells."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def ready() -> None:
    """Make the standard streams such that they can be written to: open, and in words of any alphabet.

    What is closed is opened on nothing; else the next file that is opened would take its place, and get what
    is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _nowhere(number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def lost() -> OSError | None:
    """Give why something could not be printed, if so; a reader that went away is no such reason."""
    return _lost[0] if _lost else None


def show(value: Any, as_json: bool, text: str | Grid) -> None:
    """Print ``value`` as JSON, or ``text``, on standard output."""
    if as_json:
        plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        _put(json.dumps(value, indent=1, ensure_ascii=plain, default=str), sys.stdout)
    elif isinstance(text, Grid):
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        put("\n".join(line.rstrip() for line in lines_of(text, width)))
    else:
        put(text)


def put(text: str, stream: TextIO | None = None) -> None:
    """Print text without control characters, on standard output if nothing else is said."""
    _put(_CONTROL.sub("", text), stream or sys.stdout)


def say(text: str) -> None:
    """Print what is no result (progress, warnings) on standard error."""
    put(text, sys.stderr)


def lines_of(grid: Grid, width: int | None) -> Iterator[str]:
    """Give a table's lines.

    :param width: of the terminal. Where the table does not fit, the last column is folded; it goes below the
        others where there is no room beside them. None: each row is one line, however long.
    """
    rows = [grid.heading, *([_CONTROL.sub("", cell) for cell in row] for row in grid.rows)]
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
    """Print, and go on where that cannot be done: a recovery must not end half-way because nobody reads its
    progress.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _lost.append(error)
        _nowhere(stream.fileno())


def _nowhere(number: int) -> None:
    """Let a file descriptor lead to nothing."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
