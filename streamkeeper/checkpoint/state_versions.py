"""Versions of a query's state that a checkpoint still has, by file names alone.

Spark writes version B+1 of every state store with batch B, and removes versions beyond
``minBatchesToRetain``. A version can be rebuilt from the newest snapshot up to it and every later change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from streamkeeper.checkpoint.log_entries import is_number
from streamkeeper.checkpoint.reader import Checkpoint

VERSIONED = re.compile(r"([0-9]+)(_[0-9a-f-]{36})?\.(delta|snapshot|changelog|zip)(\.crc)?")
"""File of one version of a state store (Spark 4.2.0), for the default provider and RocksDB; with an id in
checkpoint format 2.
"""
WHOLE = ("snapshot", "zip")
"""Suffixes of a state store's snapshots: files that need no earlier version."""
SHARED_FOLDERS = ("SSTs", "logs")
"""Folders of a RocksDB store whose files are shared by several versions."""


def missing_state(checkpoint: Checkpoint, version: int) -> str | None:
    """Return the first file missing to rebuild a version of the state; None if none is missing or there is no
    state.

    :param version: B + 1 for batch B.
    """
    for operator in visible(checkpoint, "state"):
        parts = [part for part in visible(checkpoint, f"state/{operator}") if is_number(part)]
        if not parts and version:
            return f"all partitions of {checkpoint.path(f'state/{operator}')}"
        for part in parts:
            for store in _stores(checkpoint, f"state/{operator}/{part}"):
                missing = _missing(checkpoint, store, version)
                if missing is not None:
                    return missing
    return None


def _stores(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    """Yield the folders of one partition's stores: its own folder, or one for each store (joins)."""
    names = visible(checkpoint, folder)
    inner = [
        name
        for name in names
        if VERSIONED.fullmatch(name) is None and name not in (*SHARED_FOLDERS, "_metadata")
    ]
    if not inner or any(VERSIONED.fullmatch(name) for name in names):
        yield folder
    for name in inner:
        yield f"{folder}/{name}"


def _missing(checkpoint: Checkpoint, folder: str, version: int) -> str | None:
    found = [
        match for match in map(VERSIONED.fullmatch, visible(checkpoint, folder)) if match and not match[4]
    ]
    base = max(
        (int(match[1]) for match in found if match[3] in WHOLE and int(match[1]) <= version), default=0
    )
    there = {int(match[1]) for match in found}
    lacking = next((number for number in range(base + 1, version + 1) if number not in there), None)
    return None if lacking is None else f"version {lacking} of {checkpoint.path(folder)}"


def visible(checkpoint: Checkpoint, folder: str) -> list[str]:
    """Return the names in a folder of a checkpoint, without hidden ones."""
    return [name for name in checkpoint.names(folder) if not name.startswith(".")]
