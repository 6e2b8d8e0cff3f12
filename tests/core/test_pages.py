"""Pages say what is so: commands parse, links lead somewhere, code that names its file is that file's."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.exceptions import Exit, TyperException

from streamkeeper.cli.commands import app
from streamkeeper.drivers import failures
from streamkeeper.exit_codes import OUT_OF_MEMORY, Outcome
from streamkeeper.health.flows import STATES
from streamkeeper.install.project_files import FILES
from streamkeeper.settings import PROJECT
from streamkeeper.support.amounts import Impact
from streamkeeper.trial.verdict import Compatibility
from tests import cdc_oracle
from tests.cdc_oracle import DELETE, UPSERT, Change
from tests.worlds.pipelines import TAIL, load
from tests.worlds.recover.sessions import SESSIONS
from tools.docs.errors import SQL_STATES
from tools.docs.made import PARTS, pages, stale
from tools.docs.markdown import FENCE, LINK, MADE, TABLE, anchors, cells, written
from tools.docs.site import on_page_markdown

JARS = PROJECT / ".cache" / "jars"

DOCS = PROJECT / "docs"
PAGES = [PROJECT / "README.md", *(page for page in pages() if page.parent.name != "decisions")]
"""Pages for users and developers; decisions are records."""
MOST_WORDS = 40
OTHER_PROGRAMS = re.compile("airflow|cd|cp|docker|echo|export|kubectl|mv|nc|pip|pytest|set")
"""Programs that are not Streamkeeper's: no test runs them, but for those of the first flow."""
PLAYED = ("get-started/first-flow.md", "get-started/migrate.md")
"""Pages whose sessions a test plays, so that what they show as printed was printed."""
NOT_TESTED = {
    "mermaid": "a picture, which the site draws",
    "sql": "of a metastore, or of PostgreSQL",
}
"""Languages of blocks that no test reads, with the reason."""


def _name(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def fences(page: Path) -> list[tuple[str, str]]:
    """Return language and text of a page's blocks of code, also those in a list."""
    text = re.sub(r"^ +(?=```)", "", page.read_text(), flags=re.MULTILINE)
    return [(language, textwrap.dedent(code)) for language, code in FENCE.findall(text)]


def commands(page: Path) -> Iterator[str]:
    """Yield the whole commands of a page: lines of code blocks and spans that begin with ``streamkeeper``."""
    code = [line for language, block in fences(page) if language != "text" for line in block.splitlines()]
    prose = FENCE.sub("", page.read_text())
    spans = [span.replace("\n", " ") for span in re.findall(r"`(streamkeeper [^`]+)`", prose)]
    for line in (*code, *(span for span in spans if not re.search("[…|<>]", span))):
        if (command := bare(line)).startswith("streamkeeper "):
            yield command.replace(" KIND", " reset_checkpoint")


def bare(line: str) -> str:
    """Return a line of commands without its comment, its variables and the container that it runs in."""
    prefix = r"^(\$ |[A-Z_]+=\S+ |\.venv/bin/|(- )?run: |RUN |docker compose exec worker (?=streamkeeper))*"
    return re.sub(prefix, "", line.partition(" #")[0].strip())


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
            if not re.search(
                "^Missing parameter|requires an argument", str(error)
            ):  # prose may leave them out
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


def test_the_first_flow_is_the_project_that_init_writes() -> None:
    written = "\n".join(FILES.values())
    code = [code for language, code in fences(DOCS / "get-started/first-flow.md") if language == "python"]
    pipeline, test, _ = code
    assert pipeline in written
    assert test in written


def test_each_command_of_the_project_that_init_writes_is_one_of_the_command_line() -> None:
    lines = [bare(line) for text in FILES.values() for line in text.splitlines()]
    written_there = [line for line in lines if line.startswith("streamkeeper ")]
    assert len(written_there) > 8
    for command in written_there:
        parse(shlex.split(command)[1:])


@pytest.mark.parametrize("page", [*PAGES, *DOCS.glob("decisions/*.md")], ids=_name)
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in set(anchors(target)), link


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_block_of_code_is_what_it_says(page: Path, tmp_path: Path) -> None:
    made = "".join(MADE.findall(page.read_text()))
    for number, (language, code) in enumerate(fences(page)):
        match language:
            case "python":
                read_python(code, tmp_path / f"p{number}")
            case "json":
                json.loads(code)
            case "yaml":
                yaml.safe_load(code)
            case "properties":
                assert [line for line in code.splitlines() if line and not PROPERTY.match(line)] == []
            case "bash":
                # Of a session the lines after a command are what it prints: test_front_pages plays it.
                lines = re.findall(r"^\$ .+", code, re.MULTILINE) or re.findall(r"^\S.*", code, re.MULTILINE)
                assert [line for line in lines if not is_read(bare(line))] == []
            case "text":
                played = _name(page).removeprefix("docs/") in PLAYED
                assert played or code in made, f"nothing holds what is shown as printed: {code}"
            case _:
                assert language in NOT_TESTED, f"{language!r} is no language that a test reads: {code}"


def is_read(command: str) -> bool:
    """Return whether a command is whole, and either a test reads it or it is another program's."""
    program, _, rest = command.partition(" ")
    if program == "python":
        return find_spec(re.findall(r"-m ([\w.]+)", rest)[0]) is not None
    known = program in ("", "streamkeeper", "make") or OTHER_PROGRAMS.fullmatch(program)
    return bool(known) and "…" not in command


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_target_of_make_that_a_page_names_is_there(page: Path) -> None:
    targets = re.findall(r"^([.\w-]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"(?:`|^ *)make ([.\w-]+)", page.read_text(), re.MULTILINE)} <= {*targets}


PROPERTY = re.compile(r"#|[\w.]+[= ]+\S")
"""A line of settings: of the environment, or of spark-defaults.conf."""


def read_python(code: str, folder: Path) -> None:
    """Compile a block of Python, and read one that declares something as a pipeline file."""
    tree = ast.parse(code)
    assert Ellipsis not in [getattr(node, "value", None) for node in ast.walk(tree)], f"elided: {code}"
    if not re.search(r"\bdp\.\w+\(", code):
        return
    folder.mkdir()
    lacking = "".join(
        f'dp.create_streaming_table("{name}"{KEYS if called == "dp.update_flow" else ""})\n'
        if parameter in TABLES
        else f'dp.create_source("{name}", format="rate")\n'
        for name, parameter, called in undeclared(tree)
    )
    # A snippet may declare sources or settings alone; a file needs a flow.
    tail = "" if "flow(" in code else f'dp.create_source("of_the_test", format="rate")\n{OF_THE_TEST}'
    # The files that a driver needs are on the machine that it is for.
    whole = re.sub(r'"(?=/opt/)', '"local:', f"{lacking}\n{code}\n{tail}")
    assert load(folder, f"from pyspark.sql import functions as F\n{whole}").flows


KEYS = ', keys=["customer_id"]'
OF_THE_TEST = TAIL.replace('"t"', '"of_the_test"').replace('"raw"', '"of_the_test"')


TABLES = ("target", "quarantine")


def undeclared(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield each table and source that a snippet takes and does not declare: its name, and the parameter and
    the function that take it.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    views, sinks = (
        {one.name for one in functions if any(kind in ast.unparse(by) for by in one.decorator_list)}
        for kind in ("temporary_view", "foreach_batch_sink")
    )
    declared = {True: sinks, False: views}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func)
        if re.fullmatch(r"dp\.create_(streaming_table|sink|source|initial_state)", called):
            declared["table" in called or "sink" in called].add(ast.literal_eval(call.args[0]))
        for keyword in call.keywords:
            if re.match(r"dp\.(\w+_flow|expect|temporary_view)", called) and keyword.arg in TAKEN:
                value = ast.literal_eval(keyword.value)
                for name in value if isinstance(value, list) else [value]:
                    if name not in declared[keyword.arg in TABLES]:
                        declared[keyword.arg in TABLES].add(name)
                        yield name, keyword.arg or "", called


TAKEN = (*TABLES, "source", "sources")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_reads_alike_on_a_forge_and_on_the_site(page: Path) -> None:
    """Python-Markdown wants a blank line before a list or a table, and code in fences."""
    prose = FENCE.sub("", re.sub(r"^ +(?=```)", "", page.read_text(), flags=re.MULTILINE)).splitlines()
    for before, line in pairwise(["", *prose]):
        item = re.match(r"(- |\d+\. |\|)", line)
        assert not item or not before or re.match(r"(- |\d+\. |\|| )", before), line
        assert not re.match(r" {4,}\S", line) or any(re.match(r"(- |\d+\. )", one) for one in prose), line


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_sentence_is_longer_than_forty_words(page: Path) -> None:
    assert [one for one in sentences(written(page.read_text())) if len(one.split()) > MOST_WORDS] == []


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: of paragraphs, items of lists, and cells of tables."""
    text = FENCE.sub("", re.sub(r"^ +(?=```)", "", text, flags=re.MULTILINE))
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]+`", "code", text))
    text = re.sub(r"^(\|.*)$", lambda row: row[1].replace("|", "\n\n"), text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|^ *(?:- |\d+\. |#+ )", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?])\s+", block.strip())


@pytest.mark.parametrize("page", [page for page in PAGES if "internals" not in page.parts], ids=_name)
def test_a_page_for_users_leads_to_tests_and_decisions_at_its_end_alone(page: Path) -> None:
    links = LINK.findall(written(page.read_text()))
    assert [link for link in links if re.search(r"(^|/)(tests|decisions)/0?", link)] in (
        [],
        ["docs/decisions/README.md"],
    )


def test_each_part_that_is_made_from_the_code_is_what_the_code_says() -> None:
    assert [_name(page) for page in stale()] == [], "write them: python -m tools.docs"
    named = re.findall(r"^<!-- from the code: (.+) -->$", _all(), re.MULTILINE)
    once = [name for name in named if not name.startswith("steps ")]
    assert sorted(once) == sorted({*PARTS, *(f"session {name}" for name in SESSIONS)} - {"session", "steps"})


def test_each_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    assert set(listed) == {*there, "decisions/README.md"}


@pytest.mark.parametrize(
    ("page", "pattern", "words"),
    [
        ("concepts/impact-of-a-recovery.md", r"^\| `([a-z-]+)` \|", Impact),
        ("how-to/deploy-a-change.md", r"^\| \*([a-z, ]+)\* \|", Compatibility),
    ],
    ids=["impacts", "verdicts"],
)
def test_a_page_explains_each_word_of_the_code(page: str, pattern: str, words: type[StrEnum]) -> None:
    assert re.findall(pattern, (DOCS / page).read_text(), re.MULTILINE) == [*words]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command,
        check=False,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    assert len(list(tmp_path.rglob("index.html"))) > len(PAGES)


def test_a_link_to_code_is_text_on_the_site() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/rename.md"))
    markdown = "[a test](../../tests/x.py), [a page](../index.md), ![a picture](../form.png)"
    assert on_page_markdown(markdown, page=page) == markdown.replace("[a test](../../tests/x.py)", "a test")


def test_the_sqlstates_of_the_page_are_those_of_spark_and_delta() -> None:
    jars = [*Path(pyspark.__file__).parent.glob("jars/spark-common-utils_*.jar"), *JARS.glob("*.jar")]
    states = {
        condition: value.get("sqlState")
        for jar in map(zipfile.ZipFile, jars)
        for name in jar.namelist()
        if re.fullmatch(r"error/.*(conditions|error-classes)\.json", name)
        for condition, value in json.loads(jar.read(name)).items()
        if isinstance(value, dict) and "message" in value
    }
    known = {key.partition(".")[0] for key, *_ in failures.known() if " " not in key}
    assert {name: states[name] for name in known if states.get(name)} == SQL_STATES
    of_source = "DELTA_(STREAMING_(?!SCHEMA_LOCATION)|SCHEMA_CHANGED|CHANGE_DATA_FEED_INC|INVALID_SOURCE_).*"
    of_sources = {name for name in states if re.fullmatch(f"{of_source}|.*_STREAMING_SOURCE", name)}
    assert len(of_sources) > 20 and of_sources <= known, of_sources - known


def test_the_runbook_has_each_state_and_each_exit_code() -> None:
    text = (DOCS / "operations/runbook.md").read_text()
    states, _, codes = text.partition("## Exit codes")
    assert set(re.findall(r"^\| `([a-z ]+)` \|", states, re.MULTILINE)) == {*STATES}
    listed = {code for row in re.findall(r"^\| ([\d, ]+) \|", codes, re.MULTILINE) for code in row.split(",")}
    assert {int(code) for code in listed} == {outcome.exit_code for outcome in Outcome} | set(OUT_OF_MEMORY)


def test_the_example_of_auto_cdc_comes_to_the_tables_beside_it() -> None:
    section = (DOCS / "how-to/targets/auto-cdc.md").read_text().partition("\n## ")[0]
    changes, newest, versions = (cells(table) for table in TABLE.findall(section))
    read = [
        Change(UPSERT if kind == "UPSERT" else DELETE, (key,), int(at), {"id": key, "city": city})
        for key, city, kind, at in changes
    ]
    assert [[*row.values()] for row in cdc_oracle.newest(read)] == newest
    assert [
        [*row.values(), str(start), "" if end is None else str(end)]
        for row, start, end in cdc_oracle.versions(read)
    ] == versions


def _all() -> str:
    return "\n".join(page.read_text() for page in PAGES)
