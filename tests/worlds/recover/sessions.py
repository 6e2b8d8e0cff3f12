"""Sessions of recoveries for their pages: a command, played by the command line, and what it prints. A flow
reads files of orders, has committed three batches, and has two files still to read. An adoption reads the
checkpoint of a job that ended.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from typer.testing import CliRunner

from streamkeeper.cli import running
from streamkeeper.cli.commands import app
from streamkeeper.cli.recovery_session import Session
from streamkeeper.exit_codes import Outcome
from tests.worlds.recover.old_checkpoints import old_job
from tests.worlds.recover.recoveries import drive
from tests.worlds.small_world import EVENTS, World, write_manifest

OLD_JOB = "/srv/jobs/orders/checkpoint"
ORDERS = EVENTS.replace("clean_events", "orders_flow").replace("events", "orders")
SESSIONS = {
    "reset": "plan reset_checkpoint --flow orders.orders_flow",
    "reset-earliest": "plan reset_checkpoint --flow orders.orders_flow --start earliest",
    "reset-carried-out": "recover reset_checkpoint --flow orders.orders_flow --yes",
    "rewind": "plan rewind --flow orders.orders_flow --batch 0 --target restored",
    "full-refresh": "plan full_refresh --table orders.orders",
    "rebuild": "plan rebuild_without_downtime --table orders.orders",
    "backup": "plan backup_table --table orders.orders",
    "restore": "plan restore_table --table orders.orders --version 1",
    "backfill": "plan backfill --flow orders.orders_flow --read history",
    "adopt": f"plan adopt --flow orders.orders_flow --checkpoint {OLD_JOB} --old-job-is-stopped",
}
"""Arguments of ``streamkeeper``, by the name of a session."""


def printed(name: str) -> str:
    """Return a command with what it prints: of a plan all but the steps, which are the same for each plan of
    a kind; of a recovery what follows its plan.
    """
    command = SESSIONS[name]
    with _orders(adopts=name == "adopt") as world:
        old = str(world.root / "old job")
        done = CliRunner().invoke(
            app, [old if word == OLD_JOB else word for word in shlex.split(command)], catch_exceptions=False
        )
        text = done.stdout.replace(old, OLD_JOB).replace(str(world.root), "/srv/streamkeeper")
    if command.startswith("plan "):
        text = text.partition("\n  steps\n")[0]
    else:
        text = text[text.index("\nrecovery ") + 1 :].rstrip()
    # The checkpoint names files of the temporary folder, whose length is not the page's.
    text = re.sub(r"\d+ B(?=, rows not counted, from /srv/jobs)", "640 B", text)
    text = re.sub(r"-cli-[0-9a-f]{12}-[0-9a-f]{8}\b", "-cli-1f2e3d4c5b6a-0a1b2c3d", text)
    text = re.sub(r"(?<=__rebuild_)[0-9a-f]{8}\b", "0a1b2c3d", text)
    return f"```text\n$ streamkeeper {command}\n{text}\n```"


@contextmanager
def _orders(adopts: bool) -> Iterator[World]:
    with TemporaryDirectory() as folder:
        source = {"source": "orders_raw", "folder": "orders"}
        world = World(Path(folder), name="orders_flow", table="orders", pipeline="orders", **source)
        world.declare(ORDERS, "orders.py")
        write_manifest(world.settings)
        (world.root / "data" / "orders").mkdir(parents=True)
        if adopts:
            ended = time.time() - 3 * 3600
            os.utime(old_job(world) / "commits" / "2", (ended, ended))
        else:
            world.processed(3)
        world.add_files(2)

        def driver(*_: object) -> Outcome:
            drive(world.home)
            return Outcome.STOPPED

        with (
            patch.dict(os.environ, {**world.environment, "LOGNAME": "ada"}),
            # Spark tries an adoption after its plan, and runs drivers, whose own lines no page shows.
            patch.object(Session, "dry_run", return_value={}),
            patch.object(running, "drive", driver),
        ):
            yield world
