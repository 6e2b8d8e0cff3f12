"""Pages by task: each begins with something to copy, a recovery has its sections, each name is known."""

from __future__ import annotations

import re

import pytest

from streamkeeper.settings import PROJECT
from streamkeeper.watch.alerts import AlertKind
from tools.docs.markdown import written

DOCS = PROJECT / "docs"
FIRST_SCREEN = 12
"""Lines."""
TASKS = [
    page
    for folder in ("get-started", "how-to", "operations")
    for page in sorted((DOCS / folder).rglob("*.md"))
]
RECOVERIES = (
    "adopt",
    "backfill",
    "backup-restore",
    "full-refresh",
    "rebuild-without-downtime",
    "reset",
    "rewind",
)
SECTIONS = ["When", "Impact", "The plan", "Check afterwards", "Undo"]
OTHERS = {
    "STREAMKEEPER_IVY_SETTINGS",  # of the images' build
    *("--supervise", "--volumes", "--field-selector"),  # Spark's, Docker's, kubectl's
    *("--resolve", "--beside-spark", "--root"),  # of streamkeeper.jars
}
"""Names in the pages of tasks that are not in the reference."""
GOOD_NEWS = {"recovered", "recovery-finished", "expectation-met", "relieved"}
"""Alerts that somebody only reads."""


def test_each_page_of_a_task_begins_with_something_to_copy() -> None:
    pages = [*TASKS, DOCS / "index.md", DOCS / "reference/compatibility.md"]
    late = [
        str(page.relative_to(DOCS))
        for page in pages
        if not any(line.startswith("```") for line in page.read_text().splitlines()[:FIRST_SCREEN])
    ]
    assert len(pages) > 50 and late == []


@pytest.mark.parametrize("name", RECOVERIES)
def test_the_page_of_a_recovery_has_its_sections_in_order(name: str) -> None:
    text = (DOCS / "how-to/recover" / f"{name}.md").read_text()
    sections = [title for title in re.findall(r"^## (.+)$", text, re.MULTILINE) if title in SECTIONS]
    assert sections == SECTIONS
    plan = text.partition("\n## The plan\n")[2].partition("\n## ")[0]
    assert "<!-- from the code: session " in plan, "the plan is shown as it is printed"


def test_the_runbook_has_each_alert_that_asks_for_something() -> None:
    section = (DOCS / "operations/runbook.md").read_text().partition("\n## Alerts\n")[2]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    listed = [kind for row in rows for kind in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(listed) == sorted({kind.value for kind in AlertKind} - GOOD_NEWS)


def test_the_glossary_has_each_term_once_in_two_lines() -> None:
    text = (DOCS / "concepts/glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    terms = [term for term, _ in rows if term != "term"]
    assert len(terms) >= 25 and terms == sorted({*terms})
    assert [term for term, meaning in rows if len(meaning) > 200] == []


def test_each_setting_option_and_function_that_a_page_names_is_in_the_reference() -> None:
    reference = {page.stem: page.read_text() for page in (DOCS / "reference").glob("*.md")}
    fields = re.findall(r"^\| `([a-z_]+)` \|", reference["recoveries"], re.MULTILINE)
    known = {
        *OTHERS,
        *re.findall(r"STREAMKEEPER_[A-Z_]+[A-Z]", reference["settings"]),
        *re.findall(r"--[a-z][a-z-]+", reference["cli"]),
        *re.findall(r"^## (dp\.\w+)$", reference["pipeline-api"], re.MULTILINE),
        *(f"--{field.replace('_', '-')}" for field in fields),
    }
    named = re.compile(r"\bSTREAMKEEPER_[A-Z_]+[A-Z]|(?<![\w-])--[a-z][a-z-]+|\bdp\.\w+")
    strange = {
        str(page.relative_to(PROJECT)): unknown
        for page in [PROJECT / "README.md", *(DOCS / "concepts").glob("*.md"), *TASKS]
        if (unknown := {*named.findall(written(page.read_text()))} - known)
    }
    assert strange == {}
