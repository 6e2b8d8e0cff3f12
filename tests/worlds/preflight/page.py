"""Writes ``docs/preflight_changes.md`` from the catalogue: ``python -m tests.worlds.preflight.page``."""

from __future__ import annotations

from itertools import groupby

from streamkeeper.settings import PROJECT
from tests.worlds.preflight.catalogue import BY_NAME, CATALOGUE, Change

PAGE = PROJECT / "docs" / "preflight_changes.md"
BEGIN = """# Changes, their verdicts, and what a driver then does

{count} changes, and what [preflight](preflight.md) says of them. Each was tried: a flow ran, the verdict on
the change was asked for, and then the driver of the changed flow ran (`make test-long`;
`tests/spark/preflight/test_verdicts.py`). This page is made of its cases, by
`python -m tests.worlds.preflight.page`.

Where a table is said to be the same, it was compared, row by row, with that of a flow that did not change.
"""
END = """
## What was not tried

| change | why |
|---|---|
| another version of Spark or Delta | one is installed. Tried was an offset log whose version is too new |
| `readChangeFeed`, a shared driver, session windows | no case yet |
| code outside of the pipelines folder, and files that a pipeline reads | no verdict sees them |
| what is in later data: a value that cannot be cast, a Delta row deleted | a trial reads no row |
"""


def page() -> str:
    """Return the page."""
    lines = [BEGIN.format(count=len(CATALOGUE) + len(BY_NAME))]
    changes = sorted((*CATALOGUE, *BY_NAME), key=lambda change: _PARTS.index(change.part))
    for part, found in groupby(changes, key=lambda change: change.part):
        lines += [
            f"## {part[0].upper()}{part[1:]}",
            "",
            "| change | verdict | the driver then |",
            "|---|---|---|",
        ]
        lines += [*map(_row, found), ""]
    return "\n".join(lines).rstrip() + "\n" + END


_PARTS = list(dict.fromkeys(change.part for change in (*CATALOGUE[3:], *BY_NAME)))


def _row(change: Change) -> str:
    same = "and makes the same table" if change.makes_the_same else ""
    then = " ".join(filter(None, (change.but, same)))
    return f"| {change.name} | {change.compatibility} | {change.driver}{', ' if then else ''}{then} |"


if __name__ == "__main__":
    PAGE.write_text(page())
