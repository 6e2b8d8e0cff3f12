"""The jar that is built of jvm/: its name tells of which sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamkeeper.jars import folder as jars


def test_a_change_of_a_source_shows_as_a_missing_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, folder, lock = tmp_path / "jvm", tmp_path / "jars", tmp_path / "jars.lock"
    shutil.copytree(jars.SOURCES, sources)
    lock.write_text("# nothing is downloaded\n")
    monkeypatch.setattr(jars, "SOURCES", sources)
    monkeypatch.setattr(jars, "LOCK", lock)
    folder.mkdir()
    (folder / jars.built_jar()).touch()
    assert jars.problems(folder) == []
    source = next(sources.rglob("S3LogStore.java"))
    source.write_text(source.read_text() + "// changed\n")
    missing, too_many = jars.problems(folder)
    assert missing == f"{jars.built_jar()} is missing"
    assert too_many.endswith("is not in the lock")
