"""Pages say what is so: commands parse, links lead somewhere, code that names its file is that file's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException

from streamkeeper.cli.commands import app
from streamkeeper.exit_codes import OUT_OF_MEMORY, Outcome
from streamkeeper.settings import PROJECT
from tests import cdc_oracle
from tests.cdc_oracle import DELETE, UPSERT, Change
from tests.worlds.pipelines import TAIL, load

PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
_ELIDED = re.compile(r"[…\[|{<>]")


def _name(page: Path) -> str:
    return page.name


def commands(page: Path) -> Iterator[str]:
    """Yield the whole commands of a page: lines of code blocks and spans that begin with ``streamkeeper``."""
    text = page.read_text()
    code = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    code += [line[4:] for line in text.splitlines() if line.startswith("    ")]
    prose = FENCE.sub("", text)
    code += [span.replace("\n", " ") for span in re.findall(r"`(streamkeeper [^`]+)`", prose)]
    for line in code:
        command = re.sub(r"^(\$ |[A-Z_]+=\S+ |\.venv/bin/|- run: )*", "", line.split(" #")[0].strip())
        if command.startswith("streamkeeper ") and not _ELIDED.search(command):
            yield command.replace(" KIND", " reset_checkpoint")


def parse(words: list[str]) -> None:
    """Parse a command as the command line does; nothing is invoked.

    :raises TyperException: there is no such command, option or value.
    """
    command, context, name = typer.main.get_command(app), None, "streamkeeper"
    while True:
        context = command.make_context(name, words, parent=context)
        if not isinstance(command, TyperGroup):
            return
        rest = [*context._protected_args, *context.args]
        found, following, words = command.resolve_command(context, rest)
        assert following is not None
        name, command = found or "", following


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_command_of_a_page_is_one_of_the_command_line(page: Path) -> None:
    wrong = {}
    for command in commands(page):
        try:
            parse(shlex.split(command)[1:])
        except Exit:
            continue  # --help, --version
        except TyperException as error:
            if not str(error).startswith("Missing parameter"):  # prose names a command without its arguments
                wrong[command] = str(error)
    assert wrong == {}


def test_the_pages_have_commands_and_a_wrong_one_is_refused() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 40
    with pytest.raises(TyperException):
        parse(["check", "--no-such-option"])


def test_code_that_names_its_file_is_that_files() -> None:
    marks = r"^(?:From `|<!-- from )(\S+?)(?:`:\n| -->)\n```python\n(.*?)^```"
    named = re.findall(marks, _all(), re.MULTILINE | re.DOTALL)
    assert named
    for file, code in named:
        assert code in (PROJECT / file).read_text(), file


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in set(anchors(target)), link


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as a forge makes them."""
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def test_each_whole_pipeline_file_of_a_page_is_one(tmp_path: Path) -> None:
    files = [
        code.split("\n", 1)[1]
        for language, code in FENCE.findall(_all())
        if language == "python" and code.startswith("from streamkeeper import pipelines as dp\n")
    ]
    assert len(files) >= 3
    for code in files:
        # A snippet may declare sources alone; a file needs a flow.
        whole = code if "flow(" in code else f'{code}dp.create_source("raw", format="rate")\n{TAIL}'
        assert load(tmp_path, whole).sources, code


def test_the_example_of_auto_cdc_comes_to_the_tables_beside_it() -> None:
    section = (PROJECT / "docs/auto_cdc.md").read_text().split("## An example")[1].split("\n## ")[0]
    changes, newest, versions = (_rows(table) for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE))
    read = [
        Change(UPSERT if kind == "UPSERT" else DELETE, (key,), int(at), {"id": key, "city": city})
        for key, city, kind, at in changes
    ]
    assert [[*row.values()] for row in cdc_oracle.newest(read)] == newest
    assert [
        [*row.values(), str(start), "" if end is None else str(end)]
        for row, start, end in cdc_oracle.versions(read)
    ] == versions


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_every_exit_code_of_a_driver_is_in_its_table() -> None:
    section = (PROJECT / "docs/command_line.md").read_text().split("## Exit codes of a driver")[1]
    listed = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in row.split(",")
    }
    assert listed == {outcome.exit_code for outcome in Outcome} | set(OUT_OF_MEMORY)


def _all() -> str:
    return "\n".join(page.read_text() for page in PAGES)
