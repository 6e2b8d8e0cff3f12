"""Parts of pages that are made from the code.

A page marks where such a part stands, and the part is checked in with it::

    <!-- from the code: metrics -->
    …
    <!-- end -->

A second word is handed to the function that makes the part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from streamkeeper.settings import PROJECT

DOCS = PROJECT / "docs"
_PART = re.compile(r"(<!-- from the code: ([\w-]+)(?: ([\w-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS = {
    "api": "tools.docs.api:functions",
    "commands": "tools.docs.commands:commands",
    "recoveries": "tools.docs.recoveries:kinds",
    "steps": "tools.docs.recoveries:steps",
    "trade-offs": "tools.docs.recoveries:trade_offs",
    "session": "tests.worlds.recover.sessions:printed",
    "errors": "tools.docs.errors:errors",
    "settings": "tools.docs.lists:settings",
    "metrics": "tools.docs.lists:metrics",
    "alerts": "tools.docs.lists:alerts",
    "events": "tools.docs.lists:events",
    "alert-rules": "tools.docs.lists:alert_rules",
    "versions": "tools.docs.lists:versions",
    "supported": "tests.worlds.support.page:tables",
    "not-offered": "tests.worlds.support.page:not_offered",
    "changes": "tests.worlds.preflight.page:tables",
}
"""Function that returns each part, by the part's name in a page."""


def pages() -> list[Path]:
    """Return all pages, in the order of their paths."""
    return sorted(DOCS.rglob("*.md"))


def stale() -> dict[Path, str]:
    """Return the pages whose parts are not what the code says, with the text that they must have."""
    texts = {page: page.read_text("utf-8") for page in pages()}
    made = {page: _PART.sub(_again, text) for page, text in texts.items()}
    return {page: text for page, text in made.items() if text != texts[page]}


def _again(match: re.Match[str]) -> str:
    module, _, function = PARTS[match[2]].partition(":")
    make: Callable[..., str] = getattr(import_module(module), function)
    return f"{match[1]}\n{make(*([match[3]] if match[3] else [])).strip()}\n\n{match[4]}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown. A bar in a cell is escaped; line breaks become spaces."""
    lines = [_row(head), f"|{'---|' * len(head)}", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def from_docstring(text: str) -> str:
    """Return reStructuredText of a docstring as Markdown: double backticks, and roles as code."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda role: f"`{role[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")
