"""Numbers of a flow by minute, kept seven days.

{flow}/history/minutes/2026-11-23T22.json  samples of the monitor's looks in one hour (UTC)

A *sample* tells what was counted since the history began, over all drivers. A row is the difference of two
samples. So a look that comes late, twice or never counts nothing twice and loses nothing: the next row has
it. A file begins with the last sample before it, and can be read alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Protocol

from streamkeeper.errors import StorageError
from streamkeeper.storage import Storage, read_json
from streamkeeper.support.json_values import read_as

KEPT_HOURS = 7 * 24
"""Hours of which minutes are kept."""
_MINUTES = "minutes"
_COUNTS = ("batches", "rows", "late", "skipped_commits", "skipped_rows", "ties")
"""Fields of :class:`Totals` that are whole numbers, and always known."""


class Home(Protocol):
    """What is needed of a flow's home (:class:`streamkeeper.flows.files.FlowHome`)."""

    @property
    def storage(self) -> Storage:
        """The state storage."""

    def history(self, name: str) -> str:
        """A file or folder of the flow's history."""


@dataclass(frozen=True)
class Totals:
    """Sums over batches; ``seconds`` are those of the batches, ``phases`` those of their parts by Spark's
    names.

    ``rows_out`` is None where no sink told. ``expectations`` are the rows that passed and that failed, by
    name. ``skipped_commits`` of Delta sources were passed over (``skipChangeCommits``), with at most
    ``skipped_rows`` added or changed in them. ``ties`` are upserts that the sequence of AUTO CDC does not
    order.
    """

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    late: int = 0
    rows_out: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    expectations: Mapping[str, Sequence[int]] = field(default_factory=dict)
    skipped_commits: int = 0
    skipped_rows: int = 0
    ties: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return the sums over the batches of both."""
        return self._with(other, 1)

    def since(self, earlier: Totals) -> Totals:
        """Return the sums over the batches that came after earlier sums; none is below 0."""
        return self._with(earlier, -1)

    def _with(self, other: Totals, sign: int) -> Totals:
        counts: dict[str, Any] = {
            name: max(0, getattr(self, name) + sign * getattr(other, name)) for name in _COUNTS
        }
        is_told = self.rows_out is not None or other.rows_out is not None
        return Totals(
            **counts,
            seconds=_rounded(self.seconds + sign * other.seconds),
            rows_out=max(0, (self.rows_out or 0) + sign * (other.rows_out or 0)) if is_told else None,
            phases={
                name: _rounded(self.phases.get(name, 0.0) + sign * other.phases.get(name, 0.0))
                for name in {**self.phases, **other.phases}
            },
            expectations={
                name: [
                    max(0, mine + sign * theirs)
                    for mine, theirs in zip(
                        self.expectations.get(name, (0, 0)), other.expectations.get(name, (0, 0)), strict=True
                    )
                ]
                for name in {**self.expectations, **other.expectations}
            },
        )


@dataclass(frozen=True)
class Sample:
    """One look at a flow. ``at`` is when, in seconds since 1970 by the storage's clock.

    ``totals`` are those of the driver of ``epoch`` where it is handed to :func:`record`, and those of all
    drivers where it is kept. ``state`` is the flow's state in a word, ``watermark`` in seconds since 1970.
    """

    at: float
    epoch: int
    totals: Totals = field(default_factory=Totals)
    state: str = ""
    generation: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: float | None = None
    lag_seconds: float | None = None
    lag_records: int | None = None
    lag_files: int | None = None
    lag_versions: int | None = None
    lag_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """What happened in the ``seconds`` before ``at`` (seconds since 1970): a minute, more where the
    monitor did not look.

    ``drivers`` is how many drivers began (0: none was restarted), ``epoch`` the lease epoch of the newest;
    ``batches``, ``rows``, ``rows_out`` (None where the sink does not tell), ``batch_seconds``, ``phases``
    (seconds by Spark's names), ``late``, ``expectations`` (rows that passed and that failed, by name),
    ``skipped_commits``, ``skipped_rows`` and ``ties`` are sums over the batches of that time.

    ``state``, ``generation`` and ``watermark`` (seconds since 1970) are those at its end. ``state_rows``,
    ``state_bytes`` and what waits (``lag_…``) are those at its end; None where unknown.
    """

    at: float
    seconds: float
    epoch: int
    drivers: int
    generation: int | None = None
    state: str = ""
    batches: int = 0
    rows: int = 0
    rows_out: int | None = None
    batch_seconds: float = 0.0
    late: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    expectations: Mapping[str, Sequence[int]] = field(default_factory=dict)
    skipped_commits: int = 0
    skipped_rows: int = 0
    ties: int = 0
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: float | None = None
    lag_seconds: float | None = None
    lag_records: int | None = None
    lag_files: int | None = None
    lag_versions: int | None = None
    lag_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def minutes(home: Home, since: float | None = None) -> tuple[Row, ...]:
    """Return the rows of the minutes that are kept, oldest first; empty if there are none.

    :param since: only rows that end after this time, in seconds since 1970; fewer files are read.
    :raises StorageError: a file of the history is damaged.
    """
    first = "" if since is None else _key(since)
    samples: dict[float, Sample] = {}
    for name in home.storage.names(home.history(_MINUTES)):
        file = _read(home, name) if name >= first else None
        for sample in file.samples if file else ():
            samples[sample.at] = sample
    ordered = [samples[at] for at in sorted(samples)]
    rows = (_row(before, after) for before, after in pairwise(ordered))
    return tuple(row for row in rows if since is None or row.at > since)


def record(home: Home, sample: Sample, began: Callable[[], float], ended: Callable[[int], Totals]) -> None:
    """Keep one look at a flow. One that is older than the last kept, or in the same minute, adds no row.

    :param began: returns when the driver of the sample's epoch began, in seconds since 1970: the first row
        of a history reaches back to it.
    :param ended: returns the last totals of the driver of an earlier epoch.
    :raises StorageError: a file of the history is damaged, or cannot be written.
    """
    name = _key(sample.at)
    file = _read(home, name)
    if file is None:
        earlier = _without_old(home, name, sample.at)
        file = _first(sample, began()) if earlier is None else replace(earlier, samples=earlier.samples[-1:])
    last = file.samples[-1]
    if sample.at <= last.at or sample.epoch < file.epoch:
        return
    before = file.before
    for epoch in range(file.epoch, sample.epoch):
        before = before.plus(ended(epoch))
    same_minute = len(file.samples) > 1 and int(last.at // 60) == int(sample.at // 60)
    samples = file.samples[:-1] if same_minute else file.samples
    _write(
        home,
        name,
        _File(sample.epoch, before, (*samples, replace(sample, totals=before.plus(sample.totals)))),
    )


@dataclass(frozen=True)
class _File:
    """Samples of an hour, after the last one before; ``before`` are the totals of earlier epochs' drivers."""

    epoch: int
    before: Totals
    samples: tuple[Sample, ...]


def _first(sample: Sample, began: float) -> _File:
    """Return the file that a history begins with: nothing was counted before the present driver."""
    return _File(sample.epoch, Totals(), (Sample(min(began, sample.at - 1), sample.epoch - 1),))


def _without_old(home: Home, name: str, now: float) -> _File | None:
    """Remove the files that are older than is kept, and return the newest before ``name``: it stays, however
    old, since the next one continues its totals.
    """
    names = [earlier for earlier in home.storage.names(home.history(_MINUTES)) if earlier < name]
    oldest = _key(now - KEPT_HOURS * 3600)
    for old in (earlier for earlier in names[:-1] if earlier < oldest):
        home.storage.remove(_path(home, old))
    return _read(home, names[-1]) if names else None


def _row(before: Sample, after: Sample) -> Row:
    done = after.totals.since(before.totals)
    sums = {name: getattr(done, name) for name in _OF_TOTALS if name != "seconds"}
    return Row(
        seconds=_rounded(after.at - before.at),
        drivers=max(0, after.epoch - before.epoch),
        batch_seconds=done.seconds,
        **sums,
        **{name: getattr(after, name) for name in _OF_SAMPLE},
    )


_OF_SAMPLE = tuple(item.name for item in fields(Sample) if item.name != "totals")
LAG = tuple(name for name in _OF_SAMPLE if name.startswith("lag_"))
"""Fields of a sample, and of a row, that say what waits."""
_OF_TOTALS = tuple(item.name for item in fields(Totals))


def _write(home: Home, name: str, file: _File) -> None:
    # Columns are named once: a file of minutes has some 10 kB instead of 30.
    rows = [
        [getattr(one, name) for name in _OF_SAMPLE] + [getattr(one.totals, name) for name in _OF_TOTALS]
        for one in file.samples
    ]
    value = {
        "epoch": file.epoch,
        "before": asdict(file.before),
        "columns": [*_OF_SAMPLE, *(f"totals.{name}" for name in _OF_TOTALS)],
        "samples": rows,
    }
    content = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    home.storage.overwrite(_path(home, name), content.encode())


def _read(home: Home, name: str) -> _File | None:
    path = _path(home, name)
    value = read_json(home.storage, path)
    if value is None:
        return None
    try:
        samples = tuple(map(_sampler(value["columns"]), value["samples"]))
        if not samples or not all(isinstance(one.at, int | float) for one in samples):
            raise ValueError("it has no samples")
        return _File(int(value["epoch"]), _totals(value["before"]), samples)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise StorageError(
            f"{home.storage.path(path)} is no part of a flow's history: {error!r}. Remove it: the numbers of"
            " that time are lost, and the monitor goes on with the next."
        ) from error


def _sampler(columns: Sequence[str]) -> Callable[[Sequence[Any]], Sample]:
    """Return what makes a sample of a row of those columns; a newer release may have added some."""
    index_by_column = {name: number for number, name in enumerate(columns)}
    of_sample = [(name, index_by_column[name]) for name in _OF_SAMPLE if name in index_by_column]
    of_totals = [
        (name, index_by_column[column])
        for name in _OF_TOTALS
        if (column := f"totals.{name}") in index_by_column
    ]

    def sample(row: Sequence[Any]) -> Sample:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} values for {len(columns)} columns")
        totals = read_as(Totals, {name: row[number] for name, number in of_totals})
        return read_as(Sample, {**{name: row[number] for name, number in of_sample}, "totals": totals})

    return sample


def _totals(values: Mapping[str, Any]) -> Totals:
    return read_as(Totals, {name: values[name] for name in _OF_TOTALS if name in values})


def _key(at: float) -> str:
    """Return the name of the file of the hour of a moment."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H.json")


def _path(home: Home, name: str) -> str:
    return home.history(f"{_MINUTES}/{name}")


def _rounded(seconds: float) -> float:
    """Return seconds to the millisecond, not below 0: longer digits would be half of a file."""
    return round(max(0.0, seconds), 3)
