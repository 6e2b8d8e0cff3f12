"""Impact of a reset in a files source: which files are read, not read, read again, or gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry, files_log
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows.generations import AFTER_LAST, LATEST, OFFSETS, TIMESTAMP
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import Before, Case, Resolved, SourceMove, read_again
from streamkeeper.sources.files import listing as file_listing
from streamkeeper.sources.files.listing import PassedOver, SourceFile, is_inside
from streamkeeper.sources.files.options import OFF, FileOptions
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, counted, unknown

PATHS = "paths"
"""Name, in the evidence of a generation's start, of the paths of its files sources, by source name."""
UNREAD = "unread files will be read"
_MAYBE_READ = (
    "the lists of the last batches may be gone: unread files may have been read by them, and count as"
    " duplicates, too"
)


@dataclass(frozen=True)
class FilesPosition:
    """Files that count as processed; ``entries`` reads them anew at each call, to keep none in memory."""

    entries: Callable[[], Iterable[FileEntry]]


Resolve = Callable[[Callable[[], tuple[FileEntry, ...]]], Resolved[FilesPosition]]


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
    """Whether they were processed under another source's name: a start after the last batch repeats them."""
    lists_are_gone: bool = False
    """Whether the newest lists may be gone: then files that no list has may have been processed, too."""
    listed: Mapping[str, int] = field(default_factory=dict)
    """Files that count as processed where the new generation starts, with their times (epoch ms)."""
    passed_over: PassedOver = field(default_factory=PassedOver)
    gone_unread: tuple[str, ...] = ()
    """Paths of files that a batch was planned with, which was not processed, and that no longer exist."""

    def perhaps_unread(self) -> list[SourceFile]:
        """Return the files that are unread, and those that may be."""
        newest = max(self.processed.values(), default=-1) if self.doubtful else None
        return [file for path, file in self.present.items() if self.processed.get(path, newest) == newest]


def impact_of(case: Case, resolve: Resolve) -> SourceImpact:
    """Return the impact of a reset in a files source."""
    source, standing, mode = case.source, case.standing, case.start.mode
    passed_over = PassedOver()
    present = file_listing.list_files(source, passed_over)
    entries: dict[str, FileEntry] = {}
    try:
        for entry in processed_files(standing, source, case.offset, everything=case.position is None):
            entries[files_log.plain_path(entry.path)] = entry
        renamed = {} if entries else dict(under_other_names(standing, source, case.position or {}, present))
        files = _Files(present, {path: entry.batch for path, entry in entries.items()} or renamed)
        if mode == OFFSETS:
            _check_offset(case, -1 if renamed else max(files.processed.values(), default=-1))
        listing = tuple(FileEntry(path, file.modified_ms, 0) for path, file in present.items())
        position = resolve(lambda: listing).position
        listed = {
            files_log.plain_path(entry.path): entry.timestamp_ms
            for entry in (position.entries() if position is not None else ())
        }
    except CheckpointError as error:
        if mode == AFTER_LAST:
            raise _other_starts(case, error) from error
        doubt = unknown(f"the list of processed files cannot be read: {error}")
        return case.impact(f"start {mode}", lost=doubt, repeated=doubt)
    changed = {
        path
        for path, entry in entries.items()
        if path in present and present[path].modified_ms != entry.timestamp_ms
    }
    weighed_files = replace(
        files,
        doubtful=case.position is None,
        changed=frozenset(changed),
        renamed=bool(renamed),
        lists_are_gone=case.position is None and _lists_are_gone(case),
        listed=listed,
        passed_over=passed_over,
        gone_unread=_gone_unread(case),
    )
    return _files_impact(case, weighed_files)


def gone_unread(source: Source, checkpoint: Checkpoint, after: int) -> tuple[str, ...]:
    """Return the paths of files that a checkpoint lists after a batch of its files log, and that are gone.

    :raises CheckpointError: a file of the log is damaged.
    """
    log = checkpoint.files_log(source.name)
    last = log.last_batch()
    listed = () if last is None or last <= after else log.entries_after(after, last)
    return tuple(file_listing.gone(source, listed))


def _gone_unread(case: Case) -> tuple[str, ...]:
    standing = case.standing
    planned = max(standing.checkpoint.offset_batches(), default=-1)
    if case.position is None or planned > (-1 if standing.batch is None else standing.batch) + 1:
        return ()  # it is not known which were read, or a place in the past, after which they were
    try:
        after = int((case.offset or {}).get("logOffset", -1))
        return gone_unread(case.source, standing.checkpoint, after)
    except CheckpointError:  # a new generation needs no list of a batch that was not processed
        return ()


def why_gone_unread(paths: Sequence[str]) -> str:
    """Return in a sentence that files of a planned batch are gone."""
    return (
        f"{counted(len(paths), 'files')} of a batch that was planned and not finished no longer exist, such"
        f" as {min(paths)}: Spark would count them as read. Put back, they are read"
    )


def _lists_are_gone(case: Case) -> bool:
    """Return whether there are fewer lists of files than batches, each of which may have added one."""
    standing, name = case.standing, case.source.name
    offset, seed = standing.start.positions.get(name) or {}, standing.start.seed_batch
    newest = standing.checkpoint.files_log(name).last_batch()
    lists = (-1 if newest is None else newest) - int(offset.get("logOffset", -1))
    return standing.batch is not None and lists < standing.batch - (-1 if seed is None else seed)


def _other_starts(case: Case, damage: CheckpointError) -> CheckpointError:
    """Return the error of a damaged list of processed files, with the starts that need none of it."""
    name = case.source.name
    upto = case.standing.checkpoint.files_log(name).sound_upto()
    offsets = json.dumps({**(case.position or {}), name: {"logOffset": upto}})
    return CheckpointError(
        f"{str(damage).partition('. Nothing was changed')[0]}. Which files of {name} were read is not known"
        " without it. Nothing was changed. Restore it from a copy; or choose another start with"
        f" reset_checkpoint: explicit offsets, such as {offsets} (the newest list that can be read; the files"
        " of later ones are read again), a timestamp or earliest."
    )


def _check_offset(case: Case, highest: int) -> None:
    log_offset = int((case.start.offsets or {})[case.source.name]["logOffset"])
    if log_offset > highest:
        raise RequestError(
            f"offsets of {case.source.name} say logOffset {log_offset}, but the flow's files log ends at"
            f" {highest}. Give a number from -1 (nothing) to {highest}; use after-last to start at the end."
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
    """Yield the files that the old generation processed, from its files log, after those of
    :func:`earlier_files`.

    If the offset is unknown, these are all files of the log.

    :raises CheckpointError: the log lacks what the offset says, be it all of it.
    """
    if not everything and offset is not None:
        yield from earlier_files(source, Before.of(standing, source, offset, strict=False))
    last = None if everything else (offset or {}).get("logOffset", -1)
    if last != -1 and (last is not None or source.name in standing.checkpoint.sources()):
        yield from standing.checkpoint.files_log(source.name).entries(last)


def earlier_files(source: Source, before: Before) -> Iterator[FileEntry]:
    """Yield the files at a source's path that earlier generations processed, and that the files log of the
    last one does not have: it read another path. They come before the batches of that log.

    :raises CheckpointError: a files log is damaged.
    """
    place, between = str(source.path), path_then(before.evidence, source)
    if before.checkpoint is None or before.offset is None or between in (None, place):
        return
    log = _entries(before.checkpoint, before.key, before.offset)
    listed, others = {files_log.plain_path(entry.path) for entry in log}, [between]
    for position, offset in before.earlier():
        for entry in _entries(position.checkpoint, source.name, offset):
            path = files_log.plain_path(entry.path)
            # What a generation in between did not have of its own path was left out on purpose.
            if (
                path not in listed
                and is_inside(path, place)
                and not any(is_inside(path, at) for at in others)
            ):
                listed.add(path)
                yield replace(entry, batch=0)
        then = path_then(position.start.evidence, source)
        if then == place:
            return  # it had all of it
        others += [] if then is None else [then]


def _entries(checkpoint: Checkpoint, key: str, offset: Any) -> Iterable[FileEntry]:
    upto = int(offset["logOffset"])
    return checkpoint.files_log(key).entries(upto) if upto >= 0 else ()


def path_then(evidence: Mapping[str, Any], source: Source) -> str | None:
    """Return the path at which a source was read when a generation began; None if that is not recorded."""
    paths: Mapping[str, str] = evidence.get(PATHS, {})
    return paths.get(source.name)


@dataclass(frozen=True)
class _Shares:
    """The files of a source by what the new generation does with them.

    ``waiting`` is the number of unread files that it reads, ``lost`` are those that it does not: of these
    ``skipped`` is the number of those that are older than maxFileAge allows. Of the processed files it reads
    ``repeated`` again; ``replayed`` only rebuild the state; ``gone`` are paths that no longer have what was
    read. ``too_old`` is the number of those that would be read again, if they were not too old.
    """

    waiting: int
    lost: list[SourceFile]
    skipped: int
    repeated: list[SourceFile]
    replayed: list[SourceFile]
    gone: list[str]
    too_old: int


def _shares(files: _Files, options: FileOptions) -> _Shares:
    present, processed, listed = files.present, files.processed, files.listed
    newest_ms = max(listed.values(), default=None)
    unread = [file for path, file in present.items() if path not in processed]
    skipped = options.skipped(newest_ms, (file for file in unread if file.path not in listed))
    lost = [file for file in files.perhaps_unread() if file.path in listed] + skipped
    read = [file for path, file in present.items() if path in processed]
    unlisted = [file for file in read if file.path not in listed]
    too_old = {file.path for file in options.skipped(newest_ms, unlisted)}
    repeated = [file for file in unlisted if file.path not in too_old]
    if files.lists_are_gone:
        lost_paths = {file.path for file in lost}
        repeated += [file for file in unread if file.path not in lost_paths]
    again = {file.path for file in repeated}
    return _Shares(
        waiting=len({file.path for file in unread} - {file.path for file in lost}),
        lost=lost,
        skipped=len(skipped),
        repeated=repeated,
        replayed=[file for file in read if file.path not in again],
        gone=[path for path in processed if path not in present or path in files.changed],
        too_old=len(too_old),
    )


def _files_impact(case: Case, files: _Files) -> SourceImpact:
    source, options = case.source, FileOptions.of(case.source)
    shares = _shares(files, options)
    gone, replayed = shares.gone, shares.replayed
    return case.impact(
        _words(case, files),
        lost=_with_gone(file_listing.amount(source, shares.lost), files.gone_unread),
        repeated=file_listing.amount(source, shares.repeated),
        replayed=file_listing.amount(source, replayed) if case.rebuilds and case.stateful else NONE,
        gone=Amount(len(gone), 0, None, _why_gone(options)) if gone and case.rebuilds else NONE,
        otherwise=bool(gone or shares.too_old),
        first_again=min(
            (files.processed[file.path] for file in shares.repeated if file.path in files.processed),
            default=None,
        ),
        notes=(
            f"{shares.waiting:,} {UNREAD}",
            *([_MAYBE_READ] if files.lists_are_gone and shares.waiting else []),
            *([why_not_looked_into(files.passed_over.folders)] if files.passed_over.folders else []),
            *(_rebuild_notes(gone, case.stateful, len(replayed)) if case.rebuilds else ()),
            *options.notes(shares.skipped, gone, skips_on=case.start.mode in (LATEST, TIMESTAMP)),
        ),
    )


def _with_gone(lost: Amount, gone_unread: Sequence[str]) -> Amount:
    """Add files that nobody can read any more to what is lost."""
    if not gone_unread:
        return lost
    files = None if lost.files is None else lost.files + len(gone_unread)
    return Amount(files, lost.bytes, None, why_gone_unread(gone_unread))


def why_not_looked_into(paths: list[str]) -> str:
    """Return in a sentence why Spark reads none of some files of folders below the source's own."""
    return (
        f"{counted(len(paths), 'files')} are in folders that Spark does not look into, such as {min(paths)}:"
        " declare recursiveFileLookup in options ('true'), or place them in the source's own folder"
    )


def _words(case: Case, files: _Files) -> str:
    """Return in words where a start begins to read."""
    if case.start.mode == OFFSETS:
        return f"after {describe((case.start.offsets or {})[case.source.name])}"
    after_last = "after the last processed batch"
    if files.renamed:
        after_last = "the beginning: the checkpoint knows no source of this name, but its files under another"
    there = f"all {len(files.present):,} files that are there"
    return case.words(after_last, there, "files that appear", "files changed")


@dataclass(frozen=True)
class _FilesSince:
    """The files of a source as a move to an earlier place finds them.

    ``since`` are the paths that were read after that place, ``other_names`` those before it, under another
    source's name. Of ``since`` those ``gone`` no longer exist, and ``rewritten`` is the number of those that
    were overwritten. ``skipped`` are paths that are too old to be read from there; ``waiting`` is the number
    of files that were never read, and are.
    """

    present: dict[str, SourceFile]
    since: frozenset[str]
    other_names: frozenset[str]
    gone: list[str]
    rewritten: int
    skipped: frozenset[str]
    waiting: int

    def of(self, paths: Iterable[str]) -> list[SourceFile]:
        """Return those of the paths that are there."""
        return [self.present[path] for path in paths if path in self.present]


def _files_since(source: Source, move: SourceMove) -> _FilesSince:
    offset, then = move.offset(source), move.then(source)
    listed = {
        files_log.plain_path(entry.path): entry.timestamp_ms
        for entry in processed_files(move.place.standing, source, then, everything=False)
    }
    since = {
        path: entry.timestamp_ms
        for entry in processed_files(move.standing, source, offset, everything=move.position is None)
        if (path := files_log.plain_path(entry.path)) not in listed
    }
    present = file_listing.list_files(source)
    other_names = frozenset(
        ()
        if listed
        else dict(under_other_names(move.place.standing, source, move.place.positions(), present))
    )
    unlisted = (file for path, file in present.items() if path not in listed)
    too_old = FileOptions.of(source).skipped(max(listed.values(), default=None), unlisted)
    skipped = frozenset(file.path for file in too_old)
    return _FilesSince(
        present,
        frozenset(since),
        other_names,
        gone=[path for path in since if path not in present],
        rewritten=sum(path in present and present[path].modified_ms != read for path, read in since.items()),
        skipped=skipped,
        waiting=len(present.keys() - listed.keys() - since.keys() - other_names - skipped),
    )


def impact_again(source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
    """Return the impact of a move to an earlier place: see :class:`SourceFormat`."""
    files = _files_since(source, move)
    since, skipped = files.since, files.skipped
    # Rows of files that are too old to be read again are not lost if the table keeps them.
    lost = file_listing.amount(source, files.of(skipped if move.restored else skipped - since))
    read = since - files.other_names if move.restored else since | files.other_names
    again = file_listing.amount(source, files.of(read - skipped))
    notes = (f"{files.waiting:,} {UNREAD}", *(note for note in impact.notes if not note.endswith(UNREAD)))
    otherwise = bool(files.gone or files.rewritten or skipped)
    impact = replace(impact, lost=lost, notes=notes, otherwise=otherwise)
    impact = read_again(impact, again, move.restored)
    if files.other_names and move.restored:  # the restored table has them already
        impact = replace(impact, repeated=file_listing.amount(source, files.of(files.other_names)))
    if files.rewritten:
        note = f"{files.rewritten:,} files were rewritten since they were read: they are read as they are now"
        impact = replace(impact, notes=(*impact.notes, note))
    return _without_gone(impact, files, move.restored) if files.gone else impact


def _without_gone(impact: SourceImpact, files: _FilesSince, restored: bool) -> SourceImpact:
    """Return an impact with the files that no longer exist: their rows are lost if the table goes back."""
    count = len(files.gone)
    if not restored:
        note = f"{count:,} files that were read since are gone: they are not read again"
        return replace(impact, notes=(*impact.notes, note))
    more = f", and {len(files.skipped):,} are too old by maxFileAge" if files.skipped else ""
    reason = f"the files no longer exist, such as {files.gone[0]}{more}"
    return replace(impact, lost=Amount(count + len(files.skipped), 0, None, reason))


def _rebuild_notes(gone: list[str], stateful: bool | None, replayed: int) -> Iterator[str]:
    if stateful is None:
        yield (
            f"if the query keeps state, {replayed:,} processed files are read again to rebuild it, without"
            " writing"
        )
    if gone:
        note = f"{len(gone):,} processed files are gone or rewritten, such as {gone[0]}"
        yield f"{note}: a state rebuilt without their rows would let those come again"


def _why_gone(options: FileOptions) -> str:
    cleaned = "" if options.clean == OFF else f" (cleanSource is {options.clean})"
    return f"the files no longer exist or were rewritten{cleaned}"
