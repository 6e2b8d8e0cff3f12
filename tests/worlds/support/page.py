"""Writes ``docs/support.md`` from the cells: ``python -m tests.worlds.support.page``."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.declare.not_there import NAMES
from streamkeeper.settings import PROJECT
from tests.worlds.support.cells import FORMATS, RECOVERIES, STATES, STORES, TARGETS, Cell, Part

PAGE = PROJECT / "docs" / "support.md"
BEGIN = """# What there is

Sources, targets, kinds of state and stores, and what each of them can do. *Italics* are a weaker promise than
others of the column or the row make. **No** is refused, by `streamkeeper check` or by the plan, in these
words. Each cell leads to the test that proves it. The page is made of the cells, by
`python -m tests.worlds.support.page`.
"""
OF_TARGETS = Part(
    "Targets, and the recoveries of their flows",
    "recovery",
    TARGETS,
    {recovery: tuple(of[target] for target in TARGETS) for recovery, of in RECOVERIES.items()},
)
PARTS = (FORMATS, OF_TARGETS, STATES, STORES)
NOT_THERE = """## Not there

Words of Lakeflow and Spark that a pipeline file may try, and what `streamkeeper check` says of them.

| `dp.…` | instead |
|---|---|
"""


def every_cell() -> Iterator[Cell]:
    """Yield all cells of the page."""
    for part in PARTS:
        for cells in part.rows.values():
            yield from cells


def page() -> str:
    """Return the page."""
    names = "".join(f"| `{name}` | {said} |\n" for name, said in NAMES.items())
    return "\n".join((BEGIN, *map(_table, PARTS), NOT_THERE + names))


def _table(part: Part) -> str:
    for row, cells in part.rows.items():
        assert len(cells) == len(part.columns), f"{part.title}, {row}: {len(cells)} cells"
    lines = [
        f"## {part.title}",
        "",
        *([part.said, ""] if part.said else []),
        f"| {' | '.join((part.of, *part.columns))} |",
        f"|{'---|' * (len(part.columns) + 1)}",
        *(f"| {' | '.join((row, *map(_link, cells)))} |" for row, cells in part.rows.items()),
    ]
    return "\n".join(lines) + "\n"


def _link(cell: Cell) -> str:
    said = f"*{cell.said}*" if cell.short else cell.said
    if cell.refused:
        said = f"**no**{said.removeprefix('no')}"
    file, _, _ = cell.proof.partition("::")
    return f"[{said}](../{file})"


if __name__ == "__main__":
    PAGE.write_text(page())
