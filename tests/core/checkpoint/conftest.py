"""Real checkpoints, recorded from Spark 4.2.0 by record.py, each in a folder that the test may spoil."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.storage import LocalStorage

RECORDED = Path(__file__).parent / "recorded"

Tree = dict[str, tuple[bytes, int]]


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """Copy a recorded checkpoint and give its folder."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(RECORDED / name, tmp_path / name))

    return copy


@pytest.fixture
def opened(recorded: Callable[[str], Path]) -> Callable[[str], Checkpoint]:
    """Copy a recorded checkpoint and open it."""
    return lambda name: Checkpoint(LocalStorage(str(recorded(name).parent)), name)


@pytest.fixture
def tree() -> Callable[[Path], Tree]:
    """Take everything that is below a folder, with its time, so that two looks can be compared."""

    def look(folder: Path) -> Tree:
        return {
            str(item.relative_to(folder)): (
                item.read_bytes() if item.is_file() else b"",
                item.stat().st_mtime_ns,
            )
            for item in folder.rglob("*")
        }

    return look
