"""Which event of a table's Airflow asset is due, by the table's log and its flows' checkpoints. No JVM.

A batch counts when the table has it. Nothing counts while a recovery has the table locked, nor what such a
recovery has undone: it is told by one event, whatever the table declares, and so is one that lets a flow read
something again. With an hour or a day of the watermark, an event has all of them that are complete as
partitions; those that a recovery opens again are told again.

Airflow takes events with the success of a task. So an event is noted in the state folder before it is handed
over (:class:`Posting`), and counts when the next look finds it in Airflow. Otherwise it is put together anew,
with what came since: nothing is told twice, and nothing is lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import COMMITS, ROWS, WATERMARK, AssetEvery
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE, LogCommit
from streamkeeper.flows import files, generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import ADOPTED, AFTER_LAST
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, one_look, read_record, to_json
from streamkeeper.support.amounts import sum_known
from streamkeeper.support.times import ms_in_iso
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.past_versions import changed_by

MOST_PARTITIONS = 100
"""Partitions of one event; the next look goes on."""
_MOST_COMMITS = 200
"""Commits that the first look at a table reads. Before them, the number of rows is unknown."""
_REMEMBERED = 50
"""Recoveries that are remembered as told."""
_EARLY = 30.0
"""Seconds by which an event may be early: looks come a minute apart, but not to the second."""
_KEY = "%Y-%m-%dT%H:%M:%S"
"""Form of a partition's key, as Airflow's temporal mappers take it."""


@dataclass(frozen=True)
class AssetTable:
    """A table with an asset, and the flows that write it; ``path`` is its path or URL."""

    name: str
    path: str
    pipeline: str
    every: AssetEvery
    flows: tuple[Flow, ...]


@dataclass(frozen=True)
class FlowPosition:
    """The last batch of a flow that counts, None before the first, and its watermark, 0 if there is none."""

    generation: int
    batch: int | None = None
    watermark_ms: int = 0


@dataclass(frozen=True)
class News:
    """What no event has told yet: commits with rows, their rows (None if unknown), and recoveries."""

    commits: int = 0
    rows: int | None = 0
    recoveries: tuple[str, ...] = ()


@dataclass(frozen=True)
class AssetNote:
    """What the events of an asset have told, and what came since.

    ``seen`` is the newest version of the table that was read, ``version`` the newest whose rows count. ``at``
    is the last event, in seconds since 1970, ``number`` how many there were. All spans of the watermark from
    ``first_ms`` to ``until_ms`` were told; both are None before there is a watermark. Until all flows go on
    after a recovery, ``again_ms`` is the oldest watermark with which one of them began, and ``is_changed``
    says that all of the table was changed.
    """

    seen: int = -1
    version: int | None = None
    flows: Mapping[str, FlowPosition] = field(default_factory=dict)
    news: News = News()
    recoveries: tuple[str, ...] = ()
    at: float | None = None
    number: int = 0
    first_ms: int | None = None
    until_ms: int | None = None
    again_ms: int | None = None
    is_changed: bool = False


@dataclass(frozen=True)
class Posting:
    """An event that was handed to Airflow: its id, and the note to go on with if Airflow has it."""

    id: str
    after: AssetNote


@dataclass(frozen=True)
class AssetEvent:
    """An event to post: its ``extra``, and the keys of its partitions."""

    extra: Mapping[str, Any]
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Record:
    """Content of the file."""

    note: AssetNote
    posting: Posting | None = None


@dataclass(frozen=True)
class _LogNews:
    """What a table's log tells since a version.

    ``seen`` is its newest version, ``version`` the newest whose rows count. ``is_changed`` says that a
    recovery changed all of the table: the news are what came afterwards. ``batches`` are the last ones by
    query id.
    """

    seen: int
    version: int | None
    news: News
    is_changed: bool
    batches: Mapping[str, int]


@dataclass(frozen=True)
class _Move:
    """Where a flow is, and what its generations since the last look do to what was told.

    ``is_settled`` is False while a generation is decided that no driver has begun. ``recoveries`` are those
    that let the flow read something again, or leave something out. ``again_ms`` is the oldest watermark with
    which one of them began, 0 if it had none; None if there was no such recovery.
    """

    position: FlowPosition
    is_settled: bool
    is_done: bool
    first_ms: int | None
    recoveries: tuple[str, ...] = ()
    again_ms: int | None = None


def asset_tables(settings: Settings, manifest: Manifest) -> Iterator[AssetTable]:
    """Yield the tables that have asset events, by pipeline."""
    for pipeline in manifest.pipelines:
        for table in pipeline.tables:
            writers = tuple(manifest.writers(pipeline.name, table.name))
            if table.sink is None and table.asset_every is not None and writers:
                path = settings.table_path(table.name)
                yield AssetTable(table.name, path, pipeline.name, table.asset_every, writers)


@one_look()
def next_event(
    storage: Storage, table: AssetTable, now: float, is_posted: Callable[[str], bool]
) -> AssetEvent | None:
    """Return the event of a table that is due, and note it; None if none is due, or a recovery is under way.

    :param now: the storage's time, in seconds since 1970.
    :param is_posted: says whether Airflow has the event of an id.
    :raises StorageError: a file of the table or of a flow is damaged, or cannot be written.
    :raises CheckpointError: the table's log or a checkpoint is damaged.
    """
    name = files.asset_events(storage, table.pipeline, table.name)
    way = "Remove it; the next event then tells of the table as if it were the first."
    record = read_record(storage, name, _Record, "a note of asset events", way) or _Record(AssetNote())
    note = record.note
    if record.posting is not None and is_posted(record.posting.id):
        note = record.posting.after
    event, posting = None, None
    if recovery_lock.holder(storage, table.pipeline, table.name) is None:
        note, complete_ms = _look(storage, table, note)
        event, after = due(table, note, complete_ms, now)
        posting = None if event is None else Posting(str(event.extra["id"]), after)
    if record != (written := _Record(note, posting)):
        storage.overwrite(name, to_json(asdict(written)))
    return event


def due(
    table: AssetTable, note: AssetNote, complete_ms: int | None, now: float
) -> tuple[AssetEvent | None, AssetNote]:
    """Return the event that is due, if any, and the note to go on with once it is posted. A pure function.

    :param complete_ms: up to which all spans of the watermark are complete, in milliseconds since 1970; None
        if that is not known.
    :param now: the storage's time, in seconds since 1970.
    """
    spans: list[int] = []
    if not note.news.recoveries:
        if table.every.unit == WATERMARK:
            spans = _complete_spans(note, table.every.amount * 1000, complete_ms)
        if not (spans or _is_enough(note, table.every, now)):
            return None, note
    number = note.number + 1
    event_id = hashlib.sha256(f"{table.name} {number} {note.seen} {now}".encode()).hexdigest()[:16]
    after = replace(
        note,
        news=News(),
        recoveries=(*note.recoveries, *note.news.recoveries)[-_REMEMBERED:],
        at=now,
        number=number,
        until_ms=spans[-1] + table.every.amount * 1000 if spans else note.until_ms,
    )
    keys = tuple(datetime.fromtimestamp(span / 1000, timezone.utc).strftime(_KEY) for span in spans)
    return AssetEvent(_extra(table, note, event_id), keys), after


def _is_enough(note: AssetNote, every: AssetEvery, now: float) -> bool:
    """Return whether so much came since the last event that the next one is due."""
    news = note.news
    if every.unit == WATERMARK or not news.commits:
        return False
    if every.unit == COMMITS:
        return news.commits >= every.amount
    if every.unit == ROWS:
        return news.rows is None or news.rows >= every.amount
    return note.at is None or now - note.at >= every.amount - _EARLY


def _complete_spans(note: AssetNote, size_ms: int, complete_ms: int | None) -> list[int]:
    """Return the beginnings of the spans that are complete and not told, the oldest first."""
    if complete_ms is None or note.until_ms is None:
        return []
    # Not told are the hours of a day, too, some of which were told one by one before it was declared.
    first, end = note.until_ms // size_ms * size_ms, complete_ms // size_ms * size_ms
    return list(range(first, end, size_ms))[:MOST_PARTITIONS]


def _look(storage: Storage, table: AssetTable, note: AssetNote) -> tuple[AssetNote, int | None]:
    """Read what came since a note, and return it with that; and up to which time all spans are complete."""
    log = _read_log(table.path, note)
    moves: dict[str, _Move] = {}
    for flow in table.flows:
        move = _move_of(FlowHome(storage, table.pipeline, flow.name), flow, note, log.batches)
        if move is not None:
            moves[flow.full_name] = move
    recoveries = dict.fromkeys(
        recovery
        for recovery in (*log.news.recoveries, *(one for move in moves.values() for one in move.recoveries))
        if recovery not in note.recoveries
    )
    before = News(recoveries=note.news.recoveries) if log.is_changed else note.news
    news = News(
        before.commits + log.news.commits,
        sum_known((before.rows, log.news.rows)),
        tuple(dict.fromkeys((*before.recoveries, *recoveries))),
    )
    flows = {name: move.position for name, move in moves.items()}
    version = note.version if log.version is None else log.version
    looked = replace(note, seen=log.seen, version=version, flows=flows, news=news)
    if table.every.unit != WATERMARK:
        return looked, None
    marks = [
        mark for mark in (note.again_ms, *(move.again_ms for move in moves.values())) if mark is not None
    ]
    opened = replace(looked, again_ms=min(marks, default=None), is_changed=note.is_changed or log.is_changed)
    return _with_spans(opened, list(moves.values()), table.every.amount * 1000)


def _with_spans(note: AssetNote, moves: Sequence[_Move], size_ms: int) -> tuple[AssetNote, int | None]:
    """Return a note with the spans that are told again, and up to which time all spans are complete."""
    if not moves or not all(move.is_settled for move in moves):
        return note, None
    if note.until_ms is not None and (note.again_ms is not None or note.is_changed):
        restart = (note.again_ms or 0) // size_ms * size_ms
        until = min(note.until_ms, max(restart, note.first_ms or 0)) if restart else None
        note = replace(note, until_ms=until)
    note = replace(note, again_ms=None, is_changed=False)
    running = [move.position.watermark_ms for move in moves if not move.is_done]
    complete = min(running or [move.position.watermark_ms for move in moves])
    firsts = [move.first_ms // size_ms * size_ms for move in moves if move.first_ms is not None]
    if complete and note.until_ms is None and firsts:
        first = min(firsts) if note.first_ms is None else min(note.first_ms, *firsts)
        note = replace(note, first_ms=first, until_ms=first)
    return note, complete or None


def _move_of(home: FlowHome, flow: Flow, note: AssetNote, batches: Mapping[str, int]) -> _Move | None:
    """Return where a flow is; None if no driver has begun it.

    :param batches: the last batches that the table has, by query id.
    """
    observed = Observed(home)
    if observed.begun is None or observed.newest is None or observed.checkpoint is None:
        return None
    (generation, start), before = observed.begun, note.flows.get(flow.full_name)
    checkpoint = observed.checkpoint
    marks = (observed.last_commit, batches.get(generation.query_id), start.seed_batch)
    batch = max((mark for mark in marks if mark is not None), default=None)
    if before is not None and (before.generation, before.batch) == (generation.number, batch):
        position = before
    else:
        watermark = 0 if batch is None else checkpoint.offsets(batch).watermark_ms
        position = FlowPosition(generation.number, batch, watermark)
    since = generation.number if before is None else before.generation
    marks_again, recoveries = [], []
    for number in (one for one in observed.generations if since < one <= generation.number):
        decided = generations.read(home, number)
        if decided is not None and decided.start.mode not in (AFTER_LAST, ADOPTED):
            marks_again.append(_watermark_at_start(home, number))
            recoveries += [decided.recovery] if decided.recovery is not None else []
    again = min(marks_again, default=None)
    is_first = note.until_ms is None or 0 in (again, note.again_ms) or note.is_changed
    return _Move(
        position,
        observed.newest.number == generation.number,
        flow.declaration.once and observed.is_done,
        _first_watermark(checkpoint) if is_first and position.watermark_ms else None,
        tuple(recoveries),
        again,
    )


def _watermark_at_start(home: FlowHome, number: int) -> int:
    """Return the watermark with which a generation began; 0 if it had none, or it is not kept any more."""
    start = generations.read_start(home, number)
    if start is None or start.seed_batch is None:
        return 0
    checkpoint = Checkpoint(home.storage, start.checkpoint)
    is_kept = start.seed_batch in checkpoint.offset_batches()
    return checkpoint.offsets(start.seed_batch).watermark_ms if is_kept else 0


def _first_watermark(checkpoint: Checkpoint) -> int | None:
    """Return the oldest watermark that a checkpoint still has."""
    marks = (checkpoint.offsets(batch).watermark_ms for batch in sorted(checkpoint.offset_batches()))
    return next((mark for mark in marks if mark), None)


def _read_log(path: str, note: AssetNote) -> _LogNews:
    """Read what a table's log has told since a note; of one that was never read, the newest commits alone."""
    seen, version, is_changed = -1, None, False
    news, batches = News(), dict[str, int]()
    oldest = None
    for number, commit in enumerate(delta_log.commits(path)):
        seen = max(seen, commit.version)
        since = note.seen if note.seen <= seen else -1
        is_first = since < 0
        recovery = changed_by(commit)
        if commit.version <= since or (is_first and (number == _MOST_COMMITS or recovery is not None)):
            break
        oldest = commit.version
        for query_id, batch in commit.transactions.items():
            if batch < FENCE:
                batches.setdefault(query_id, batch)
        if recovery is not None:
            news = replace(news, recoveries=(recovery, *news.recoveries))
        elif _brings_rows(commit) and not is_changed:
            news = replace(news, commits=news.commits + 1, rows=sum_known((news.rows, commit.rows)))
        if version is None and (recovery is not None or _brings_rows(commit)):
            version = commit.version
        is_changed = is_changed or recovery is not None
    is_whole = oldest is None or is_changed or oldest == (note.seen if note.seen <= seen else -1) + 1
    return _LogNews(seen, version, news if is_whole else replace(news, rows=None), is_changed, batches)


def _brings_rows(commit: LogCommit) -> bool:
    return commit.changes_data and commit.operation != "OPTIMIZE"


def _extra(table: AssetTable, note: AssetNote, event_id: str) -> dict[str, Any]:
    watermark_ms = min((flow.watermark_ms for flow in note.flows.values()), default=0)
    return {
        "id": event_id,
        "table": table.name,
        "location": table.path,
        "version": note.version,
        "commits": note.news.commits,
        "rows": note.news.rows,
        "watermark": ms_in_iso(watermark_ms) if watermark_ms else None,
        "flows": {
            name: {"generation": flow.generation, "batch": flow.batch} for name, flow in note.flows.items()
        },
        "recoveries": [
            {"kind": recovery.partition("-")[0], "id": recovery} for recovery in note.news.recoveries
        ],
    }
