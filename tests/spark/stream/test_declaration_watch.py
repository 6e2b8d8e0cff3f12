"""What a driver makes of its pipelines folder and its state folder while it runs: nothing that is wrong in
the pipelines ends it, a change of its flow does, and a state folder that fails does for too long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamkeeper_jobs.stream.declaration_watch import AGAIN_SECONDS, Declaration
from streamkeeper_jobs.stream.watch import Watch

from streamkeeper.errors import StorageError
from streamkeeper.flows import leases
from streamkeeper.manifest.manifest import read_manifest
from tests.worlds.small_world import EVENTS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world with one pipeline, ``events``."""
    made = World(tmp_path)
    made.declare()
    return made


@pytest.fixture
def declared(world: World) -> Declaration:
    """The flow's declaration, as its driver has imported it."""
    found = Declaration(world.settings, "events.clean_events")
    found.fingerprint = world.flow.fingerprint
    return found


@pytest.fixture
def watch(world: World, declared: Declaration) -> Iterator[Watch]:
    """The watch of a driver of the flow, under its lease."""
    with Watch(world.home, leases.acquire(world.home, 1, 0.6), 0.05, declared, term=60) as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.02)


def change_its_schema(world: World) -> None:
    world.declare(EVENTS.replace("event_id STRING", "event_id LONG"))


def put_links(folder: Path) -> None:
    (folder / ".#events.py").symlink_to("me@host.1:1")
    (folder / "gone.py").symlink_to("nowhere.py")
    (folder / "loop.py").symlink_to("loop.py")


def put_what_is_no_file(folder: Path) -> None:
    (folder / "x.py").mkdir()
    os.mkfifo(folder / "y.py")


WRONG: dict[str, Callable[[Path], object]] = {
    "links that lead nowhere": put_links,
    "a folder and a FIFO": put_what_is_no_file,
    "a file that ends its process": lambda folder: (folder / "ends.py").write_text(
        "# streamkeeper\nimport os\nos._exit(0)"
    ),
    "the folder is gone": lambda folder: folder.rename(folder.with_name("unmounted")),
    "a file is in its place": lambda folder: (
        folder.rename(folder.with_name("unmounted")),
        folder.write_text(""),
    ),
}


@pytest.mark.parametrize("put", WRONG.values(), ids=WRONG)
def test_a_driver_runs_on_whatever_lies_in_its_folder(
    put: Callable[[Path], object], watch: Watch, world: World
) -> None:
    put(world.settings.pipelines)
    seen = watch.heartbeat.count
    until(lambda: watch.heartbeat.count > seen + 20)
    watch.obey()


def test_a_change_is_still_seen_after_a_look_that_failed(
    watch: Watch, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = world.settings.pipelines
    folder.rename(folder.with_name("unmounted"))
    seen = watch.heartbeat.count
    until(lambda: watch.heartbeat.count > seen + 5)
    folder.with_name("unmounted").rename(folder)
    change_its_schema(world)
    until(lambda: watch.order() is not None)
    assert "the declaration changed" in str(watch.order())
    assert capfd.readouterr().out.count("is not there. Make it") == 1  # told once, however often it looked


def test_a_file_that_is_removed_and_written_anew_is_no_flow_gone(world: World, declared: Declaration) -> None:
    file = world.settings.pipelines / "events.py"
    text = file.read_text()
    file.unlink()
    assert declared.files_changed()
    read_manifest(world.settings)
    file.write_text(text)
    assert declared.what_changed() is None
    assert declared.files_changed()
    assert declared.what_changed() is None


def test_a_look_that_failed_is_taken_again_although_no_file_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [0.0]
    found = Declaration(world.settings, "events.clean_events", monotonic=lambda: at[0])
    found.fingerprint = world.flow.fingerprint
    change_its_schema(world)
    assert found.files_changed()
    with monkeypatch.context() as broken:
        broken.setattr("streamkeeper.manifest.import_all.PROJECT", world.root / "nowhere")
        assert found.what_changed() is None
    assert not found.files_changed()
    at[0] += AGAIN_SECONDS
    assert found.files_changed()
    assert "the declaration changed" in str(found.what_changed())


@pytest.fixture
def without_heartbeats(world: World, watch: Watch) -> Iterator[None]:
    """A state folder that refuses the heartbeats of a running watch."""
    folder = Path(world.home.storage.path(world.home.heartbeat(1))).parent
    folder.rename(folder.with_name("aside"))
    folder.write_text("no folder")
    yield
    if folder.is_file():
        folder.unlink()


def test_heartbeats_that_could_not_be_written_are_silence_and_then_go_on(
    world: World, watch: Watch, without_heartbeats: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before = watch.heartbeat.count
    until(lambda: watch.heartbeat.count > before + 3)
    watch.tell(phase="running")
    assert watch.order() is None
    Path(world.home.storage.path(world.home.heartbeat(1))).parent.unlink()
    until(lambda: leases.read_heartbeat(world.home, 1))
    said: list[str] = []
    until(lambda: said.append(capfd.readouterr().out) or "answers again" in "".join(said))
    assert "".join(said).count("does not answer; tried again") == 1


def test_a_driver_ends_when_half_of_the_term_was_silent(world: World, declared: Declaration) -> None:
    with Watch(world.home, leases.acquire(world.home, 1, 0.6), 0.05, declared, term=1.0) as watch:
        folder = Path(world.home.storage.path(world.home.heartbeat(1))).parent
        folder.rename(folder.with_name("aside"))
        folder.write_text("no folder")
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"could not use its state folder for .* half of STREAMKEEPER"):
            while True:
                watch.wait(0.05)
        assert time.monotonic() - began >= 0.3, "it was silent for a while first"
