"""A rebuild of state from history in bounded steps, each one batch of the new query without output.

Spark replays the batch that its checkpoint has planned and not committed, one at each start. So the ends of
the steps are written as the offsets of batch 0, 1, 2, …, and the query is started once for each. If a driver
is killed, the next one copies the new checkpoint up to its last commit and continues there, in a folder of
its own: a driver that was only believed dead then disturbs nothing. It does so only for the same query, the
same history and the same steps.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry, write_offsets
from streamkeeper.errors import CheckpointError
from streamkeeper.flows.generations import Generation
from streamkeeper.observe.status import REBUILDING
from streamkeeper.storage import read_json, to_json
from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.ledger_note import note_in_ledger

LEDGER_SECONDS = 10.0
"""Seconds between two ledger entries on a rebuild's progress, at least; its end is always entered."""
LEDGER_SHARE = 0.05
"""Share of the elapsed time that must also pass before the next ledger entry.

A rebuild that takes days then needs no thousands of files.
"""


@dataclass(frozen=True)
class Step:
    """One batch of a replay: the position of each source after it, and its watermark; None for the one that
    the steps before it give.

    ``as_history`` says whether the sources are read with the options that limit them to the flow's history;
    ``timestamp_ms`` is when it ran, by which processing time is told, if it is a batch of old.
    """

    positions: Mapping[str, Any]
    watermark_ms: int | None
    as_history: bool = True
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Replay:
    """The steps of a replay into a new checkpoint.

    ``entry`` is the offset header that all steps share; ``made_of`` distinguishes this history from others.
    ``run`` starts the query for the planned step, and returns how many rows it read.
    """

    folder: str
    generation: Generation
    steps: tuple[Step, ...]
    entry: OffsetEntry
    made_of: str
    run: Callable[[Step], int]

    @property
    def mark(self) -> str:
        """Digest that two replays share if one can continue where the other was interrupted."""
        same = [
            [asdict(step) for step in self.steps],
            sorted(self.entry.conf.items()),
            self.generation.query_id,
            self.made_of,
        ]
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


def carry_out(job: Job, replay: Replay) -> None:
    """Run all steps, from where an earlier driver of this generation was interrupted.

    :raises Stopped: an order ended it; another driver continues after the last completed step.
    """
    several = len(replay.steps) > 1
    done, rows = _taken_over(job, replay) if several else (0, 0)
    progress = _Progress(job, replay, rows)
    if several:
        progress.mark(done)
    for batch in range(done, len(replay.steps)):
        job.watch.obey()
        step = replay.steps[batch]
        entry = replace(
            replay.entry,
            batch=batch,
            sources=dict(step.positions),
            watermark_ms=_watermark(job, replay, batch),
            timestamp_ms=replay.entry.timestamp_ms if step.timestamp_ms is None else step.timestamp_ms,
        )
        job.home.storage.overwrite(f"{replay.folder}/offsets/{batch}", write_offsets(entry))
        read = replay.run(step)
        if several:
            progress.tell(batch, read)


def _watermark(job: Job, replay: Replay, batch: int) -> int:
    watermark_ms = replay.steps[batch].watermark_ms
    if watermark_ms is not None or not batch:
        return watermark_ms or 0
    return Checkpoint(job.home.storage, replay.folder).commit(batch - 1).next_watermark_ms


class _Progress:
    """Reports the progress of a replay: to heartbeat and log at each step, to the ledger less often."""

    def __init__(self, job: Job, replay: Replay, rows: int) -> None:
        self._job, self._replay, self._rows = job, replay, rows
        self._began = self._noted = time.monotonic()

    def mark(self, done: int) -> None:
        """Write what a succeeding driver needs to continue, and send a heartbeat."""
        home, generation = self._job.home, self._replay.generation
        mark = {
            "mark": self._replay.mark,
            "fingerprint": self._job.flow.fingerprint,
            "folder": self._replay.folder,
            "rows": self._rows,
        }
        home.storage.overwrite(home.replay(generation.number, self._job.lease.epoch), to_json(mark))
        self._job.watch.tell(phase=REBUILDING, details={"rebuild": self._numbers(done)})

    def tell(self, batch: int, rows: int) -> None:
        """Report a completed step."""
        self._rows += rows
        done, steps = batch + 1, len(self._replay.steps)
        self.mark(done)
        say(
            f"{self._job.flow.full_name}: state rebuilt by {done} of {steps} steps ({done * 100 // steps} %),"
            f" {self._rows} rows so far."
        )
        now = time.monotonic()
        if done == steps or now - self._noted >= max(LEDGER_SECONDS, (now - self._began) * LEDGER_SHARE):
            self._noted = now
            note_in_ledger(
                self._job.home, self._replay.generation.recovery, "driver.rebuilding", self._numbers(done)
            )

    def _numbers(self, done: int) -> dict[str, int]:
        return {
            "step": done,
            "of": len(self._replay.steps),
            "rows": self._rows,
            "epoch": self._job.lease.epoch,
        }


def _taken_over(job: Job, replay: Replay) -> tuple[int, int]:
    """Copy the replay of an earlier driver; return how many steps are done and how many rows they read."""
    home, generation = job.home, replay.generation
    for epoch in reversed(home.replays(generation.number)):
        mark = read_json(home.storage, home.replay(generation.number, epoch)) or {}
        if (
            epoch >= job.lease.epoch
            or mark.get("mark") != replay.mark
            or mark.get("fingerprint") != job.flow.fingerprint
        ):
            continue
        earlier = Checkpoint(home.storage, str(mark["folder"]))
        try:
            last = earlier.last_commit()
            if last is None or last >= len(replay.steps):
                continue
            copy_checkpoint(earlier, last, replay.folder, generation.query_id, job.watch.obey, sources=False)
        except CheckpointError as error:
            say(f"The state that the driver of epoch {epoch} rebuilt cannot be used: {error}")
            home.storage.remove(f"{replay.folder}/state")
            home.storage.remove(f"{replay.folder}/commits")
            home.storage.remove(f"{replay.folder}/offsets")
            continue
        pin_state_partitions(job.spark, Checkpoint(home.storage, replay.folder))
        say(
            f"{job.flow.full_name}: the driver of epoch {epoch} completed {last + 1} of {len(replay.steps)}"
            " steps; this one continues."
        )
        return last + 1, int(mark.get("rows", 0))
    return 0, 0
