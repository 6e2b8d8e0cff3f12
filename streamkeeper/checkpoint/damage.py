"""Damage of a checkpoint, found from file names and the newest entries; each finding has its advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from streamkeeper.checkpoint import crc_files
from streamkeeper.checkpoint.log_entries import TO_NEWER_SPARK, gaps, is_number, is_partitions, is_whole
from streamkeeper.checkpoint.older_state import MOST_SUMMED
from streamkeeper.checkpoint.state_versions import state_damage
from streamkeeper.errors import CheckpointError, NewerCheckpoint

if TYPE_CHECKING:
    from streamkeeper.checkpoint.reader import Checkpoint

ERROR, WARNING, NOTE = "error", "warning", "note"
"""Severity. Error: the next start fails, or rows may be lost. Warning: for a person. Note: harmless."""

_TEMPORARY = re.compile(r"\.{1,2}.+\.[0-9a-f-]{36}(\.[A-Za-z0-9]+)*\.tmp(\.crc)?")
_RESTORE = (
    "Restore it from a copy of the checkpoint, with its hidden .crc file, or give the flow a new"
    " checkpoint with reset_checkpoint."
)
_NO_REWIND = "Leave it: Spark does not need it. The flow cannot be rewound to that batch."
_ROOT = {"metadata", "offsets", "commits", "sources", "state"}


@dataclass(frozen=True)
class Problem:
    """One finding: ``file`` below the checkpoint's folder (empty: the folder itself), and its severity."""

    file: str
    description: str
    advice: str
    severity: str


def find_problems(checkpoint: Checkpoint) -> tuple[Problem, ...]:
    """Return the damage of a checkpoint that file names and the newest entries show."""
    problems = _look(checkpoint)
    if all(problem.severity != ERROR for problem in problems):
        return problems
    # A running query writes between two listings, so an error counts only if it is found twice.
    again = set(_look(checkpoint))
    return tuple(problem for problem in problems if problem in again)


def _look(checkpoint: Checkpoint) -> tuple[Problem, ...]:
    root = checkpoint.names()
    try:
        checkpoint.require()
    except CheckpointError as error:
        return (Problem("", str(error), "Give the folder of a checkpoint.", ERROR),)
    problems: list[Problem] = [*_metadata(checkpoint, root), *_foreign_files("", root, _ROOT.__contains__)]
    logs: dict[str, list[int]] = {}
    for log in ("offsets", "commits"):
        names = checkpoint.names(log)
        logs[log] = sorted(int(name) for name in names if is_number(name))
        problems += _foreign_files(log, names, is_number)
        problems += _gaps(log, logs[log])
        problems += _twins(checkpoint, log, names, logs[log][-2:], max(logs[log], default=-1) + 1)
    problems += _entries(checkpoint, logs["offsets"], logs["commits"])
    problems += _relations(logs["offsets"], logs["commits"])
    for operator in checkpoint.names("state"):
        if is_number(operator):
            problems += _operator(checkpoint, int(operator))
    version = logs["commits"][-1] + 1 if logs["commits"] else 0
    problems += [
        Problem(name, description, _RESTORE, ERROR) for name, description in state_damage(checkpoint, version)
    ]
    for source in sorted({*checkpoint.sources(), *_with_lists(checkpoint, logs)}):
        problems += _source(checkpoint, source, logs)
    return tuple(dict.fromkeys(problems))


def _metadata(checkpoint: Checkpoint, root: list[str]) -> Iterator[Problem]:
    twin = {
        "advice": (
            "Remove .metadata.crc together with metadata, never one alone: a leftover .crc file prevents"
            " the next start."
        ),
        "severity": ERROR,
    }
    if "metadata" in root:
        yield from _read("metadata", checkpoint.query_id)
        yield from _stale(checkpoint, "metadata", root)
        return
    yield Problem(
        "metadata", "is missing: Spark starts no query on offsets and commits without it", _RESTORE, ERROR
    )
    if ".metadata.crc" in root:
        yield Problem(".metadata.crc", "was left behind without its file", **twin)


def _gaps(log: str, batches: list[int]) -> Iterator[Problem]:
    """Yield missing batches: a start needs the newest two offsets and commit; a rewind, older ones."""
    if not batches:
        return
    missing = [
        range(gap.stop - 1, gap.start - 1, -1) for gap in reversed([*gaps(batches, batches[0], batches[-1])])
    ]
    many = sum(gap.start - gap.stop for gap in missing)
    for number in islice(chain.from_iterable(missing), 10):
        description = f"is missing between {batches[0]} and {batches[-1]}: the log has a gap"
        if log == "offsets" and number == batches[-1] - 1:
            yield Problem(f"{log}/{number}", f"{description}, and Spark starts from there", _RESTORE, ERROR)
        else:
            yield Problem(f"{log}/{number}", description, _NO_REWIND, WARNING)
    if many > 10:
        yield Problem(
            log, f"has a gap of {many} batches in all; the last ten are listed", _NO_REWIND, WARNING
        )


def _foreign_files(folder: str, names: Iterable[str], is_own: Callable[[str], bool]) -> Iterator[Problem]:
    """Yield half-written and foreign files. :func:`_twins` checks hidden twins."""
    for name in names:
        file = f"{folder}/{name}" if folder else name
        if _TEMPORARY.fullmatch(name):
            description = "was never finished: a driver is writing it, or stopped while it did"
            yield Problem(file, description, "Leave it: Spark ignores it.", NOTE)
        elif not is_own(name) and crc_files.owner_of(name) is None:
            yield Problem(
                file,
                "is not a file of Spark's",
                "Spark ignores it; move it out of the checkpoint if it is not needed there.",
                WARNING,
            )


def _twins(
    checkpoint: Checkpoint, folder: str, names: list[str], looked_at: list[int], upcoming: int
) -> Iterator[Problem]:
    """Yield twins that do not fit their file, for the batches given, and twins without a file."""
    present = set(names)
    for number in looked_at:
        yield from _stale(checkpoint, f"{folder}/{number}", names)
    for name in names:
        owner = crc_files.owner_of(name)
        if owner is None or owner in present or _TEMPORARY.fullmatch(name):
            continue
        batch = owner.split(".")[0]
        # A twin of a batch still to come stops the query when Spark writes that batch.
        blocks = is_number(batch) and int(batch) >= upcoming
        description = "is a checksum without its file"
        if blocks:
            description += (
                ': when Spark writes that batch it fails with "Multiple streaming queries are concurrently'
                ' using …"'
            )
        yield Problem(
            f"{folder}/{name}",
            description,
            "Stop the flow and remove this .crc file.",
            ERROR if blocks else NOTE,
        )


def _stale(checkpoint: Checkpoint, file: str, names: list[str]) -> Iterator[Problem]:
    twin = crc_files.twin_of(file)
    if twin.rsplit("/", 1)[-1] not in names:
        return
    try:
        content, expected = checkpoint.read_if_there(file), checkpoint.read_if_there(twin)
    except CheckpointError:
        return  # too large to be compared: _read reports the file itself
    if content is not None and expected is not None and not crc_files.fits(content, expected):
        description = (
            f"is stale: {file} was changed without it. Spark 4.2 reads the file anyway, Hadoop's own tools"
            " refuse it"
        )
        advice = (
            f"Find out what changed {file}. If that was intended, remove {twin} while the flow is stopped;"
            " otherwise restore both."
        )
        yield Problem(twin, description, advice, WARNING)


def _entries(checkpoint: Checkpoint, offsets: list[int], commits: list[int]) -> Iterator[Problem]:
    planned = sorted({*offsets[-2:], *(number for number in commits[-1:] if number in offsets)})
    widths: dict[int, int] = {}
    for number in planned:
        yield from _read(f"offsets/{number}", partial(_width, checkpoint, number, widths))
    for number in commits[-1:]:
        yield from _read(f"commits/{number}", partial(checkpoint.commit, number))
    with suppress(CheckpointError):  # told above
        unknown = checkpoint.unknown_pins()
        if unknown is not None:
            yield Problem(f"offsets/{offsets[-1]}", unknown, TO_NEWER_SPARK, WARNING)
    for before, after in pairwise(planned):
        if before in widths and after in widths and widths[after] < widths[before]:
            description = f"is cut off: it has {widths[after]} sources, offsets/{before} has {widths[before]}"
            yield Problem(f"offsets/{after}", description, _RESTORE, ERROR)


def _width(checkpoint: Checkpoint, number: int, widths: dict[int, int]) -> None:
    entry = checkpoint.offsets(number)
    if entry.version == 1:
        widths[number] = len(entry.sources)


def _relations(offsets: list[int], commits: list[int]) -> Iterator[Problem]:
    planned = set(offsets)
    for number in commits:
        if number in planned:
            continue
        if offsets and number < offsets[0]:
            yield Problem(
                f"commits/{number}",
                "is older than the oldest offsets: a clean-up by Spark was cut short",
                "Leave it.",
                NOTE,
            )
        elif not offsets or number > offsets[-1]:
            yield Problem(f"offsets/{number}", f"is missing, but commits/{number} is there", _RESTORE, ERROR)
    last = commits[-1] if commits else (offsets[0] - 1 if offsets else None)
    if offsets and offsets[-1] > 0 and len(offsets) == 1:
        description = f"is missing, and Spark starts from there: offsets/{offsets[0]} is the only one"
        yield Problem(f"offsets/{offsets[0] - 1}", description, _RESTORE, ERROR)
    if offsets and last is not None and offsets[-1] > last + 1:
        description = (
            f"batches {last + 1} to {offsets[-1]} are planned and not committed. Spark repeats only the"
            " last of them, and the input of the others may never be written (with asynchronous progress"
            " tracking this is normal)"
        )
        yield Problem(
            "commits",
            description,
            "Before the flow starts again, reset it with reset_checkpoint from after the last processed.",
            ERROR,
        )


def _operator(checkpoint: Checkpoint, operator: int) -> Iterator[Problem]:
    file = checkpoint.operator_file(operator)
    if file is None:
        yield Problem(
            f"state/{operator}",
            "has no operator metadata: it was written by Spark before 3.5, or the file was lost",
            "Leave it.",
            NOTE,
        )
        return
    yield from _read(file, checkpoint.operators)
    yield from _stale(checkpoint, file, checkpoint.names(file.rpartition("/")[0]))


def _source(checkpoint: Checkpoint, source: str, logs: dict[str, list[int]]) -> Iterator[Problem]:
    folder = f"sources/{source}"
    names = checkpoint.names(folder)
    log = checkpoint.files_log(source)
    plain, compact = log.batches()
    newest = max([*plain[-1:], *compact[-1:]], default=-1)
    yield from _foreign_files(
        folder, names, lambda name: is_number(name.removesuffix(".compact")) or name.startswith("_")
    )
    read = [number for number in plain if number > max(compact[-1:], default=-1)]
    yield from _twins(checkpoint, folder, names, read, newest + 1)
    position = _position(checkpoint, source, logs)
    if position is None:
        if not plain and not compact and _keeps_its_beginning(checkpoint, source, logs):
            description = "is missing: the source would begin anew at another time, or forget where it began"
            yield Problem(f"{folder}/0", description, _RESTORE, ERROR)
        if plain and not compact:
            yield from _read(f"{folder}/0", partial(checkpoint.initial_offsets, source))
        return
    for number in compact[-1:]:
        if (checkpoint.storage.size(checkpoint.name(f"{folder}/{number}.compact")) or 0) <= MOST_SUMMED:
            yield from _stale(checkpoint, f"{folder}/{number}.compact", names)
    for name, description in log.damage():
        yield Problem(name.removeprefix(f"{checkpoint.folder}/"), description, _RESTORE, ERROR)
    for number in islice(log.missing(), 10):
        yield Problem(
            f"{folder}/{number}",
            f"is missing, and so is {number}.compact: the log of processed files has a gap",
            _RESTORE,
            ERROR,
        )
    if newest < position:
        ends = f"ends at batch {newest}" if newest >= 0 else "has no list of files"
        description = f"{ends}, but the offsets say that batch {position} was read: files would be read again"
        yield Problem(folder, description, _RESTORE, ERROR)


def _keeps_its_beginning(checkpoint: Checkpoint, source: str, logs: dict[str, list[int]]) -> bool:
    """Return whether a source writes down where it began: Kafka does, and the source that makes rows."""
    offset = _offset(checkpoint, source, logs)
    return is_whole(offset) or (isinstance(offset, dict) and any(map(is_partitions, offset.values())))


def _position(checkpoint: Checkpoint, source: str, logs: dict[str, list[int]]) -> int | None:
    """Return the files log's batch at the newest readable offsets; None if it is not a files source."""
    offset = _offset(checkpoint, source, logs)
    if isinstance(offset, dict) and isinstance(offset.get("logOffset"), int):
        return int(offset["logOffset"])
    return None


def _with_lists(checkpoint: Checkpoint, logs: dict[str, list[int]]) -> list[str]:
    """Return the sources of which the newest readable offsets say that they keep lists of files."""
    return [name for name in _newest(checkpoint, logs) if _position(checkpoint, name, logs) is not None]


def _offset(checkpoint: Checkpoint, source: str, logs: dict[str, list[int]]) -> object:
    """Return a source's offset in the newest readable entry; None if it has none."""
    return _newest(checkpoint, logs).get(source)


def _newest(checkpoint: Checkpoint, logs: dict[str, list[int]]) -> Mapping[str, object]:
    """Return the offsets by source of the newest readable entry; none if there is none."""
    for number in reversed(logs["offsets"][-2:]):
        try:
            return checkpoint.offsets(number).sources
        except CheckpointError:
            continue  # reported by _entries
    return {}


def _read(file: str, reading: Callable[[], object]) -> Iterator[Problem]:
    try:
        reading()
    except CheckpointError as error:
        description = str(error).split(". Nothing was changed")[0]
        advice = TO_NEWER_SPARK if isinstance(error, NewerCheckpoint) else _RESTORE
        yield Problem(file, description, advice, ERROR)
