"""Writes Prometheus' rules, and the page that quotes them, from the table of troubles: ``python -m
tests.worlds.metrics.rules``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from streamkeeper.health.troubles import TROUBLES, Trouble, span
from streamkeeper.settings import PROJECT

RULES = PROJECT / "docker" / "prometheus" / "streams.rules.yaml"
HEAD = """# Alerts on streams. A quiet source fires none: no rule looks at the age of a commit alone.
# Made of streamkeeper/health/troubles.py, by `python -m tests.worlds.metrics.rules`.
"""
QUOTE = re.compile(r"(?:^    (?:- alert|  expr|  for): .*\n)+", re.MULTILINE)
"""The rules as a page quotes them."""


def _rule(trouble: Trouble) -> dict[str, Any]:
    return {
        "alert": trouble.rule,
        "expr": trouble.expr,
        **({"for": span(trouble.lasts)} if trouble.lasts else {}),
        "labels": {"severity": trouble.severity},
        "annotations": {"summary": trouble.summary, "description": trouble.advice},
    }


def rules() -> str:
    """Return the file of rules."""
    groups = [{"name": "streams", "rules": [_rule(trouble) for trouble in TROUBLES]}]
    return HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000)


def page() -> Path:
    """Return the one page that quotes the rules."""
    [quoting] = [file for file in (PROJECT / "docs").rglob("*.md") if QUOTE.search(file.read_text())]
    return quoting


def quoted(text: str) -> str:
    """Return a page with its quotation of the rules as they are now."""
    lines = [
        f"    {'- ' if key == 'alert' else '  '}{key}: {value}\n"
        for trouble in TROUBLES
        for key, value in _rule(trouble).items()
        if isinstance(value, str)
    ]
    return QUOTE.sub(lambda _: "".join(lines), text)


if __name__ == "__main__":
    RULES.write_text(rules())
    page().write_text(quoted(page().read_text()))
