"""A copy of what some flows keep: generations, checkpoints, tables. The flows may run meanwhile.

The copy is of one moment: that of the newest version V of each table when its log was listed. Each flow is
copied up to the batch that it had committed to V, so a driver on the copy goes on exactly after it. Files
that never change are shared where the disk can (hard links); those that Delta may overwrite are copied.

What belongs to running drivers is left out: leases, heartbeats, holds of people, locks.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.older_state import VERSIONED
from streamkeeper.declare.offsets import files_batch
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import CheckpointError, StorageError
from streamkeeper.flows import generations, holds
from streamkeeper.flows.files import FlowHome, table_folder
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables.flows_at_version import FlowAt, look_back
from streamkeeper_jobs.generation.copy_checkpoint import copy_file

_AT_ONCE = 8
_LOG = "_delta_log"
_LAST_CHECKPOINT = f"{_LOG}/_last_checkpoint"
_COMMIT = re.compile(rf"{_LOG}/[0-9]{{20}}\.json")
_VERSION = re.compile(r"([0-9]{20})\.")
_NAMES = ("ledger/names", "tables")
"""Folders of the state folder that say what names mean, and whose tables are whose."""
_NOT_OF_GENERATIONS = re.compile(r"[0-9]{6,}\.change\.json")


@dataclass
class Amount:
    """Files and bytes of a copy, shared ones included."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Copying:
    """A copy under way: from some settings' folders to those of others.

    ``check_stop`` is called between two files, and may end the copying by raising.
    """

    settings: Settings
    copy: Settings
    check_stop: Callable[[], None]
    amount: Amount = field(default_factory=Amount)
    _counting: Lock = field(default_factory=Lock)

    def names(self) -> None:
        """Copy what names mean."""
        here, destination = open_storage(self.settings.state), open_storage(self.copy.state)
        for folder in _NAMES:
            self._all(here, destination, _below(here, folder))

    def table(self, path: str, into: str) -> int | None:
        """Copy a table with its history, up to its newest version; return that, or None if there is none."""
        here, destination = open_storage(path), open_storage(into)
        # Read before the listing: what it names is there, whole.
        last = here.read(_LAST_CHECKPOINT)
        whole = -1 if last is None else int(json.loads(last)["version"])
        version = delta_log.latest_version(path)
        if version is None:
            return None
        names = [name for name in _below(here, _LOG) if _is_of(name, version, whole)]
        # Commits never change, and their times count. A checkpoint may be written again, into the same file.
        self._all(here, destination, (name for name in names if _COMMIT.fullmatch(name)))
        self._all(here, destination, (name for name in names if not _COMMIT.fullmatch(name)), share=False)
        if last is not None:
            destination.overwrite(_LAST_CHECKPOINT, last)
        self._all(here, destination, (name for name in _below(here, "") if not name.startswith(f"{_LOG}/")))
        return version

    def flow(self, home: FlowHome, path: str, version: int | None, states: Iterable[int]) -> None:
        """Copy what is kept of a flow, up to what it had committed by a version of its table.

        :param states: generations whose state is copied, besides the one that goes on.
        """
        destination = open_storage(self.copy.state)
        here, root = home.storage, home.root
        decided = [
            name for name in _below(here, f"{root}/generations") if not _NOT_OF_GENERATIONS.search(name)
        ]
        self._all(here, destination, decided)
        if holds.parked(home) is not None:
            self._all(here, destination, [home.hold(holds.PARK)])
        stood = None
        if version is not None:
            stood = look_back("", path, version, [home]).flows[home.full_name]
        begun = [number for number in home.generations() if generations.read_start(home, number) is not None]
        for number in begun:
            start = generations.read_start(home, number)
            assert start is not None, "it was begun"
            goes_on = number == begun[-1]
            upto = _upto(stood, number, start.seed_batch) if goes_on else None
            checkpoint = Checkpoint(here, start.checkpoint)
            names = files_upto(checkpoint, upto, goes_on, goes_on or number in states)
            self._checkpoint(checkpoint, names, destination)

    def backups(self, pipeline: str, table: str) -> None:
        """Copy the list of a table's backups; the backups themselves are read where they are."""
        here = open_storage(self.settings.state)
        folder = f"{table_folder(here, pipeline, table)}/backups"
        self._all(here, open_storage(self.copy.state), _below(here, folder))

    def _checkpoint(self, old: Checkpoint, names: Iterable[str], destination: Storage) -> None:
        def act(name: str) -> None:
            copy_file(old, name, destination, old.folder, share=True)

        self._each(names, lambda name: self._one(old.storage, old.name(name), lambda: act(name)))

    def _all(self, here: Storage, destination: Storage, names: Iterable[str], share: bool = True) -> None:
        put = destination.share if share else destination.bring
        self._each(names, lambda name: self._one(here, name, lambda: put(here, name, name)))

    def _each(self, names: Iterable[str], act: Callable[[str], None]) -> None:
        with ThreadPoolExecutor(_AT_ONCE, "streamkeeper-rehearsal") as pool:
            for _ in pool.map(act, names):
                self.check_stop()

    def _one(self, here: Storage, name: str, act: Callable[[], None]) -> None:
        size = here.size(name)
        try:
            act()
        except (StorageError, CheckpointError):
            if here.size(name) is None:
                return  # Spark, or VACUUM, removed it meanwhile: it is too old to be needed
            raise
        with self._counting:
            self.amount.files += 1
            self.amount.bytes += size or 0


def files_upto(old: Checkpoint, batch: int | None, goes_on: bool, with_state: bool) -> Iterator[str]:
    """Yield the files of a checkpoint that belong to a batch and to those before it.

    :param batch: the last batch; None for all if the query is over, and for none if it goes on.
    """
    if batch is None and goes_on:
        yield "metadata"
        return
    offsets: Mapping[str, Any] = {}
    if batch is not None:
        # A damaged one is copied as it is: it may be what is mended.
        with contextlib.suppress(CheckpointError):
            offsets = old.offsets(batch).sources
    root = f"{old.folder}/" if old.folder else ""
    for name in (full.removeprefix(root) for full in _below(old.storage, old.folder)):
        of_state = name.startswith("state/")
        if (with_state or not of_state) and (batch is None or not _is_later(name, batch, offsets)):
            yield name


def _is_later(name: str, batch: int, offsets: Mapping[str, Any]) -> bool:
    """Return whether a file of a checkpoint belongs to a later batch, by its name.

    :param offsets: of the batch, by source name: a files source counts its own lists of files.
    """
    top, _, relative_path = name.partition("/")
    last = name.rpartition("/")[2]
    number = last.partition(".")[0]
    if top == "state":
        match = VERSIONED.fullmatch(last)
        return match is not None and int(match[1]) > batch + 1
    if not number.isdecimal():
        return False
    if top == "sources":
        read = files_batch(offsets.get(relative_path.partition("/")[0]))
        return read is not None and int(number) > read
    return top in ("offsets", "commits") and int(number) > batch


def _upto(stood: FlowAt | None, number: int, seed: int | None) -> int | None:
    """Return the last batch of a generation that goes on which its table has; None if it has none."""
    return stood.batch if stood is not None and stood.generation == number else seed


def _is_of(name: str, version: int, whole: int) -> bool:
    """Return whether a file of a table's log is copied with a version.

    :param whole: version of the newest checkpoint that is known to be complete.
    """
    if name == _LAST_CHECKPOINT:
        return False
    match = _VERSION.match(name.rpartition("/")[2])
    return match is None or int(match[1]) <= (whole if ".checkpoint" in name else version)


def _below(storage: Storage, folder: str) -> Iterator[str]:
    """Yield the names of all files below a folder, without hidden ones."""
    for name in storage.sizes(folder):
        if not any(part.startswith(".") for part in name.split("/")):
            yield f"{folder}/{name}" if folder else name
