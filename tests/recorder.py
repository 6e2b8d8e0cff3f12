"""A program that stands in for ``spark-submit``: it writes down its arguments and its environment, and
ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One call of the program."""

    arguments: list[str]
    environment: dict[str, str]

    def option(self, name: str) -> str:
        """Return the value of an option of spark-submit's."""
        return self.arguments[self.arguments.index(name) + 1]

    @property
    def conf(self) -> dict[str, str]:
        """Spark's settings."""
        pairs = [self.arguments[at + 1] for at, argument in enumerate(self.arguments) if argument == "--conf"]
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


JARS = ("delta-spark_4.2_2.13-4.4.0.jar", "streamkeeper-jvm-0.jar")
"""Jars without which no job is started."""


def lay_jars(folder: Path) -> None:
    """Make a folder of jars as a host must have it; they are empty, as nobody loads them."""
    folder.mkdir(exist_ok=True)
    for name in JARS:
        (folder / name).touch()


class Recorder:
    """The program, and the calls of it.

    :param code: the exit code that it ends with, and says as spark-submit does of a pod's.
    """

    def __init__(self, program: Path, code: int = 0) -> None:
        self.program, self._kept = program, program.with_suffix(".calls")
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nwith open({str(self._kept)!r}, 'a') as kept:\n   "
            f" print(json.dumps([sys.argv[1:], dict(os.environ)]), file=kept)\nprint('Exit code: {code}')"
            f"\nsys.exit({code})\n"
        )
        program.chmod(0o755)

    @property
    def calls(self) -> list[Call]:
        """What it was called with so far."""
        return (
            [Call(*json.loads(line)) for line in self._kept.read_text().splitlines()]
            if self._kept.exists()
            else []
        )
