"""Front pages: short, true of the package, and with outputs that the commands print."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamkeeper import __version__
from streamkeeper.cli.commands import app
from streamkeeper.flows import generations
from streamkeeper.install.project_files import PIPELINE
from streamkeeper.manifest import names
from streamkeeper.recover.plans import plan
from streamkeeper.settings import PROJECT
from streamkeeper.support.amounts import IMPACTS
from streamkeeper.tables import backups
from tests.worlds.browser import check_for_readers
from tests.worlds.small_world import World
from tools.docs.markdown import FENCE, LINK, anchors

RELEASED = {
    "formats": {"state": 1, "names": 1, "generations": 1, "plans": 1, "backups": 1},
    "impacts": {"data-loss", "duplicates", "downstream", "missing-history", "unknown-impact"},
}
"""What the last release writes into a state folder, or takes as an answer; set it with each release."""

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "changes/README.md")


def text(name: str) -> str:
    return (PROJECT / name).read_text()


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(FENCE.sub("", text("README.md")).split()) <= 500


@pytest.mark.parametrize("page", PAGES)
def test_each_link_of_a_front_page_leads_to_a_file_and_a_heading(page: str) -> None:
    for link in LINK.findall(FENCE.sub("", text(page))):
        path, _, anchor = link.partition("#")
        target = (PROJECT / page).parent / path
        assert "://" in link or target.exists(), link
        assert "://" in link or not anchor or anchor in set(anchors(target)), link


def test_the_readmes_session_is_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"source": "orders_raw", "folder": "orders"}
    world = World(tmp_path, name="orders_flow", table="orders", pipeline="orders", **source)
    world.declare(PIPELINE, "orders.py")
    world.processed(3, operators=("dedupeWithinWatermark",))
    world.add_files(2)
    world.park(stateful=True)
    world.enter(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    session = next(block for _, block in FENCE.findall(text("README.md")) if block.startswith("$ "))
    shown = [part.splitlines() for part in session.removeprefix("$ ").split("\n$ ")]
    assert [lines[0].split()[1] for lines in shown] == ["check", "flows", "plan"]
    for command, *lines in shown:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        expected = [masked(line) for line in lines if line.strip() not in ("", "…")]
        printed = [masked(line) for line in done.output.splitlines() if line.strip()]
        if any(line.strip() == "…" for line in lines):
            printed = [line for line in printed if line in expected]
        assert printed == expected, done.output


def masked(line: str) -> str:
    """Return a line without what differs each time: spaces of a column, an age, a fingerprint."""
    line = re.sub(r"\b[0-9a-f]{16}\b", "<hash>", line)
    return " ".join(re.sub(r"\b\d+ s\b", "<age>", line).split())


def test_a_picture_for_readers_shows_nothing_of_a_test_or_of_this_machine() -> None:
    check_for_readers("Asked by ada: a release. Approve, and lose 12 rows")
    for text in ("<img src=x>", "http://127.0.0.1:8080/dags", "/tmp/state", f"{PROJECT}/docs"):
        with pytest.raises(ValueError, match="A picture for readers shows"):
            check_for_readers(f"Asked by ada: {text}.")


def test_all_places_name_one_version() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    assert project["project"]["version"] == __version__
    assert f'org.opencontainers.image.version="{__version__}"' in text("Dockerfile")
    assert re.findall(r"^## \[(.+?)\]", text("CHANGELOG.md"), re.MULTILINE)[0] == __version__
    for page in ("README.md", "docs/get-started/install.md"):
        assert set(re.findall(r"streamkeeper_airflow-([\d.]+)-py3", text(page))) == {__version__}, page


def test_a_release_of_the_changelog_is_one_screen() -> None:
    releases = re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert releases and all(len(release.splitlines()) <= 40 for release in releases)


def test_each_fragment_has_a_type_and_few_words() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    types = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    assert types >= {"breaking", "upgrade", "data-correctness"}
    for kind in types:
        assert f"`{kind}`" in text("changes/README.md"), kind
    for fragment in (PROJECT / "changes").glob("[!R.]*"):
        name = re.fullmatch(r"[\w+-]+\.([a-z-]+)\.md", fragment.name)
        assert name and name[1] in types, f"{fragment.name} is not NAME.TYPE.md; types are {sorted(types)}"
        words = re.sub(r"\]\([^)]*\)", "", fragment.read_text()).split()
        assert len(words) <= 30 or name[1] in ("data-correctness", "upgrade"), fragment.name


def test_another_format_or_impact_has_a_fragment_with_the_steps_of_the_upgrade() -> None:
    formats = {
        "state": names.STATE_FORMAT,
        "names": names.FORMAT,
        "generations": generations.FORMAT,
        "plans": plan.FORMAT,
        "backups": backups.FORMAT,
    }
    is_the_same = {"formats": formats, "impacts": {*IMPACTS}} == RELEASED
    assert is_the_same or list((PROJECT / "changes").glob("*.upgrade.md"))
