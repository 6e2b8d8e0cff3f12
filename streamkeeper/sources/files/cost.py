"""Cost of a reset in a files source: which files are read, not read, read again, or gone.

Sources are only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.checkpoint import FileEntry, files_log
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, EMPTY, LATEST, OFFSETS, TIMESTAMP, Restart
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.sources.files import listing as file_listing
from streamkeeper.sources.files.listing import SourceFile
from streamkeeper.sources.files.options import OFF, FileOptions

UNREAD = "unread files are unread and will be read"


@dataclass(frozen=True)
class _Files:
    """The files of a source: those present, and those that the old generation has processed (path → batch).

    ``changed`` were overwritten under the same name since they were processed: Spark never reads them again.
    ``doubtful`` means that the checkpoint's offsets could not be read: whether the newest batch was processed
    or only planned is unknown then.
    """

    present: dict[str, SourceFile]
    processed: dict[str, int]
    doubtful: bool = False
    changed: frozenset[str] = frozenset()
    renamed: bool = False
    """Whether they were processed under another source's name.

    A start after the last processed batch then reads them again.
    """
    times: Mapping[str, int] = field(default_factory=dict)
    """Modification time of each processed file in epoch milliseconds, from the files log."""

    def perhaps_unread(self) -> list[SourceFile]:
        """Return the files that are unread, and those that may be."""
        newest = max(self.processed.values(), default=-1) if self.doubtful else None
        return [file for path, file in self.present.items() if self.processed.get(path, newest) == newest]

    def newest_ms(self, upto: int | None = None) -> int | None:
        """Return the time of the newest processed file, up to a batch of the files log.

        None if there is none.
        """
        return max(
            (at for path, at in self.times.items() if upto is None or self.processed[path] <= upto),
            default=None,
        )


def price_of(
    source: Source,
    standing: CommittedPosition,
    position: dict[str, Any] | None,
    restart: Restart,
    *,
    where: str,
    offset: Any,
    stateful: bool | None,
) -> SourcePrice:
    """Return the cost of a reset in a files source: see :func:`streamkeeper.sources.cost.price_of`."""
    present = file_listing.list_files(source)
    processed: dict[str, int] = {}
    times: dict[str, int] = {}
    changed: set[str] = set()
    try:
        for entry in processed_files(standing, source, offset, everything=position is None):
            path = files_log.plain_path(entry.path)
            processed[path], times[path] = entry.batch, entry.timestamp_ms
            if path in present and present[path].modified_ms != entry.timestamp_ms:
                changed.add(path)
    except CheckpointError as error:
        if restart.start.mode == AFTER_LAST:
            raise
        unknown = Amount(None, 0, None, f"the list of processed files cannot be read: {error}")
        return SourcePrice(source.name, where, f"start {restart.start.mode}", lost=unknown, repeated=unknown)
    renamed = not processed and dict(under_other_names(standing, source, position or {}, present))
    if renamed:
        return _files_price(source, where, _Files(present, renamed, renamed=True), restart, stateful)
    return _files_price(
        source,
        where,
        _Files(present, processed, position is None, frozenset(changed), times=times),
        restart,
        stateful,
    )


def under_other_names(
    standing: CommittedPosition, source: Source, position: dict[str, Any], present: dict[str, SourceFile]
) -> Iterator[tuple[str, int]]:
    """Yield the files of an unknown source that were processed under another source's name.

    :param position: the offsets of the checkpoint's sources, by their names there.
    """
    if source.name in position:
        return
    keys = standing.checkpoint.sources()
    for name, offset in position.items():
        if name in keys and check_fits(source.format, offset) is None and offset is not None:
            for item in standing.checkpoint.files_log(name).entries(offset["logOffset"]):
                path = files_log.plain_path(item.path)
                if path in present:
                    yield path, item.batch


def processed_files(
    standing: CommittedPosition, source: Source, offset: Any, everything: bool
) -> Iterator[FileEntry]:
    """Yield the files that the old generation processed, from its files log.

    If the offset is unknown, these are all files of the log.
    """
    last = None if everything else (offset or {}).get("logOffset", -1)
    keys = standing.checkpoint.sources()
    key = source.name if source.name in keys else "0" if keys == ("0",) else None
    if key is not None and last != -1:
        yield from standing.checkpoint.files_log(key).entries(last)


def _files_price(
    source: Source, where: str, files: _Files, restart: Restart, stateful: bool | None
) -> SourcePrice:
    start = restart.start
    present, processed = files.present, files.processed
    unread = [file for path, file in present.items() if path not in processed]
    read = [file for path, file in present.items() if path in processed]
    lost: list[SourceFile] = []
    repeated: list[SourceFile] = []
    then = "after the last processed batch"
    newest_ms = files.newest_ms() if start.mode == AFTER_LAST else None
    if start.mode == AFTER_LAST and files.renamed:
        repeated, then = (
            read,
            "the beginning: the checkpoint knows no source of this name, but its files under another",
        )
    elif start.mode == EARLIEST:
        repeated, then = read, f"the beginning: all {len(present):,} files that are there"
    elif start.mode == LATEST:
        lost, then = files.perhaps_unread(), "only files that appear after the new generation has begun"
    elif start.mode == TIMESTAMP:
        moment = start.timestamp_ms or 0
        lost = [file for file in files.perhaps_unread() if file.modified_ms < moment]
        repeated = [file for file in read if file.modified_ms >= moment]
        then = (
            "files changed at or after"
            f" {datetime.fromtimestamp(moment / 1000, timezone.utc).isoformat(timespec='milliseconds')}"
        )
    elif start.mode == OFFSETS:
        log_offset = int((start.offsets or {})[source.name]["logOffset"])
        highest = -1 if files.renamed else max(processed.values(), default=-1)
        if log_offset > highest:
            raise RequestError(
                f"offsets of {source.name} say logOffset {log_offset}, but the flow's files log ends at"
                f" {highest}. Give a number from -1 (nothing) to {highest}; use after-last to start at the"
                " end."
            )
        repeated = [file for file in read if processed[file.path] > log_offset]
        lost = [
            file for file in files.perhaps_unread() if processed.get(file.path, log_offset + 1) <= log_offset
        ]
        then, newest_ms = f"after files log {log_offset}", files.newest_ms(log_offset)
    options = FileOptions.of(source)
    left_out = set(lost)
    skipped = options.skipped(newest_ms, (file for file in unread if file not in left_out))
    lost += skipped
    too_old = set(options.skipped(newest_ms, repeated))
    repeated = [file for file in repeated if file not in too_old]
    rebuilt = restart.state != EMPTY and stateful is not False and start.mode != EARLIEST
    replayed = {file.path for file in read} - {file.path for file in repeated}
    gone = [path for path in processed if path not in present or path in files.changed]
    return SourcePrice(
        source=source.name,
        now=where,
        then=then,
        lost=file_listing.amount(source, lost),
        repeated=file_listing.amount(source, repeated),
        replayed=(
            file_listing.amount(source, [present[path] for path in replayed])
            if rebuilt and stateful
            else NONE
        ),
        gone=Amount(len(gone), 0, None, _why_gone(options)) if gone and rebuilt else NONE,
        otherwise=bool(gone or too_old),
        first_again=min((processed[file.path] for file in repeated), default=None),
        notes=(
            f"{len({file.path for file in unread} - {file.path for file in lost}):,} {UNREAD}",
            *(_rebuild_notes(gone, stateful, len(replayed)) if rebuilt else ()),
            *options.notes(len(skipped), gone, skips_on=start.mode in (LATEST, TIMESTAMP)),
        ),
    )


def _rebuild_notes(gone: list[str], stateful: bool | None, replayed: int) -> Iterator[str]:
    if stateful is None:
        yield (
            f"if the query keeps state, {replayed:,} processed files are read again to rebuild it, without"
            " writing"
        )
    if gone:
        said = f"{len(gone):,} processed files are gone or rewritten, such as {gone[0]}"
        yield f"{said}: a state rebuilt without their rows would let those come again"


def _why_gone(options: FileOptions) -> str:
    cleaned = "" if options.clean == OFF else f" (cleanSource is {options.clean})"
    return f"the files no longer exist or were rewritten{cleaned}"
