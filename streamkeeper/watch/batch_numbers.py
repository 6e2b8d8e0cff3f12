"""Numbers of the batches of a driver: those of the last one in its heartbeat, those of recent ones in a file.

They are Spark's own (``StreamingQueryProgress``), so that nobody who looks at a flow needs its driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.history.rows import Totals
from streamkeeper.storage import read_record, to_json
from streamkeeper.support.json_values import read_as

KEPT = 60
"""Recent batches that are kept: some 15 kB."""
BATCH, TOTALS, IDLE = "batch", "totals", "idle"
"""Names of the numbers in the details of a heartbeat."""
UI = "ui"
"""Name, in the details of a heartbeat, of the address of Spark's own UI; None where it is off."""


@dataclass(frozen=True)
class Batch:
    """Numbers of one batch.

    ``at`` is when it began, and ``watermark`` the watermark that it had, both in seconds since 1970;
    ``seconds`` is how long it took, ``phases`` how long each of its parts, by Spark's names. ``rows_out`` is
    None where the sink does not tell. ``state_rows`` and ``state_bytes`` are those of all stateful operators
    after it, ``operators`` the same of each, by its place in the query and its name. ``late`` are the rows
    that they dropped as later than the watermark. ``expectations`` are the rows that passed and that failed,
    by name. ``skipped_commits``, ``skipped_rows`` and ``ties`` are as in
    :class:`streamkeeper.history.rows.Totals`.
    """

    number: int
    at: float
    seconds: float
    rows: int
    rows_out: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late: int = 0
    watermark: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    expectations: Mapping[str, Sequence[int]] = field(default_factory=dict)
    operators: Mapping[str, Sequence[int]] = field(default_factory=dict)
    skipped_commits: int = 0
    skipped_rows: int = 0
    ties: int = 0

    def as_totals(self) -> Totals:
        """Return the sums over this batch alone."""
        return Totals(
            1,
            self.rows,
            self.seconds,
            self.late,
            self.rows_out,
            dict(self.phases),
            dict(self.expectations),
            self.skipped_commits,
            self.skipped_rows,
            self.ties,
        )

    @classmethod
    def from_progress(cls, progress: Mapping[str, Any]) -> Batch:
        """Return the numbers of a batch from Spark's ``StreamingQueryProgress``, as its JSON names them."""
        phases = {name: ms / 1000 for name, ms in progress["durationMs"].items()}
        operators = progress["stateOperators"]
        out = progress["sink"]["numOutputRows"]
        return cls(
            number=int(progress["batchId"]),
            at=_seconds(progress["timestamp"]) or 0.0,
            seconds=phases.pop("triggerExecution", progress["batchDuration"] / 1000),
            rows=int(progress["numInputRows"]),
            rows_out=None if out is None or out < 0 else int(out),
            state_rows=sum(int(one["numRowsTotal"]) for one in operators),
            state_bytes=sum(int(one["memoryUsedBytes"]) for one in operators),
            late=sum(int(one["numRowsDroppedByWatermark"]) for one in operators),
            watermark=_seconds((progress["eventTime"] or {}).get("watermark")),
            phases=phases,
            operators={
                f"{place} {one['operatorName']}": [int(one["numRowsTotal"]), int(one["memoryUsedBytes"])]
                for place, one in enumerate(operators)
            },
        )


@dataclass(frozen=True)
class Numbers:
    """What a heartbeat tells of batches; ``totals`` are sums over the batches of the present driver, ``idle``
    is whether the last trigger found nothing to read.
    """

    batch: Batch | None = None
    totals: Totals = field(default_factory=Totals)
    idle: bool = False

    def as_details(self) -> dict[str, Any]:
        """Return the numbers as details of a heartbeat."""
        batch = None if self.batch is None else asdict(self.batch)
        return {BATCH: batch, TOTALS: asdict(self.totals), IDLE: self.idle}


def told_by(beat: Heartbeat | None) -> Numbers:
    """Return the numbers of a heartbeat; a driver that has only begun has none yet."""
    details = {} if beat is None else beat.details
    batch = details.get(BATCH)
    try:
        return Numbers(
            None if batch is None else read_as(Batch, batch),
            read_as(Totals, details.get(TOTALS) or {}),
            bool(details.get(IDLE)),
        )
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"The heartbeat of epoch {beat.epoch if beat else '?'} has other numbers of batches: {error}. Its"
            " driver writes them again; if none runs, remove the newest file in the flow's heartbeats/."
        ) from error


@dataclass(frozen=True)
class Machinery:
    """What a driver's last batch ran on, and what its state cost there.

    ``cores``, ``executors`` and ``memory`` are the cluster's, the last in bytes as Spark gives it to
    computations and storage (some 60 % of the heap), 0 where it is unknown. ``changelog`` is whether RocksDB
    would write a changelog. ``operators`` are the stateful operators of the batch, as Spark's
    ``StateOperatorProgress`` names their numbers.
    """

    batch: int
    cores: int
    executors: int
    changelog: bool = False
    memory: int = 0
    operators: Sequence[Mapping[str, Any]] = ()

    @property
    def rocksdb(self) -> bool:
        """Whether RocksDB keeps the state: it has numbers of its own."""
        metric_names = (name for one in self.operators for name in one.get("customMetrics") or {})
        return any(name.startswith("rocksdb") for name in metric_names)


@dataclass(frozen=True)
class Ends:
    """Offsets by source at the end of the last batch of a generation, which a plan goes by where the
    checkpoint has lost them (:func:`streamkeeper.observe.position.recorded_ends`).
    """

    generation: int
    batch: int
    sources: Mapping[str, Any]


@dataclass(frozen=True)
class _Recent:
    """Content of ``recent.json``: ``machinery`` of the last batch, ``ends`` up to where it has read."""

    batches: tuple[Batch, ...]
    machinery: Machinery | None = None
    ends: Ends | None = None


def keep(
    home: FlowHome, batches: Sequence[Batch], machinery: Machinery | None = None, ends: Ends | None = None
) -> None:
    """Write the newest of some batches over those that are kept."""
    recent_batches = _Recent(tuple(batches[-KEPT:]), machinery, ends)
    home.storage.overwrite(home.recent, to_json(asdict(recent_batches)))


def machinery(home: FlowHome) -> Machinery | None:
    """Return what the last batch ran on; None if no driver of this release has told.

    :raises StorageError: the file is damaged.
    """
    numbers = _read(home)
    return None if numbers is None else numbers.machinery


def recent(home: FlowHome) -> tuple[Batch, ...]:
    """Return recent batches, oldest first; empty if none was kept.

    :raises StorageError: the file is damaged.
    """
    numbers = _read(home)
    return () if numbers is None else numbers.batches


def _read(home: FlowHome) -> _Recent | None:
    way = "Remove it: a driver writes it again."
    return read_record(home.storage, home.recent, _Recent, "a list of batches", way)


def _seconds(moment: str | None) -> float | None:
    """Return a moment of Spark's, such as ``2026-01-01T00:00:00.000Z``, in seconds since 1970.

    Spark tells the beginning of time where there is no watermark yet: None.
    """
    seconds = datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() if moment else 0.0
    return seconds or None
