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
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.position import last_begun
from streamkeeper.manifest.manifest import Flow
from streamkeeper.sources.base.format import Waiting
from streamkeeper.sources.formats import format_of


def what_waits(home: FlowHome, flow: Flow) -> Waiting:
    """Return whether a flow has anything to read.

    :param flow: with its sources opened (:mod:`streamkeeper.manifest.environment`).
    :raises CheckpointError: its checkpoint's newest entries cannot be read.
    :raises StorageError: a source's folder cannot be listed.
    """
    begun = last_begun(home)
    checkpoint = Checkpoint(home.storage, begun[1].checkpoint) if begun else None
    ends: dict[str, Any] = {}
    said: list[str] = []
    if checkpoint is not None:
        planned, last = checkpoint.offset_batches(), checkpoint.last_commit()
        if planned and (last is None or planned[-1] > last):
            return Waiting(True, f"batch {planned[-1]} is planned and not committed")
        ends = checkpoint.offsets(last).sources if last is not None else {}
    for index, source in enumerate(flow.pipeline.sources_of(flow.declaration)):
        # Version 1 of the offset log has no names.
        key = source.name if source.name in ends or str(index) not in ends else str(index)
        found = _waits_in(source, checkpoint, key, ends.get(key))
        if found.there:
            return found
        said.append(found.said)
    return Waiting(False, "; ".join(filter(None, said)))


def _waits_in(source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
    misfit = misfit_of(source.format, end)
    if misfit is not None:
        return Waiting(
            True,
            f"the source {source.name} was another kind of source at the last commit, so the flow cannot"
            f" continue: {misfit}",
        )
    return format_of(source).waiting(source, checkpoint, key, end)
