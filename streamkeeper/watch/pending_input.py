"""Pending input of a flow: data that its sources have and its last commit had not. No JVM, nothing is
changed.

Files: Spark reads the oldest first. So a file younger than all in the newest entries of the files log was
surely not read, and only such files are looked up in the whole log. A late file with an older time is not
found. That keeps the check cheap, and files that Spark ignores for their age (``maxFileAge``) cause no alert.
The rate source has rows as long as time passes.

Kafka: the brokers are asked, for some seconds at most. While they do not answer, no driver can read: that
counts as pending input. A Delta table's log shows whether commits with rows follow the position. A source
that became another kind under its old name cannot be read at all: that counts, too.
"""

from __future__ import annotations

from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.base.format import Waiting
from streamkeeper.sources.formats import format_of

DUTY = 50.0
"""Ratio of pause to listing: a flow's sources are listed for a fiftieth of the time at most."""
LOOK_SECONDS = 60.0
"""Seconds between two looks of the monitor."""


def pause_after(seconds: float) -> float:
    """Return the seconds without a listing after one that took so long; 0 if over by the next look."""
    return DUTY * seconds if DUTY * seconds > LOOK_SECONDS else 0.0


def what_waits(observed: Observed, flow: Flow) -> Waiting:
    """Return whether a flow has anything to read.

    :param flow: with its sources opened (:mod:`streamkeeper.manifest.environment`).
    :raises CheckpointError: its checkpoint's newest entries cannot be read.
    :raises StorageError: a source's folder cannot be listed.
    """
    checkpoint, last, descriptions = observed.checkpoint, observed.last_commit, []
    planned = checkpoint.offset_batches() if checkpoint is not None else []
    if planned and (last is None or planned[-1] > last):
        return Waiting(True, f"batch {planned[-1]} is planned and not committed")
    for source in flow.sources:
        waiting = _waits_in(source, checkpoint, observed.offsets.get(source.name))
        if waiting.pending:
            return waiting
        descriptions.append(waiting.description)
    return Waiting(False, "; ".join(filter(None, descriptions)))


def _waits_in(source: Source, checkpoint: Checkpoint | None, end: Any) -> Waiting:
    misfit = misfit_of(source.format, end)
    if misfit is not None:
        return Waiting(
            True,
            f"the source {source.name} was another kind of source at the last commit, so the flow cannot"
            f" continue: {misfit}",
        )
    return format_of(source).waiting(source, checkpoint, source.name, end)
