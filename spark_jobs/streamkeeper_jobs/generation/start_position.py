"""Start position of a generation in each source: what counts as processed.

That is files, Kafka records, table versions, or seconds of the rate source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import CheckpointError, RecoveryError
from streamkeeper.flows.generations import (
    AFTER_LAST,
    BATCH,
    BESIDE,
    EARLIEST,
    LATEST,
    OFFSETS,
    TIMESTAMP,
    Generation,
)
from streamkeeper.flows.position import CommittedPosition
from streamkeeper_jobs.sources import start_delta, start_kafka
from streamkeeper_jobs.sources.look import Looks
from streamkeeper_jobs.sources.start_delta import DeltaOrigin
from streamkeeper_jobs.sources.start_kafka import KafkaOrigin


@dataclass(frozen=True)
class FilesOrigin:
    """Files that count as processed.

    ``entries`` reads them anew at each call: millions of them need not be kept in memory.
    """

    entries: Callable[[], Iterable[FileEntry]]


@dataclass(frozen=True)
class RateOrigin:
    """Seconds of the rate source that count as processed.

    They are counted from the time that its own checkpoint file, ``started``, holds.
    """

    started: bytes
    seconds: int


SourceOrigin = FilesOrigin | RateOrigin | KafkaOrigin | DeltaOrigin


@dataclass(frozen=True)
class Origin:
    """Start position of a generation. A source that is not in ``sources`` is read from its beginning.

    ``notes`` describe what has changed: sources that are new or gone.
    """

    sources: Mapping[str, SourceOrigin]
    watermark_ms: int = 0
    notes: tuple[str, ...] = field(default=())


def find_origin(
    generation: Generation, sources: tuple[Source, ...], where: CommittedPosition | None, looks: Looks
) -> Origin:
    """Return the start position of a generation in each source, according to its decision.

    :param where: position of the generation before; None if there was none.
    :raises CheckpointError: the old checkpoint lacks what the decision needs.
    :raises RecoveryError: explicit offsets do not fit the sources, or unread data is gone.
    :raises SourceError: a source cannot be read now.
    """
    found = _find(generation, sources, where, looks)
    began = {
        source.name: replace(origin, first_read=looks.first_read(source))
        for source in sources
        if isinstance(origin := found.sources.get(source.name), DeltaOrigin)
    }
    return replace(found, sources={**found.sources, **began})


def _find(
    generation: Generation, sources: tuple[Source, ...], where: CommittedPosition | None, looks: Looks
) -> Origin:
    start = generation.start
    match start.mode:
        case mode if mode in (
            AFTER_LAST,
            BATCH,
        ):  # at its position, or at its position after that batch
            return _after_last(sources, where, looks, generation.accepted)
        case mode if mode == EARLIEST:
            return _from_the_beginning(sources, looks, declared=generation.previous is None)
        case mode if mode == LATEST:
            return Origin(
                {source.name: found for source in sources if (found := _at_end(source, where, looks))}
            )
        case mode if mode == TIMESTAMP:
            assert start.timestamp_ms is not None, "a decision by timestamp has one"
            moment = start.timestamp_ms
            return Origin(
                {
                    source.name: found
                    for source in sources
                    if (found := _at_moment(source, where, looks, moment))
                }
            )
        case mode if (
            mode == OFFSETS and start.generation is not None
        ):  # kept by a backup: the plan asked for consent to the cost
            assert where is not None, "the generation whose offsets they are was found"
            return _after_kept(sources, start.offsets or {}, where, looks, generation.accepted)
        case mode if mode == OFFSETS:
            return _explicit(start.offsets or {}, sources, where, looks)
        case mode if mode == BESIDE:
            raise RecoveryError(
                f"Generation {generation.number} continues after a table that was built beside, and"
                f" {generation.recovery} ended before that table replaced the old one. Continue that"
                " recovery; if it was abandoned, reset the flow from the generation before"
                " (reset_checkpoint)."
            )
        case mode:
            raise RecoveryError(
                f"Generation {generation.number} was decided to start from {mode!r}, which this release does"
                " not know."
            )


def _after_last(
    sources: tuple[Source, ...], where: CommittedPosition | None, looks: Looks, accepted: tuple[str, ...]
) -> Origin:
    offsets = where.offsets() if where is not None else None
    keys = {} if offsets is None else source_keys(sources, list(offsets.sources), offsets.version)
    names = {source.name for source in sources}
    notes = (
        [f"source {name} is new: read from its beginning" for name in sorted(names - keys.keys())]
        if offsets is not None
        else []
    )
    if offsets is None:
        notes = ["nothing was processed before"]
    elif offsets.version == 2:
        notes += [f"source {name} is no longer read" for name in offsets.sources if name not in names]
    stood = {name: offsets.sources[key] for name, key in keys.items()} if offsets is not None else {}
    found, said = _all_onward(sources, stood, keys, where, looks=looks, accepted=accepted)
    return Origin(found, offsets.watermark_ms if offsets is not None else 0, (*notes, *said))


def _after_kept(
    sources: tuple[Source, ...],
    kept: Mapping[str, Any],
    where: CommittedPosition,
    looks: Looks,
    accepted: tuple[str, ...],
) -> Origin:
    """Continue after the offsets of a batch that a backup kept, without its watermark."""
    names, read = (
        {source.name for source in sources},
        {name for name, offset in kept.items() if offset is not None},
    )
    notes = [f"source {name} is new: read from its beginning" for name in sorted(names - read)]
    notes += [f"source {name} is no longer read" for name in sorted(read - names)]
    found, said = _all_onward(
        sources, kept, _folders(sources, where.checkpoint), where, looks=looks, accepted=accepted
    )
    return Origin(found, notes=(*notes, *said))


def _all_onward(
    sources: tuple[Source, ...],
    stood: Mapping[str, Any],
    keys: Mapping[str, str],
    where: CommittedPosition | None,
    *,
    looks: Looks,
    accepted: tuple[str, ...],
) -> tuple[dict[str, SourceOrigin], list[str]]:
    """Continue in every source after ``stood``, its processed position by source name.

    ``keys`` maps the names of sources to their names in the checkpoint.
    """
    found: dict[str, SourceOrigin] = {}
    notes: list[str] = []
    for source in sources:
        key = keys.get(source.name, source.name)
        origin, said = _onward(source, key, stood.get(source.name), where, looks=looks, accepted=accepted)
        notes += said
        if origin is not None:
            found[source.name] = origin
    return found, notes


def _onward(
    source: Source,
    key: str,
    offset: Any,
    where: CommittedPosition | None,
    *,
    looks: Looks,
    accepted: tuple[str, ...],
) -> tuple[SourceOrigin | None, list[str]]:
    """Continue after what was processed of one source; if nothing was, at its declared start."""
    if offset is not None:
        _require_fit(source, offset)
    if source.format == KAFKA:
        initial = _initial(where, key)
        if offset is None and initial is None:
            return start_kafka.as_declared(source, partial(looks.topics, source)), []
        ids = {} if where is None else where.start.evidence.get("topics", {}).get(source.name, {})
        return start_kafka.after_last(
            source, offset, initial, looks.topics(source), ids=ids, accepted=accepted
        )
    if source.format == DELTA:
        if offset is None:
            return (
                None if source.start == "earliest" else start_delta.as_declared(source, looks.history(source))
            ), []
        return start_delta.after_last(source, offset, looks.history(source), accepted)
    if offset is None or where is None:
        return None, []
    return _at(source, key, offset, where.checkpoint), []


def _from_the_beginning(sources: tuple[Source, ...], looks: Looks, declared: bool) -> Origin:
    """Read everything; a first generation starts where its sources are declared to start.

    For Kafka, Spark itself finds the declared start.
    """
    found: dict[str, SourceOrigin] = {}
    for source in sources:
        if source.format == KAFKA and not declared:
            found[source.name] = start_kafka.at_beginning(looks.topics(source))
        elif source.format == KAFKA and (
            start := start_kafka.as_declared(source, partial(looks.topics, source))
        ):
            found[source.name] = start
        elif source.format == DELTA and declared and source.start != "earliest":
            origin = start_delta.as_declared(source, looks.history(source))
            assert origin is not None, "another start than the beginning is a position"
            found[source.name] = origin
    return Origin(found)


def _at_end(source: Source, where: CommittedPosition | None, looks: Looks) -> SourceOrigin | None:
    if source.reads_files:
        return _listed(source, looks)
    if source.format == KAFKA:
        return start_kafka.at_end(_initial(where, source.name), looks.topics(source))
    return start_delta.at_end(looks.history(source)) if source.format == DELTA else None


def _at_moment(
    source: Source, where: CommittedPosition | None, looks: Looks, moment: int
) -> SourceOrigin | None:
    if source.reads_files:
        return _listed(source, looks, moment)
    if source.format == KAFKA:
        return start_kafka.at_moment(
            looks.at_time(source, moment), _initial(where, source.name), looks.topics(source)
        )
    if source.format == DELTA:
        return start_delta.at_moment(looks.history(source), moment)
    if where is None or source.name not in where.checkpoint.sources():
        return None
    began = where.checkpoint.initial_offsets(source.name)
    return RateOrigin(
        where.checkpoint.read(f"sources/{source.name}/0"), max(0, (moment - int(began)) // 1000)
    )


def _explicit(
    wanted: Mapping[str, Any], sources: tuple[Source, ...], where: CommittedPosition | None, looks: Looks
) -> Origin:
    names = {source.name for source in sources}
    missing, unknown = sorted(names - wanted.keys()), sorted(wanted.keys() - names)
    if missing or unknown:
        raise RecoveryError(
            "The explicit offsets do not fit the flow's sources: without an offset are"
            f" {', '.join(missing) or 'none'}; not of the flow are {', '.join(unknown) or 'none'}. Reset the"
            f" flow again with one offset for each of {', '.join(sorted(names))}."
        )
    if where is None:
        raise RecoveryError(
            "Explicit offsets need an earlier generation, and there is none. Start from earliest or latest."
        )
    keys = _folders(sources, where.checkpoint)
    found: dict[str, SourceOrigin] = {}
    for source in sources:
        offset = wanted[source.name]
        if offset is None:  # nothing of it was read: start at its beginning
            if source.format == KAFKA:
                found[source.name] = start_kafka.at_beginning(looks.topics(source))
            continue
        _require_fit(source, offset)
        if source.format == KAFKA:
            found[source.name] = start_kafka.at(
                source, offset, _initial(where, keys[source.name]), looks.topics(source)
            )
        elif source.format == DELTA:
            found[source.name] = start_delta.at(source, offset, looks.history(source))
        else:
            found[source.name] = _at(source, keys[source.name], offset, where.checkpoint)
    return Origin(found)


def _listed(source: Source, looks: Looks, before_ms: int | None = None) -> FilesOrigin:
    files = [entry for entry in looks.files(source) if before_ms is None or entry.timestamp_ms < before_ms]
    return FilesOrigin(lambda: files)


def _folders(sources: tuple[Source, ...], checkpoint: Checkpoint) -> dict[str, str]:
    """Map each source to its name in a checkpoint: its own, or its number in an old one without names."""
    kept = checkpoint.sources()
    return {
        source.name: source.name if source.name in kept else str(index)
        for index, source in enumerate(sources)
    }


def _initial(where: CommittedPosition | None, key: str) -> Any | None:
    """Return the first offsets ever read of a Kafka source, from the old checkpoint; None if it has none."""
    return (
        None
        if where is None or key not in where.checkpoint.sources()
        else where.checkpoint.initial_offsets(key)
    )


def _require_fit(source: Source, offset: Any) -> None:
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        raise RecoveryError(f"The position of source {source.name} cannot be used: {misfit}")


def _at(source: Source, key: str, offset: Any, checkpoint: Checkpoint) -> FilesOrigin | RateOrigin:
    if not source.reads_files:
        return RateOrigin(checkpoint.read(f"sources/{key}/0"), int(offset))
    log, upto = checkpoint.files_log(key), int(offset["logOffset"])
    last = log.last_batch()
    if upto > (-1 if last is None else last):
        raise CheckpointError(
            f"Source {source.name} is to start after batch {upto} of its files log, but"
            f" {checkpoint.path(f'sources/{key}')} ends with batch {last}. Choose an offset up to that, or"
            " start from a timestamp."
        )

    def entries() -> Iterator[FileEntry]:
        return log.entries(upto) if upto >= 0 else iter(())

    return FilesOrigin(entries)


def source_keys(sources: tuple[Source, ...], found: list[str], version: int) -> dict[str, str]:
    """Map the flow's sources to their names in the old offsets; in a log without names, by order."""
    if version == 1:
        return {source.name: str(index) for index, source in enumerate(sources) if str(index) in found}
    return {source.name: source.name for source in sources if source.name in found}
