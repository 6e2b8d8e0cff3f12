"""The tables of ``docs/reference/supported.md``, made from the cells by ``python -m tools.docs``."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.declare.not_there import NAMES
from tests.worlds.support.cells import CATALOGS, FORMATS, RECOVERIES, STATES, STORES, TARGETS, Cell, Part
from tools.docs.made import table

OF_TARGETS = Part(
    "Targets, and the recoveries of their flows",
    "recovery",
    TARGETS,
    {recovery: tuple(of[target] for target in TARGETS) for recovery, of in RECOVERIES.items()},
)
PARTS = (FORMATS, OF_TARGETS, STATES, STORES, CATALOGS)


def every_cell() -> Iterator[Cell]:
    """Yield all cells of the page."""
    for part in PARTS:
        for cells in part.rows.values():
            yield from cells


def tables() -> str:
    """Return a section for each part."""
    return "\n".join(map(_table, PARTS))


def not_offered() -> str:
    """Return a table of what a pipeline file may try and does not find."""
    return table(("`dp.…`", "instead"), [(f"`{name}`", text) for name, text in NAMES.items()])


def _table(part: Part) -> str:
    for row, cells in part.rows.items():
        assert len(cells) == len(part.columns), f"{part.title}, {row}: {len(cells)} cells"
    rows = table((part.of, *part.columns), [(row, *map(_link, cells)) for row, cells in part.rows.items()])
    return "\n".join([f"## {part.title}", "", *([part.said, ""] if part.said else []), rows])


def _link(cell: Cell) -> str:
    said = f"*{cell.said}*" if cell.short else cell.said
    if cell.refused:
        said = f"**no**{said.removeprefix('no')}"
    file, _, _ = cell.proof.partition("::")
    return f"[{said}](../../{file})"
