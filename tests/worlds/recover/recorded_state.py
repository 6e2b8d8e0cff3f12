"""A state folder that an earlier release wrote, as it is found elsewhere: moved, with everything that names
its place.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from streamkeeper.checkpoint.crc_files import checksum, twin_of
from streamkeeper.manifest.import_all import import_here
from tests.worlds.small_world import World

RECORDED = Path(__file__).parents[2] / "core" / "recorded_state"
PLACE = "/srv/streamkeeper"
"""Where it was written."""


def fingerprints(pipelines: Path, data: str) -> dict[str, str]:
    """The fingerprints of all flows in a folder of pipeline files, by full name."""
    found: dict[str, str] = {}
    for imported in import_here(sorted(pipelines.glob("*.py")), data):
        found |= imported.fingerprints
    return found


def put(root: Path) -> World:
    """Put the recorded folders below ``root``, as they would be if they had been written there."""
    shutil.copytree(RECORDED, root, dirs_exist_ok=True)
    before = fingerprints(RECORDED / "pipelines", f"{PLACE}/data")
    after = fingerprints(root / "pipelines", f"{root}/data")
    replaced = {PLACE: str(root), **{mark: after[flow] for flow, mark in before.items()}}
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        _move(file, {old.encode(): new.encode() for old, new in replaced.items()})
    for log in root.glob("state/*/*/checkpoints/*/sources/*/[0-9]"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            modified = entry["timestamp"] * 1_000_000
            os.utime(entry["path"].removeprefix("file://"), ns=(modified, modified))
    return World(root)


def _move(file: Path, replaced: dict[bytes, bytes]) -> None:
    content = moved = file.read_bytes()
    for old, new in replaced.items():
        moved = moved.replace(old, new)
    if moved != content:
        file.write_bytes(moved)
        twin = Path(twin_of(str(file)))
        if twin.exists():
            twin.write_bytes(checksum(moved))
