"""Files in a folder as a format of source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Source
from streamkeeper.errors import CheckpointError, RequestError, StorageError
from streamkeeper.sources.base.format import (
    Before,
    Case,
    Lag,
    PlannedFormat,
    Reading,
    Resolved,
    SourceMove,
    Waiting,
    age_of,
    not_listed,
)
from streamkeeper.sources.files import impacts
from streamkeeper.sources.files.impacts import FilesPosition
from streamkeeper.sources.files.listing import (
    PassedOver,
    SourceFile,
    amount,
    is_inside,
    is_rewritten,
    iterate_files,
    list_files,
)
from streamkeeper.sources.files.options import EVER, FileOptions
from streamkeeper.support.amounts import SourceImpact, counted

ENOUGH = 1000
"""Pending files after which the listing of a folder ends early."""

Listing = tuple[FileEntry, ...]
Look = Callable[[], Listing]


class Files(PlannedFormat[Listing, FilesPosition]):
    """Files of one of Spark's formats; a position is the set of those that count as processed."""

    def after(self, source: Source, before: Before, look: Look) -> Resolved[FilesPosition]:
        at = self.at(source, before, look, before.offset)
        if at.position is None:
            return at
        entries = at.position.entries
        return Resolved(FilesPosition(lambda: chain(impacts.earlier_files(source, before), entries())))

    def end(self, before: Before, look: Look) -> FilesPosition:
        return FilesPosition(look)

    def moment(self, before: Before, look: Look, moment_ms: int) -> FilesPosition:
        earlier = tuple(entry for entry in look() if entry.timestamp_ms < moment_ms)
        return FilesPosition(lambda: earlier)

    def at(self, source: Source, before: Before, look: Look, offset: Any) -> Resolved[FilesPosition]:
        if offset is None or before.checkpoint is None:
            return Resolved()
        checkpoint, upto = before.checkpoint, int(offset["logOffset"])
        log = checkpoint.files_log(before.key)
        last = log.last_batch()
        if upto > (-1 if last is None else last):
            raise CheckpointError(
                f"Source {source.name} is to start after batch {upto} of its files log, but"
                f" {checkpoint.path(f'sources/{before.key}')} ends with batch {last}. Choose an offset up to"
                " that, or start from a timestamp."
            )
        return Resolved(FilesPosition(lambda: log.entries(upto) if upto >= 0 else iter(())))

    def gone_unread(self, source: Source, checkpoint: Checkpoint, after: Any) -> Resolved[FilesPosition]:
        """Look for the files of the next batch, which Spark lists before it plans the batch, and reads those
        that are there; it takes the others for read without a word (HadoopFSUtils.listLeafFiles). Of what is
        listed later, the driver's own source looks (jvm/streamkeeper/sources/Files.java).
        """
        gone = impacts.gone_unread(source, checkpoint, -1 if after is None else int(after["logOffset"]))
        return Resolved(lost=impacts.why_gone_unread(gone) if gone else "")

    def impact(self, case: Case) -> SourceImpact:
        return impacts.impact_of(case, partial(self.resolve, case.source, case.start, case.before))

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        return impacts.impact_again(source, move, impact)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        if checkpoint is None or not isinstance(end, dict):
            first = next(iterate_files(source), None)
            return (
                Waiting(False)
                if first is None
                else Waiting(True, f"files wait in the source {source.name}, such as {first.path}")
            )
        unread = _unread(source, checkpoint, key, int(end["logOffset"]))
        if not unread:
            return Waiting(False)
        count = f"{len(unread)} files or more wait" if len(unread) > 1 else "a file waits"
        return Waiting(True, f"{count} in the source {source.name}, such as {min(unread)}")

    def lag(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
        """Count the files that are younger than the newest read, by one listing and the end of the log.

        So a late file with an older time is not counted. A file that is younger than those at the log's end
        and was read long before them is: the log would have to be read whole to know. Of the files at the
        log's end, those count as skipped that were written again since they were read; of all others, those
        that Spark does not look at.
        """
        recent = {}
        if checkpoint is not None and isinstance(end, dict):
            recent = _recently_read(checkpoint, key, int(end["logOffset"]))
        passed_over = PassedOver()
        rewritten: list[str] = []
        younger: list[SourceFile] = []
        youngest = max(recent.values(), default=-1)
        for file in iterate_files(source, passed_over):
            if file.path not in recent:
                younger += [file] if file.modified_ms >= youngest else []
            elif is_rewritten(file, recent[file.path]):
                rewritten.append(file.path)
        skipped = len(rewritten) + len(passed_over.unopened) + len(passed_over.folders)
        lag = Lag(skipped=skipped, skipped_reason=_why_skipped(rewritten, passed_over))
        if recent and FileOptions.of(source).latest_first:
            return replace(
                lag, reason="it reads the newest files first, so what waits is told by no file's age"
            )
        return replace(
            lag,
            files=len(younger),
            bytes=sum(file.size for file in younger),
            seconds=age_of(min((file.modified_ms for file in younger), default=math.inf)),
            records=None if younger else 0,
        )

    def reading(self, source: Source, start: Any, ends: Any) -> Reading:
        try:
            files = list_files(source)
        except StorageError as error:
            raise not_listed(error) from error
        if not files:
            raise RequestError(
                f"There is no file in {source.path}, so there is nothing to read. Check the path."
            )
        return Reading(amount(source, files.values()))

    def chunks(self, size: int) -> Mapping[str, str]:
        return {"maxFileAge": EVER, "maxFilesPerTrigger": str(size)}

    def reader_options(self, source: Source) -> Mapping[str, str]:
        """Let no file's age count, unless one is declared.

        By its own week Spark passes over each file that is older than the newest it has read, be that of a
        clock that is wrong, and reads a file again that is written again once it has forgotten it.
        """
        return {} if source.option("maxFileAge") else {"maxFileAge": EVER}

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        """Compare paths: files elsewhere than where the source reads would all be read again."""
        assert source.path is not None, "a files source has a path"
        for entry in checkpoint.files_log(key).newest_entries(int(offset["logOffset"])):
            path = plain_path(entry.path)
            if not is_inside(path, source.path):
                return f"{key} has read {path}, and {source.name} reads {source.path}"
        return None


def _recently_read(checkpoint: Checkpoint, key: str, upto: int) -> dict[str, int]:
    """Return the files at the end of the log, with their times when they were read (epoch ms)."""
    entries = checkpoint.files_log(key).newest_entries(upto)
    return {plain_path(entry.path): entry.timestamp_ms for entry in entries}


def _why_skipped(rewritten: list[str], passed_over: PassedOver) -> str:
    """Return in a sentence why Spark reads some files no more, or never; empty where there are none."""
    parts = []
    if rewritten:
        parts.append(
            f"{counted(len(rewritten), 'files')} changed after being read, such as {min(rewritten)}: Spark"
            " does not read them again, so what was written since is not in the table"
        )
    if passed_over.unopened:
        parts.append(
            f"{counted(len(passed_over.unopened), 'files')} cannot be opened by Spark, whose names are not"
            f" UTF-8, such as {min(passed_over.unopened)}: rename them"
        )
    if passed_over.folders:
        parts.append(impacts.why_not_looked_into(passed_over.folders))
    return "; ".join(parts)


def _younger(
    files: Iterable[SourceFile], checkpoint: Checkpoint, key: str, upto: int
) -> Iterator[SourceFile]:
    """Yield the files that the end of the log does not have, and that are as young as its youngest."""
    recent = _recently_read(checkpoint, key, upto)
    youngest = max(recent.values(), default=-1)
    return (file for file in files if file.modified_ms >= youngest and file.path not in recent)


def _unread(source: Source, checkpoint: Checkpoint, key: str, upto: int) -> set[str]:
    younger = _younger(iterate_files(source), checkpoint, key, upto)
    unread = {file.path for file in islice(younger, ENOUGH)}
    for entry in checkpoint.files_log(key).entries(upto) if unread else ():
        unread.discard(plain_path(entry.path))
        if not unread:
            break
    return unread
