"""Markdown as the pages have it: blocks of code, links, parts from the code, and the anchors of headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
MADE = re.compile(r"<!-- from the code: [\w -]+ -->\n.*?<!-- end -->\n", re.DOTALL)
"""A part that is made from the code."""
PROOF = "**Proof and reasons:**"
"""First words of a page's last lines, which alone lead to tests and decisions."""


def written(text: str) -> str:
    """Return what a person wrote of a page: without parts from the code, and without its last lines."""
    return MADE.sub("", text).partition(PROOF)[0]


def cells(table: str) -> list[list[str]]:
    """Return the rows of a table below its heading, each as the texts of its cells."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as a forge makes them."""
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
