"""Plans as the terminal prints them, for the pages of recoveries: of a flow that reads files of orders, has
committed three batches, and has two files still to read. An adoption finds that of a job which ended.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from streamkeeper.recover.plans import explain
from tests.worlds.recover.old_checkpoints import old_job
from tests.worlds.recover.recoveries import planned
from tests.worlds.small_world import World, write_manifest

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
    "adopt": ("adopt", {**FLOW, "old_job_is_stopped": True}),
}
"""What is asked for, by the name of a plan."""


def printed(name: str) -> str:
    """Return a plan without its steps, which are the same for each plan of a kind."""
    kind, values = ASKED[name]
    with _orders(adopts=kind == "adopt") as world:
        job = {"checkpoint": str(world.root / "old job")} if kind == "adopt" else {}
        text = explain.as_text(planned(world, kind, "r1", **values, **job))
        text = text.replace(f"{world.root}/old job", "/srv/jobs/orders/checkpoint")
        text = text.replace(str(world.root), "/srv/streamkeeper").partition("\n  steps\n")[0]
    # The checkpoint names files of the temporary folder, whose length is not the page's.
    text = re.sub(r"\d+ B(?=, rows not counted, from /srv/jobs)", "640 B", text)
    for old, new in (("clean_events", "orders_flow"), ("events", "orders")):
        text = re.sub(rf"\b{old}|(?<=_){old}", new, text)
    return f"```text\n{text}\n```"


@contextmanager
def _orders(adopts: bool) -> Iterator[World]:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.declare()
        write_manifest(world.settings)
        (world.root / "data" / "events").mkdir(parents=True)
        if adopts:
            ended = time.time() - 3 * 3600
            os.utime(old_job(world) / "commits" / "2", (ended, ended))
        else:
            world.processed(3)
        world.add_files(2)
        yield world
