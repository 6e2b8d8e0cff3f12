"""From where a generation reads each source: which files count as processed, or how far the rate source has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declarations import Source
from streamkeeper.errors import CheckpointError, RecoveryError
from streamkeeper.generations import AFTER_LAST, EARLIEST, LATEST, OFFSETS, TIMESTAMP, Generation
from streamkeeper.positions import check_fits
from streamkeeper.standing import Standing


@dataclass(frozen=True)
class FilesOrigin:
    """Files that count as processed; ``entries`` reads them anew at each call, so that millions need not be kept in memory."""

    entries: Callable[[], Iterable[FileEntry]]


@dataclass(frozen=True)
class RateOrigin:
    """Seconds of the rate source that count as processed, since the start that the bytes of its own file say."""

    started: bytes
    seconds: int


@dataclass(frozen=True)
class Origin:
    """From where a generation reads. A source that is not in ``sources`` is read from its beginning.

    ``notes`` say in words what is not as before: sources that are new, or gone.
    """

    sources: Mapping[str, FilesOrigin | RateOrigin]
    watermark_ms: int = 0
    notes: tuple[str, ...] = field(default=())


Listing = Callable[[Source], Iterable[FileEntry]]
"""Lists the files that a source has now, as Spark would find them."""


def find_origin(generation: Generation, sources: tuple[Source, ...], where: Standing | None, listing: Listing) -> Origin:
    """Find from where a generation reads each source, by its decision.

    :param where: where the generation before it stood; None if there was none.
    :raises CheckpointError: the old checkpoint does not say what the decision needs.
    :raises RecoveryError: explicit offsets do not fit the sources.
    """
    start = generation.start
    match start.mode:
        case mode if mode == AFTER_LAST:
            return _after_last(sources, where)
        case mode if mode == EARLIEST:
            return Origin({})
        case mode if mode == LATEST:
            return Origin({source.name: _listed(source, listing) for source in sources if source.reads_files})
        case mode if mode == TIMESTAMP:
            assert start.timestamp_ms is not None, "a decision by timestamp has one"
            return _before(start.timestamp_ms, sources, where, listing)
        case mode if mode == OFFSETS:
            return _explicit(start.offsets or {}, sources, where)
        case mode:
            raise RecoveryError(f"Generation {generation.number} was decided to start from {mode!r}, which this release does not know.")


def _after_last(sources: tuple[Source, ...], where: Standing | None) -> Origin:
    offsets = where.offsets() if where is not None else None
    if where is None or offsets is None:
        return Origin({}, notes=("nothing was processed before",))
    keys = source_keys(sources, list(offsets.sources), offsets.version)
    names = {source.name for source in sources}
    notes = [f"source {name} is new: read from its beginning" for name in sorted(names - keys.keys())]
    notes += [f"source {name} is not read any more" for name in offsets.sources if offsets.version == 2 and name not in names]
    found: dict[str, FilesOrigin | RateOrigin] = {}
    for source in sources:
        if source.name in keys and offsets.sources[keys[source.name]] is not None:
            found[source.name] = _at(source, keys[source.name], offsets.sources[keys[source.name]], where.checkpoint)
    return Origin(found, offsets.watermark_ms, tuple(notes))


def _explicit(wanted: Mapping[str, Any], sources: tuple[Source, ...], where: Standing | None) -> Origin:
    names = {source.name for source in sources}
    missing, unknown = sorted(names - wanted.keys()), sorted(wanted.keys() - names)
    if missing or unknown:
        raise RecoveryError(
            f"The explicit offsets do not fit the flow's sources: without an offset are {', '.join(missing) or 'none'}; not of the flow "
            f"are {', '.join(unknown) or 'none'}. Reset the flow again with one offset for each of {', '.join(sorted(names))}."
        )
    if where is None:
        raise RecoveryError("There is no earlier generation that explicit offsets could be offsets of. Start from earliest or latest.")
    kept = where.checkpoint.sources()
    keys = {source.name: source.name if source.name in kept else str(index) for index, source in enumerate(sources)}
    return Origin({source.name: _at(source, keys[source.name], wanted[source.name], where.checkpoint) for source in sources})


def _before(timestamp_ms: int, sources: tuple[Source, ...], where: Standing | None, listing: Listing) -> Origin:
    found: dict[str, FilesOrigin | RateOrigin] = {}
    for source in sources:
        if source.reads_files:
            found[source.name] = _listed(source, listing, timestamp_ms)
        elif where is not None and source.name in where.checkpoint.sources():
            began = where.checkpoint.initial_offsets(source.name)
            seconds = max(0, (timestamp_ms - int(began)) // 1000)
            found[source.name] = RateOrigin(where.checkpoint.read(f"sources/{source.name}/0"), seconds)
    return Origin(found)


def _listed(source: Source, listing: Listing, before_ms: int | None = None) -> FilesOrigin:
    files = [entry for entry in listing(source) if before_ms is None or entry.timestamp_ms < before_ms]
    return FilesOrigin(lambda: files)


def _at(source: Source, key: str, offset: Any, checkpoint: Checkpoint) -> FilesOrigin | RateOrigin:
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        raise RecoveryError(f"The position of source {source.name} cannot be used: {misfit}")
    if not source.reads_files:
        return RateOrigin(checkpoint.read(f"sources/{key}/0"), int(offset))
    log, upto = checkpoint.files_log(key), int(offset["logOffset"])
    last = log.last_batch()
    if upto > (-1 if last is None else last):
        raise CheckpointError(
            f"Source {source.name} is to start after batch {upto} of its files log, but {checkpoint.path(f'sources/{key}')} "
            f"ends with batch {last}. Choose an offset up to that, or start from a timestamp."
        )

    def entries() -> Iterator[FileEntry]:
        return log.entries(upto) if upto >= 0 else iter(())

    return FilesOrigin(entries)


def source_keys(sources: tuple[Source, ...], found: list[str], version: int) -> dict[str, str]:
    """Map the flow's sources to the old offsets: by name, or in an old log without names by their order."""
    if version == 1:
        return {source.name: str(index) for index, source in enumerate(sources) if str(index) in found}
    return {source.name: source.name for source in sources if source.name in found}
