"""Checkpoint of an adopted query, read as if it were one of a flow's, and never changed.

Spark identifies the sources of such a query by their order: ``0``, ``1``, … in offset log v1, and in v2 if
they have no names. A flow's sources have names. Here each source is found under the flow's name for it, and
the offset log is returned as v2 with these names. So a copy of it, file by file, is a checkpoint from which
the flow's query continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamkeeper.checkpoint import Checkpoint, write_offsets
from streamkeeper.checkpoint.log_entries import EVOLUTION, PARTITIONS, parse_offsets
from streamkeeper.delta.log import Transactions
from streamkeeper.errors import CheckpointError
from streamkeeper.flows.generations import EARLIEST, REBUILT, Generation, Start, StartAt
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage


@dataclass(frozen=True)
class AdoptedCheckpoint(Checkpoint):
    """Checkpoint whose sources have other names here; ``names_by_key`` maps its own names to the flow's."""

    names_by_key: Mapping[str, str] = field(default_factory=dict)

    def name(self, name: str = "") -> str:
        folder, _, subpath = name.partition("/")
        source, slash, below = subpath.partition("/")
        if folder == "sources" and source:
            return super().name(f"sources/{self._key(source)}{slash}{below}")
        return super().name(name)

    def read(self, name: str) -> bytes:
        """Read a file of the checkpoint, of the offset log as v2, with the flow's names of the sources."""
        content = super().read(name)
        if not name.startswith("offsets/"):
            return content
        entry = parse_offsets(content, int(name.removeprefix("offsets/")), self.path(name))
        # v2 does not pin the partitions (the state's own metadata do), and one batch with them beside one
        # without would stop a restart.
        conf = {setting: value for setting, value in entry.conf.items() if setting != PARTITIONS}
        sources = {self.names_by_key.get(key, key): offset for key, offset in entry.sources.items()}
        named = replace(
            entry,
            version=2,
            sources=sources,
            conf={**conf, EVOLUTION: "true"},
            header={"sourceMetadataInfo": {}},
        )
        return write_offsets(named)

    def sources(self) -> tuple[str, ...]:
        return tuple(self.names_by_key.get(key, key) for key in super().sources())

    def _key(self, name: str) -> str:
        return next((key for key, source_name in self.names_by_key.items() if source_name == name), name)


def normal_place(place: str) -> str:
    """Return a checkpoint's path or URL without ``file:`` and a last ``/``, with ``s3://`` for ``s3a://``."""
    plain = place.strip()
    if plain.startswith("file:"):
        plain = "/" + plain.removeprefix("file:").lstrip("/")
    if "://" in plain:
        return plain.replace("s3a://", "s3://", 1).rstrip("/")
    return str(Path(plain).resolve()) if plain.startswith("/") else plain


def open_adopted(start: StartAt) -> AdoptedCheckpoint:
    """Return the checkpoint that a generation adopts, by its decision.

    :raises CheckpointError: it is missing now, or belongs to another query.
    """
    assert start.checkpoint is not None and start.query_id is not None, "a decision to adopt says what"
    checkpoint = AdoptedCheckpoint(open_storage(start.checkpoint), "", start.sources or {})
    checkpoint.require()
    query_id = checkpoint.query_id()
    if query_id != start.query_id:
        raise CheckpointError(
            f"The checkpoint at {start.checkpoint} is of the query {query_id} now; it was of {start.query_id}"
            " when its adoption was decided. Nothing was copied. Restore that checkpoint, or plan the"
            " adoption of this one."
        )
    return checkpoint


def open_allowed(settings: Settings, start: StartAt) -> AdoptedCheckpoint:
    """Return the checkpoint that a generation adopts, if it may be read still: a link or the setting may have
    changed since the plan was made.

    :raises CheckpointError: as :func:`open_adopted`; or it lies in no folder that may be read.
    """
    refused = settings.why_outside(str(start.checkpoint))
    if refused is not None:
        raise CheckpointError(f"The checkpoint {refused} Nothing was copied.")
    return open_adopted(start)


def standing_of(
    checkpoint: Checkpoint, query_id: str, last_commit: int | None, sink: Transactions
) -> CommittedPosition:
    """Return the position of an adopted query, as of a generation 0.

    If the table's log does not know the query, the table's content is unknown, and the checkpoint counts.
    """
    nobody = Generation(0, None, StartAt(EARLIEST), REBUILT, query_id, "none of ours", "someone", "", "")
    start = Start(0, checkpoint.path(), None, {}, {}, (), None, 0, "")
    sink_known = sink.complete and sink.version is not None
    return CommittedPosition(
        nobody, start, checkpoint, last_commit, sink.version, sink.fenced, sink_known=sink_known
    )
