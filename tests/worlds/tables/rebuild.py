"""The steps of a rebuild without downtime, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamkeeper_jobs.recover import rebuild_without_downtime

from tests.oracle import first_per
from tests.worlds.flow_world import Flowbed
from tests.worlds.tables.backup_world import Recoverer

KIND, NAME = "rebuild_without_downtime", "r-00000001"

DONE = ("verify_tables", "release", "remove_side_table")


def steps(at_work: Recoverer, *names: str) -> dict[str, Any]:
    return {name: at_work.step(NAME, name) for name in names}


def after_round(number: int, act: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Let something happen after a round of reading beside."""
    real, rounds = rebuild_without_downtime.read_what_is_there, iter(range(1, 100))

    def read(*arguments: Any) -> int:
        found = real(*arguments)
        if next(rounds) == number:
            act()
        return found

    patch.setattr(rebuild_without_downtime, "read_what_is_there", read)


def distinct(bed: Flowbed, above: int = 0) -> list[dict[str, Any]]:
    return [event for event in first_per(bed.events, ["event_id"]) if event["n"] > above]
