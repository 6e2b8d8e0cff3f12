"""The steps of a full refresh beside, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamkeeper_jobs.recover import full_refresh_beside

from tests.oracle import first_per
from tests.worlds.flow_world import Flowbed
from tests.worlds.tables.backup_world import Recoverer

KIND, NAME = "full_refresh_beside", "r-00000001"

DONE = ("verify_tables", "release", "remove_beside")


def steps(at_work: Recoverer, *names: str) -> dict[str, Any]:
    return {name: at_work.step(NAME, name) for name in names}


def after_round(number: int, act: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Let something happen after a round of reading beside."""
    real, rounds = full_refresh_beside.read_what_is_there, iter(range(1, 100))

    def read(*arguments: Any) -> int:
        found = real(*arguments)
        if next(rounds) == number:
            act()
        return found

    patch.setattr(full_refresh_beside, "read_what_is_there", read)


def distinct(bed: Flowbed, above: int = 0) -> list[dict[str, Any]]:
    return [event for event in first_per(bed.events, ["event_id"]) if event["n"] > above]
