"""Which versions of a query's state a checkpoint still has, by the names of its files alone.

Spark writes version B+1 of every state store with batch B, and removes versions that ``minBatchesToRetain``
does not ask for. A version can be put together from the newest whole one up to it and every change after
that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from streamkeeper.checkpoint.log_entries import is_number
from streamkeeper.checkpoint.reader import Checkpoint

VERSIONED = re.compile(r"([0-9]+)(_[0-9a-f-]{36})?\.(delta|snapshot|changelog|zip)(\.crc)?")
"""A file of one version of a state store (Spark 4.2.0): of the default provider, or of RocksDB; with an id in
checkpoint format 2.
"""
WHOLE = ("snapshot", "zip")
"""Files of a state store that need no earlier version."""
SHARED_FOLDERS = ("SSTs", "logs")
"""Folders of a RocksDB store, whose files several versions share."""


def missing_state(checkpoint: Checkpoint, version: int) -> str | None:
    """Say which file is missing to put a version of the state together; None if nothing is, or there is no
    state.

    :param version: of batch B it is B + 1.
    """
    for operator in _visible(checkpoint, "state"):
        parts = [part for part in _visible(checkpoint, f"state/{operator}") if is_number(part)]
        if not parts and version:
            return f"all partitions of {checkpoint.path(f'state/{operator}')}"
        for part in parts:
            for store in _stores(checkpoint, f"state/{operator}/{part}"):
                missing = _missing(checkpoint, store, version)
                if missing is not None:
                    return missing
    return None


def _stores(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    """Give the folders of the stores of one partition: its own, or one for each store (joins)."""
    names = _visible(checkpoint, folder)
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
        match for match in map(VERSIONED.fullmatch, _visible(checkpoint, folder)) if match and not match[4]
    ]
    base = max(
        (int(match[1]) for match in found if match[3] in WHOLE and int(match[1]) <= version), default=0
    )
    there = {int(match[1]) for match in found}
    lacking = next((number for number in range(base + 1, version + 1) if number not in there), None)
    return None if lacking is None else f"version {lacking} of {checkpoint.path(folder)}"


def _visible(checkpoint: Checkpoint, folder: str) -> list[str]:
    return [name for name in checkpoint.names(folder) if not name.startswith(".")]
