"""One word for one thing: words that the glossary replaced are in no page, message, form or name."""

from __future__ import annotations

import re
import subprocess

from streamkeeper.settings import PROJECT

REPLACED = {
    r"\bpric(?:e|es|ed|ing)\b|unknown-price": "impact",
    r"\bseal(?:s|ed|ing)?\b": "fence",
    r"writers'? turns?\b": "write lock",
    r"full_refresh_beside|\bbuilt beside\b": "rebuild without downtime",
    r"catching up": "slow",
    r"goes on, and note": "pre-flight",
}
"""What was said before, and the term of the glossary that says it."""


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
