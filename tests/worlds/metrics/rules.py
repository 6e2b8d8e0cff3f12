"""Writes Prometheus' rules from the table of troubles: ``python -m tests.worlds.metrics.rules``."""

from __future__ import annotations

from typing import Any

import yaml

from streamkeeper.health.troubles import TROUBLES, Trouble, span
from streamkeeper.settings import PROJECT

RULES = PROJECT / "docker" / "prometheus" / "streams.rules.yaml"
HEAD = """# Alerts on streams. A quiet source fires none: no rule looks at the age of a commit alone.
# Made of streamkeeper/health/troubles.py, by `python -m tests.worlds.metrics.rules`.
"""


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


if __name__ == "__main__":
    RULES.write_text(rules())
