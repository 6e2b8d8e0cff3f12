"""The folder of jars: by name and digest, from a folder or a mirror, and the jar that is built of jvm/."""

from __future__ import annotations

import hashlib
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.jars import folder as jars
from streamkeeper.jars.ivy import Module, download

BUILT = "streamkeeper-jvm-0.jar"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, of an installation whose wheel has its built jar and a lock of one jar, ``one-1.0.jar``."""
    monkeypatch.setattr(jars, "CHECKOUT", False)
    monkeypatch.setattr(jars, "_IN_WHEEL", tmp_path)
    monkeypatch.setattr(jars, "LOCK", tmp_path / "jars.lock")
    monkeypatch.setattr(jars, "FOLDER", tmp_path / "none")
    (tmp_path / BUILT).touch()
    digest = hashlib.sha256(b"one").hexdigest()
    (tmp_path / "jars.lock").write_text(f"{digest} org.example:one:1.0\n")
    return tmp_path


def test_without_a_network_jars_come_from_a_folder_and_other_content_is_never_taken(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "download", lambda *_: pytest.fail("the network is asked"))
    carried = wheel / "carried" / "below"
    carried.mkdir(parents=True)
    (carried / "one-1.0.jar").write_bytes(b"one")
    line = ["jars", str(wheel / "jars"), "--from", str(wheel / "carried")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0 and "has now all 2 jars" in done.output
    assert {path.name for path in (wheel / "jars").iterdir()} == {"one-1.0.jar", BUILT}

    def fetch(modules: list[Module], folder: Path, mirror: str | None) -> None:
        assert (modules, mirror) == ([Module("org.example", "one", "1.0")], "https://mirror.example/maven2")
        (folder / "one-1.0.jar").write_bytes(b"damaged, too")

    monkeypatch.setattr(jars, "download", fetch)
    for place in (carried, wheel / "jars"):
        (place / "one-1.0.jar").write_bytes(b"damaged")
    done = CliRunner().invoke(app, [*line, "--mirror", "https://mirror.example/maven2"])
    assert done.exit_code == 1 and "is not what the lock names, and was thrown away" in str(done.exception)
    assert (wheel / "jars" / "one-1.0.jar").read_bytes() == b"damaged", "nothing took its place"


def test_a_mirror_is_asked_for_exactly_the_jars_of_the_lock(tmp_path: Path) -> None:
    place = tmp_path / "mirror" / "maven2" / "org" / "example" / "one" / "1.0"
    place.mkdir(parents=True)
    (place / "one-1.0.jar").write_bytes(b"one")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "mirror")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = f"http://127.0.0.1:{server.server_address[1]}/maven2"
        download([Module("org.example", "one", "1.0")], tmp_path / "jars", mirror)
        server.shutdown()
    assert {path.name: path.read_bytes() for path in (tmp_path / "jars").iterdir()} == {"one-1.0.jar": b"one"}


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
