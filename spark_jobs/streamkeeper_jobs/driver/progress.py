"""Progress of a running flow: in its heartbeat at every look, in the log once a batch or once a minute, and
the numbers of recent batches in a file every few seconds.

The log gets a line at the rarer of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import CHANGELOG
from streamkeeper.declare.model import Source
from streamkeeper.delta.history import Skipped, require_history, skipped
from streamkeeper.errors import CheckpointError, SourceError, StorageError
from streamkeeper.flows.generations import Start
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.sources.delta.start import path_of
from streamkeeper.watch.batch_numbers import KEPT, UI, Batch, Ends, Machinery, Numbers, keep, recent
from streamkeeper.watch.expectations import Shares
from streamkeeper_jobs.driver.connections import Connections, has_begun
from streamkeeper_jobs.sinks.expectations import counts_of
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.executors import Executors

LINE_SECONDS = 60.0
KEEP_SECONDS = 5.0
"""Least seconds between two writes of the numbers of recent batches; more where a heartbeat takes longer."""
_OF_OPERATORS = (
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "memoryUsedBytes",
    "commitTimeMs",
    "numShufflePartitions",
    "customMetrics",
)
"""Numbers of Spark's ``StateOperatorProgress`` that are kept of the last batch, some 3 kB with RocksDB."""


class Progress:
    """Follows one run of one query."""

    def __init__(self, job: Job, start: Start, operators: tuple[str, ...]) -> None:
        self._job, self._start, self._operators = job, start, operators
        self._batch: int | None = None
        self._triggers = self._rows = self._batches = 0
        self._numbers, self._recent = Numbers(), list(_earlier_batches(job))
        self._printed_at: float | None = None
        self._written_at, self._has_unwritten = float("-inf"), False
        self._ran_on: Machinery | None = None
        self._cluster, self._cluster_read_at = (0, 0, 0), float("-inf")
        self._ui = job.spark.sparkContext.uiWebUrl
        self._executors = Executors(job.spark, job.settings.executors_timeout)
        self._connections = Connections(job)
        self._shares = Shares(job.home, job.flow.declaration.expectations, start.number)
        self._record(self._shares.end_undeclared)

    def look(self, query: StreamingQuery) -> None:
        """Record what the query has done since the last look.

        :raises ExecutorsGone: nobody computes its batch.
        :raises SourceError: a source gives it no more rows.
        """
        self._executors.look(bool(query.status["isTriggerActive"]))
        self._connections.look(query)
        progress = query.lastProgress
        if progress is not None and _ran(progress) and progress["batchId"] != self._batch:
            fresh = self._batches == 0
            for done in self._since(query, progress):
                self._batch = int(done["batchId"])
                self._batches += 1
                self._rows += int(done["numInputRows"])
                self._triggers += 1
                counts = counts_of(self._job.flow.declaration, done)
                commits, rows = self._skipped(self._batch)
                self._note(
                    replace(
                        Batch.from_progress(done),
                        expectations=counts,
                        skipped_commits=commits,
                        skipped_rows=rows,
                        ties=self._job.ties.pop(self._batch, 0),
                    )
                )
                self._ran_on = self._machinery(done)
                if counts:
                    self._record(partial(self._shares.add, self._batch, counts))
            if fresh:
                self._cross_check()
            self._line(query)
        elif self._is_idle(query):
            self._triggers += 1
            if self._batch is None and progress is not None:
                self._batch = self._committed_before(int(progress["batchId"]))
            self._numbers = replace(self._numbers, idle=True)
        numbers = self._numbers
        details = {"operators": list(self._operators), UI: self._ui, **numbers.as_details()}
        self._job.watch.tell(
            batch=self._batch, triggers=self._triggers, rows=numbers.totals.rows, details=details
        )
        self._keep()

    def _skipped(self, batch: int) -> tuple[int, int]:
        """Note what a batch passed over in sources that skip commits which change rows; return how many
        commits, and how many rows were added or changed in them at most.
        """
        commits = rows = 0
        for source in (item for item in self._job.sources if item.option("skipChangeCommits") == "true"):
            name = self._job.flow.full_name
            try:
                passed = self._skipped_in(source, batch)
            except (StorageError, SourceError, CheckpointError) as error:  # the batch is no worse for it
                say(f"{name}: what batch {batch} skipped in {source.name} is not known: {error}")
                continue
            if passed is None:
                continue
            first, last, number = passed.versions[0], passed.versions[-1], self._start.number
            text = (
                f"the source {source.name} skipped {passed}, as declared; backfill with read history,"
                f" from_version {first} and to_version {last} brings these rows"
            )
            say(f"{name}: {text}.")
            occasion = [number, source.name, batch]
            events.note(self._job.home, Kind.SKIPPED, text, occasion, by="driver", generation=number)
            commits, rows = commits + len(passed.versions), rows + (passed.rows or 0)
        return commits, rows

    def _skipped_in(self, source: Source, batch: int) -> Skipped | None:
        checkpoint = Checkpoint(self._job.home.storage, self._start.checkpoint)
        before = batch - 1 in checkpoint.offset_batches()
        start = checkpoint.offsets(batch - 1).sources.get(source.name) if before else None
        end = checkpoint.offsets(batch).sources.get(source.name)
        if start is None or end is None or start == end:
            return None
        return skipped(require_history(path_of(source), source.name), start, end)

    def _note(self, batch: Batch) -> None:
        self._numbers = Numbers(batch, self._numbers.totals.plus(batch.as_totals()))
        self._recent = [*self._recent, batch][-KEPT:]
        self._has_unwritten = True
        if self._numbers.totals.batches == 1:
            self._tell_first(batch)

    def _tell_first(self, batch: Batch) -> None:
        """Note the first batch of this driver among the events of the pipeline."""
        epoch, number = self._job.lease.epoch, self._start.number
        text = f"first batch of epoch {epoch}: batch {batch.number} of generation {number}, {batch.rows} rows"
        events.note(self._job.home, Kind.COMMITTED, text, epoch, by="driver", generation=number, epoch=epoch)

    def _machinery(self, done: Mapping[str, Any]) -> Machinery:
        """Return what a batch ran on."""
        spark = self._job.spark
        if time.monotonic() - self._cluster_read_at >= LINE_SECONDS:  # each number is a call of the JVM
            cores = int(spark.sparkContext.defaultParallelism)
            self._cluster = cores, self._executors.count(), self._executors.memory()
            self._cluster_read_at = time.monotonic()
        cores, executors, memory = self._cluster
        return Machinery(
            int(done["batchId"]),
            cores,
            executors,
            spark.conf.get(CHANGELOG, "false") == "true",
            memory,
            [{name: one[name] for name in _OF_OPERATORS} for one in done["stateOperators"]],
        )

    def _keep(self) -> None:
        """Write the numbers of recent batches, unless that was done a moment ago."""
        if time.monotonic() - self._written_at >= max(KEEP_SECONDS, self._job.settings.look_interval):
            self.keep_all()

    def keep_all(self) -> None:
        """Write the numbers of recent batches, if there are new ones."""
        if not self._has_unwritten:
            return
        self._written_at = time.monotonic()
        try:
            keep(self._job.home, self._recent, self._ran_on, self._ends())
        except StorageError:  # the heartbeat finds out, and says so
            return
        self._has_unwritten = False

    def _ends(self) -> Ends | None:
        """Read up to where the last batch has read; None where the checkpoint does not tell."""
        if self._batch is None:
            return None
        checkpoint = Checkpoint(self._job.home.storage, self._start.checkpoint)
        try:
            return Ends(self._start.number, self._batch, checkpoint.offsets(self._batch).sources)
        except CheckpointError:  # the next start finds out, and says so
            return None

    def _record(self, record: Callable[[], None]) -> None:
        """Record alerts, or say why not: a batch is no worse for it, and the next one tries again."""
        try:
            record()
        except StorageError as error:
            say(f"An alert about an expectation could not be recorded: {error}")

    def _since(self, query: StreamingQuery, newest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the batches since the last look: small ones may have passed between two looks."""
        if self._batch is not None and newest["batchId"] == self._batch + 1:
            return [newest]
        after = -1 if self._batch is None else self._batch
        return [one for one in query.recentProgress if _ran(one) and after < one["batchId"]]

    def _committed_before(self, batch: int) -> int | None:
        """Return the batch before one if this generation committed it; its seed is no batch of its own."""
        first = 0 if self._start.seed_batch is None else self._start.seed_batch + 1
        return batch - 1 if batch - 1 >= first else None

    def _is_idle(self, query: StreamingQuery) -> bool:
        """Return whether the query has looked for data, found none, and waits: its last trigger succeeded."""
        status = query.status
        return not status["isTriggerActive"] and has_begun(query)

    def _line(self, query: StreamingQuery) -> None:
        now = time.monotonic()
        if self._printed_at is not None and now - self._printed_at < LINE_SECONDS:
            return
        done = (
            f"batch {self._batch}, {self._rows} rows in {self._batches}"
            f" {'batch' if self._batches == 1 else 'batches'}"
        )
        say(f"{self._job.flow.full_name}: generation {self._start.number}, {done}.")
        self._printed_at, self._rows, self._batches = now, 0, 0

    def _cross_check(self) -> None:
        """Compare the plan's stateful operators with the checkpoint's state.

        A difference is a defect of Streamkeeper, and must be visible.
        """
        has_state = bool(self._job.home.storage.names(f"{self._start.checkpoint}/state"))
        if has_state != bool(self._operators):
            say(
                f"Please report this: the plan of {self._job.flow.full_name} seems to keep"
                f" {', '.join(self._operators) or 'no state'}, but its checkpoint has"
                f" {'some' if has_state else 'none'}."
            )


def _earlier_batches(job: Job) -> tuple[Batch, ...]:
    """Return the batches that earlier drivers kept; none from a damaged file, which this one replaces."""
    try:
        return recent(job.home)
    except StorageError as error:
        say(f"Numbers of earlier batches are lost: {error}")
        return ()


def _ran(progress: Mapping[str, Any]) -> bool:
    """Return whether a progress belongs to a batch that ran.

    A query that finds nothing new reports the batch that would be the next.
    """
    return "addBatch" in progress["durationMs"]
