"""Printing one result, for machines or for people. rich is imported only for a table on a terminal: it takes
a tenth of a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """A table of texts: a heading and rows of as many cells."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def show(value: Any, as_json: bool, text: str | Grid) -> None:
    """Print ``value`` as JSON, or ``text`` as it stands, on standard output."""
    if as_json:
        print(json.dumps(value, indent=1, ensure_ascii=False, default=str))
    elif isinstance(text, Grid):
        _print_grid(text)
    else:
        print(text)


def say(text: str) -> None:
    """Print what is no result (progress, warnings) on standard error."""
    print(text, file=sys.stderr, flush=True)


def _print_grid(grid: Grid) -> None:
    """Fold a table into a terminal's width; write it whole, in columns, into a file or a pipe."""
    if not sys.stdout.isatty():
        lines = [grid.heading, *grid.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(grid.heading))]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*grid.heading, box=None)
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
