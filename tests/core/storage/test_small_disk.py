"""A disk that is full, or read-only: commands that read go on, others name the file and the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from streamkeeper.settings import PROJECT
from tests.worlds.states.small_disk import APART, READING, WRITING


def test_a_full_and_a_read_only_state_folder_are_named_with_the_remedy_and_nothing_is_left_half(
    tmp_path: Path,
) -> None:
    command = [*APART, sys.executable, "-m", "tests.worlds.states.small_disk", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    state = str(tmp_path / "state")
    for trouble, remedy in (("full", "Make room on that disk"), ("read-only", "mount it for writing again")):
        said = results[trouble]
        assert {name: said[name] for name in map(" ".join, READING) if said[name]} == {}
        for name in map(" ".join, WRITING):
            assert said[name].startswith("StorageError"), said
            assert state in said[name] and remedy in said[name], said
    assert results["left"] == {}
    assert set(results["again"].values()) == {""}
