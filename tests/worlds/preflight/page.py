"""The tables of ``docs/reference/changes.md``, made from the catalogue by ``python -m tools.docs``."""

from __future__ import annotations

from itertools import groupby

from tests.worlds.preflight.catalogue import BY_NAME, CATALOGUE, Change
from tools.docs.made import table


def tables() -> str:
    """Return a section for each part that may change."""
    lines = [f"{len(CATALOGUE) + len(BY_NAME)} changes were tried.", ""]
    changes = sorted((*CATALOGUE, *BY_NAME), key=lambda change: _PARTS.index(change.part))
    for part, found in groupby(changes, key=lambda change: change.part):
        rows = table(("change", "verdict", "the driver then"), map(_row, found))
        lines += [f"## {part[0].upper()}{part[1:]}", "", rows]
    return "\n".join(lines)


_PARTS = list(dict.fromkeys(change.part for change in (*CATALOGUE[3:], *BY_NAME)))


def _row(change: Change) -> tuple[str, str, str]:
    same = "and makes the same table" if change.makes_the_same else ""
    then = " ".join(filter(None, (change.but, same)))
    return change.name, str(change.compatibility), ", ".join(filter(None, (change.driver, then)))
