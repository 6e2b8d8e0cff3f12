"""One word for one thing: words that the glossary replaced are in no page, message, form or name."""

from __future__ import annotations

import re
import subprocess

from streamkeeper.settings import PROJECT
from tools.docs.markdown import FENCE, written

REPLACED = {
    r"\bpric(?:e|es|ed|ing)\b|unknown-price": "impact",
    r"\bseal(?:s|ed|ing)?\b": "fence",
    r"writers'? turns?\b": "write lock",
    r"full_refresh_beside|\bbuilt beside\b": "rebuild without downtime",
    r"catching up": "slow",
    r"goes on, and note": "pre-flight",
}
"""What was said before, and the term of the glossary that says it."""
UNCLEAR = {
    r"\bbeside\b": "next to, compared with, besides",
    r"\banew\b": "again",
    r"\btold\b": "reported, specified, notified",
    r"\bgo(?:es)? on\b": "continue",
    r"\bcomes? twice\b": "is duplicated",
    r"\bheeds?\b": "respect",
}
"""Words that a reader of the users' pages must guess at, and what to write."""
FOLDERS = ("get-started", "concepts", "how-to", "operations", "reference")


def test_the_words_that_the_glossary_replaced_are_gone() -> None:
    rooms = ("streamkeeper", "spark_jobs", "plugins", "dags", "demo", "docs", "*.md")
    files = subprocess.check_output(["git", "ls-files", *rooms], cwd=PROJECT, text=True).split()
    texts = {name: (PROJECT / name).read_text() for name in files if name.endswith((".py", ".md", ".js"))}
    assert len(texts) > 400, "the product and its pages are there"
    old = re.compile("|".join(REPLACED), re.IGNORECASE)
    places = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if old.search(line)
    ]
    assert places == [], "\n".join(places)


def test_each_word_that_took_their_place_is_in_the_glossary() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", (PROJECT / "docs/concepts/glossary.md").read_text(), re.MULTILINE)
    assert set(REPLACED.values()) <= set(terms)


def test_the_pages_of_users_have_none_of_the_words_that_a_reader_must_guess_at() -> None:
    docs = PROJECT / "docs"
    pages = [PROJECT / "README.md", *(page for name in FOLDERS for page in (docs / name).rglob("*.md"))]
    unclear = re.compile("|".join(UNCLEAR), re.IGNORECASE)
    places = [
        f"{page.name}: {line}"
        for page in pages
        for line in re.sub(r"`[^`\n]+`", "", FENCE.sub("", written(page.read_text()))).splitlines()
        if unclear.search(line)
    ]
    assert len(pages) > 50 and places == [], "\n".join(places)
