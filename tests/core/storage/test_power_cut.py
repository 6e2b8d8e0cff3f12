"""A disk that forgets at a power cut what was not synced: whatever a call of a run has returned from is there
afterwards, file by file, and what it removed is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamkeeper.flows import holds, leases
from streamkeeper.storage import LocalStorage
from streamkeeper.storage.base import OURS
from streamkeeper.tables import backups
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import Alert, AlertKind
from tests.worlds.recover.recoveries import FLOW, approve, carry_out, plan_reset
from tests.worlds.small_world import World
from tests.worlds.tables.backups import entry

Files = dict[str, bytes]


class ForgetfulDisk:
    """Model of the disk below a folder: of a file it has the bytes, of a folder the names, as of their last
    ``fsync``.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._fsync = root, os.fsync
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.held: list[int] = []
        """Descriptors of all that was synced, so that no inode is used a second time."""
        for path in (root, *root.rglob("*")):
            self._note(os.open(path, os.O_RDONLY))

    def fsync(self, number: int) -> None:
        """Sync as the system does, and note what is on the disk from now on."""
        self._fsync(number)
        self._note(os.dup(number))

    def _note(self, number: int) -> None:
        self.held.append(number)
        path, inode = Path(f"/proc/self/fd/{number}"), os.fstat(number).st_ino
        if path.is_dir():
            self._names[inode] = {item.name: item.inode() for item in os.scandir(path)}
        else:
            self._bytes[inode] = path.read_bytes()

    def after_a_power_cut(self) -> Files:
        """Return the files that are there when the power is back; one of which only the name is, is empty."""
        return dict(self._below(self._root.stat().st_ino, ""))

    def _below(self, folder: int, path: str) -> Iterator[tuple[str, bytes]]:
        for name, inode in self._names[folder].items():
            if inode in self._names:
                yield from self._below(inode, f"{path}{name}/")
            elif not name.startswith(OURS):
                yield f"{path}{name}", self._bytes.get(inode, b"")


def files(root: Path) -> Files:
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and not file.name.startswith(OURS)
    }


def hold_and_release(world: World) -> None:
    holds.put(world.home, holds.person("ada"), "a look", "ada")
    holds.release(world.home, holds.person("ada"))


def back_up(world: World) -> None:
    storage = LocalStorage(f"{world.settings.state}/copies")
    storage.bring(LocalStorage(f"{world.root}/data/events"), "f000.json", "b1/deep/f000.json")
    storage.share(LocalStorage(f"{world.root}/data/events"), "f001.json", "b1/f001.json")
    storage.sync()
    backups.enter(world.home.storage, entry("b1"))


ACTS: dict[str, Callable[[World], object]] = {
    "a hold": lambda world: holds.put(world.home, holds.person("ada"), "a look", "ada"),
    "a hold that is released": hold_and_release,
    "a lease": lambda world: leases.acquire(world.home, 1, 0.1),
    "a lease that is left": lambda world: leases.leave(
        world.home, leases.acquire(world.home, 1, 0.1), "stopped"
    ),
    "an approved plan": lambda world: approve(world, plan_reset(world)),
    "a decision": lambda world: (
        approve(world, plan_reset(world)),
        carry_out(world, "hold", "plan_again", "decide"),
    ),
    "a backup": back_up,
    "an alert": lambda world: alerts.record(
        world.home, Alert(AlertKind.PARKED, FLOW, "it is parked", "1", "2026-11-21T10:00:00+00:00")
    ),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_what_has_returned_outlives_a_power_cut(
    act: Callable[[World], object], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.processed(3)
    world.ran()
    disk, before = ForgetfulDisk(world.root), files(world.root)
    assert disk.after_a_power_cut() == before
    monkeypatch.setattr(os, "fsync", disk.fsync)
    act(world)
    try:
        assert files(world.root) != before
        assert disk.after_a_power_cut() == files(world.root)
    finally:
        for number in disk.held:
            os.close(number)
