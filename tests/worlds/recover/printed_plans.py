"""Plans as the terminal prints them, for the pages of recoveries: of a flow that reads files of orders, has
committed three batches, and has two files still to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from streamkeeper.recover.plans import explain
from tests.worlds.recover.recoveries import planned
from tests.worlds.small_world import World

FLOW, TABLE = {"flow": "events.clean_events"}, {"table": "events.events"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "reset": ("reset_checkpoint", {"flows": ["events.clean_events"]}),
    "reset-earliest": ("reset_checkpoint", {"flows": ["events.clean_events"], "start": "earliest"}),
    "rewind": ("rewind", {**FLOW, "batch": "0", "target": "restored"}),
    "full-refresh": ("full_refresh", TABLE),
    "rebuild": ("rebuild_without_downtime", TABLE),
    "backup": ("backup_table", TABLE),
    "restore": ("restore_table", {**TABLE, "version": 1}),
    "backfill": ("backfill", FLOW),
}
"""What is asked for, by the name of a plan."""


def printed(name: str) -> str:
    """Return a plan without its steps, which are the same for each plan of a kind."""
    kind, values = ASKED[name]
    with _orders() as world:
        text = explain.as_text(planned(world, kind, "r1", **values))
        text = text.replace(str(world.root), "/srv/streamkeeper").partition("\n  steps\n")[0]
    for old, new in (("clean_events", "orders_flow"), ("events", "orders")):
        text = re.sub(rf"\b{old}|(?<=_){old}", new, text)
    return f"```text\n{text}\n```"


@contextmanager
def _orders() -> Iterator[World]:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.declare()
        (world.root / "data" / "events").mkdir(parents=True)
        world.processed(3)
        world.add_files(2)
        yield world
