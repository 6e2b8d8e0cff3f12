"""Decision records: numbers without gaps, one layout, an index of all, no reference that leads nowhere."""

from __future__ import annotations

import re

from streamkeeper.settings import PROJECT
from tools.docs.markdown import FENCE, LINK, anchors

FOLDER = PROJECT / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
LAYOUT = re.compile(
    r"# (\d{4}) [^\n]+\n\n"
    r"\*\*Status:\*\* accepted[^\n]* · \*\*Date:\*\* \d{4}-\d\d-\d\d[^\n]*\n\n"
    r"## Context\n"
)
ROOMS = ("streamkeeper", "spark_jobs", "plugins", "dags", "jvm", "tools", "tests", "docs")


def test_numbers_have_no_gaps_and_each_record_has_the_layout() -> None:
    assert [record.name[:4] for record in RECORDS] == [f"{n:04}" for n in range(1, len(RECORDS) + 1)]
    for record in RECORDS:
        text = record.read_text()
        layout = LAYOUT.match(text)
        assert layout and layout[1] == record.name[:4], record.name
        assert text.count("\n## Decision\n") == text.count("\n## A change violates this when\n") == 1, (
            record.name
        )


def test_lines_are_no_longer_than_the_codes() -> None:
    for record in RECORDS:
        lines = FENCE.sub("", record.read_text()).splitlines()
        assert [line for line in lines if len(line) > 110 and not line.startswith("|")] == [], record.name


def test_the_index_has_each_record_once_under_its_title() -> None:
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    titles = [
        (r.name[:4], r.name, r.read_text().split("\n", 1)[0].removeprefix(f"# {r.name[:4]} "))
        for r in RECORDS
    ]
    assert sorted(rows) == titles


def test_each_reference_to_a_record_leads_to_one() -> None:
    records = {record.stem for record in RECORDS}
    numbers = {stem[:4] for stem in records}
    dead = []
    for room in ROOMS:
        for file in (PROJECT / room).rglob("*"):
            if file.suffix not in (".py", ".java", ".md", ".js"):
                continue
            text = file.read_text()
            stems = re.findall(r"decisions/(\d{4}-[\w-]+)\.md", text)
            bare = re.findall(r"(?:decisions/|\bdecision )(\d{4})\b(?!-)", text)
            dead += [(file.name, stem) for stem in stems if stem not in records]
            dead += [(file.name, number) for number in bare if number not in numbers]
    assert dead == []


def test_links_between_records_lead_to_a_file_and_a_heading() -> None:
    numbers = {record.name[:4] for record in RECORDS}
    for page in FOLDER.glob("*.md"):
        text = FENCE.sub("", page.read_text())
        for link in LINK.findall(text):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page.name, link)
            assert not anchor or anchor in set(anchors(target)), (page.name, link)
        for label, number in re.findall(r"\[(\d{4})\]\((\d{4})-", text):
            assert label == number, (page.name, label)
        assert {*re.findall(r"\((\d{4})\)", text)} <= numbers, page.name
