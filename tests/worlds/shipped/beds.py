"""Shipped pipelines in folders of their own, and recoveries of them as the commands carry them out."""

from __future__ import annotations

from typing import Any

from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import PROJECT
from tests.worlds.flow_world import Flowbed
from tests.worlds.tables.backup_world import Recoverer

PIPELINES = PROJECT / "spark_jobs" / "pipelines"


def shipped(name: str, **changed: tuple[str, str]) -> str:
    """Return the text of a shipped pipeline file, with changed options: ``subscribe=('"a"', '"b"')``."""
    text = (PIPELINES / f"{name}.py").read_text()
    for option, (old, new) in changed.items():
        assert text.count(f'"{option}": {old}') == 1, f"{name}.py has {option} {old}"
        text = text.replace(f'"{option}": {old}', f'"{option}": {new}')
    return text


def recover(bed: Flowbed, kind: str, **values: Any) -> None:
    """Plan a recovery and carry out its steps."""
    Recoverer.of(bed).run(kind, f"recovery-{len(bed.home.generations())}", **values)


def run(bed: Flowbed) -> None:
    """Run a driver until all that is there is done."""
    assert bed.run() is Outcome.STOPPED
