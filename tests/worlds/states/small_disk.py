"""A state folder on a small disk of its own, which fills up and turns read-only: what commands do then.

``small_disk.py ROOT`` mounts the disk at ``ROOT/state``, so it runs in a mount namespace of its own
(:data:`APART`), with which the disk is gone. It prints what each command did, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from streamkeeper.cli.commands import app
from tests.worlds.small_world import World

APART = ("unshare", "--map-root-user", "--mount")
FLOW = "events.clean_events"
READING = (
    ["flows"],
    ["flow", FLOW],
    ["events", FLOW],
    ["metrics"],
    ["plan", "reset_checkpoint", "--flow", FLOW, "--start", "after-last"],
)
WRITING = (["hold", FLOW], ["recover", "reset_checkpoint", "--flow", FLOW, "--start", "after-last", "--yes"])


def ended(command: list[str]) -> str:
    """Run a command; return the error that ended it, or nothing."""
    import typer

    with Path(os.devnull).open("w") as nowhere, patch.object(sys, "stdout", nowhere):
        try:
            typer.main.get_command(app)(command, standalone_mode=False)
        except SystemExit as left:
            return "" if not left.code else f"exit {left.code}"
        except Exception as error:  # noqa: BLE001 - which one it is, is what the test looks at
            return f"{type(error).__name__}: {error}"
    return ""


def fill(state: Path) -> Path:
    """Write a file until there is no room; return it."""
    file = state / "somebody elses"
    with file.open("wb", buffering=0) as much:
        try:
            while True:
                much.write(b"x" * 512)
        except OSError:
            return file


def main(root: Path) -> None:
    state = root / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", state], check=True)
    world = World(root)
    world.declare()
    world.processed(3)
    world.ran()
    world.add_files(1)
    os.environ.update(world.environment)
    results: dict[str, dict[str, str]] = {}
    before = world.tree()
    filled = fill(state)
    results["full"] = {" ".join(command): ended(command) for command in (*READING, *WRITING)}
    filled.unlink()
    results["left"] = dict.fromkeys(sorted({*world.tree()} ^ {*before}), "")
    subprocess.run(["mount", "-o", "remount,ro", state], check=True)
    results["read-only"] = {" ".join(command): ended(command) for command in (*READING, *WRITING)}
    subprocess.run(["mount", "-o", "remount,rw", state], check=True)
    results["again"] = {" ".join(command): ended(command) for command in (*READING, WRITING[0])}
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
