"""What a reset costs in each source: what is lost, repeated, replayed, gone; and what of that someone must accept first.

Sources are looked at, by their files; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from streamkeeper import plans, prices_delta, prices_kafka, probes, requests
from streamkeeper.checkpoint import FileEntry
from streamkeeper.declarations import DELTA, KAFKA, Source
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.generations import AFTER_LAST, EARLIEST, EMPTY, LATEST, OFFSETS, TIMESTAMP
from streamkeeper.plans import NONE, Amount, Refusal, SourcePrice
from streamkeeper.positions import check_fits, describe
from streamkeeper.probes import SourceFile
from streamkeeper.reset_requests import ResetRequest
from streamkeeper.standing import Standing

UNREAD = "unread files wait and will be read"


@dataclass(frozen=True)
class _Files:
    """The files of a source: what is there now, and what the old generation has processed (path → batch).

    ``changed`` are those that were written anew since they were processed, under the same name: Spark never reads them again.
    With ``doubtful`` the checkpoint's offsets could not be read: then nobody knows if the newest batch was processed or only planned.
    """

    present: dict[str, SourceFile]
    processed: dict[str, int]
    doubtful: bool = False
    changed: frozenset[str] = frozenset()
    renamed: bool = False
    """Whether they were processed under another source's name: then a start after the last processed reads them again."""

    def perhaps_unread(self) -> list[SourceFile]:
        """Give the files that were not read for sure, and those that perhaps were not."""
        newest = max(self.processed.values(), default=-1) if self.doubtful else None
        return [file for path, file in self.present.items() if self.processed.get(path, newest) == newest]


def price_of(
    source: Source, standing: Standing, position: dict[str, Any] | None, request: ResetRequest, stateful: bool | None
) -> SourcePrice:
    """Say what a reset costs in one source.

    :param source: opened (:mod:`streamkeeper.opening`); an environment variable that is not set here makes its price unknown.
    :param position: the old checkpoint's offsets by source, or None where they cannot be read.
    :param stateful: whether the query as declared now keeps state; None where that is not known.
    :raises RequestError: the position asked for is not one of the old checkpoint.
    :raises CheckpointError: the list of processed files is damaged, and the new generation is to start right after it.
    :raises StorageError: the source cannot be listed.
    """
    offset = position.get(source.name) if position is not None else None
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        if request.start.mode == AFTER_LAST:
            raise RequestError(
                f"The source {source.name} was another kind of source in the old checkpoint: {misfit} So it cannot go on from there. "
                "Give the new source another name, or choose earliest, latest, a timestamp or explicit offsets."
            )
        offset = None
    where = "unknown: the checkpoint's offsets cannot be read" if position is None else "nothing processed yet"
    if offset is not None:
        where = describe(offset)
    if standing.is_older_copy:
        unknown = Amount(None, 0, None, "the table has batches that this checkpoint never planned; it is an older copy, or was made anew")
        return SourcePrice(source.name, where, f"start {request.start.mode}", lost=unknown, repeated=unknown)
    if source.format in (KAFKA, DELTA):
        return _log_price(source, standing, SourcePrice(source.name, where, ""), request, offset=offset, stateful=stateful, told=position)
    if not source.reads_files:
        return _plain_price(source, where, offset, request)
    return _price_of_files(source, standing, position, request, where=where, offset=offset, stateful=stateful)


def _log_price(
    source: Source, standing: Standing, price: SourcePrice, request: ResetRequest, *, offset: Any, stateful: bool | None, told: object
) -> SourcePrice:
    """Say what a reset costs in a source that is itself a log: Kafka, Delta. ``told`` is None where the old offsets cannot be read."""
    mode = request.start.mode
    if told is None:
        unknown = Amount(None, 0, None, "the checkpoint's offsets cannot be read")
        return replace(price, then=f"start {mode}", lost=NONE if mode == EARLIEST else unknown, repeated=unknown)
    rebuilds = request.state != EMPTY and stateful is not False and mode != EARLIEST
    if source.format == KAFKA:
        seen = prices_kafka.look(source, standing, offset)
        found = prices_kafka.price_of(source, standing, price, seen, request)
        return prices_kafka.with_state(found, seen, stateful) if rebuilds else found
    found = prices_delta.price_of(source, price, offset, request)
    return prices_delta.with_state(found, source, offset, stateful) if rebuilds else found


def _price_of_files(
    source: Source,
    standing: Standing,
    position: dict[str, Any] | None,
    request: ResetRequest,
    *,
    where: str,
    offset: Any,
    stateful: bool | None,
) -> SourcePrice:
    present = probes.list_files(source)
    processed: dict[str, int] = {}
    changed: set[str] = set()
    try:
        for entry in processed_files(standing, source, offset, everything=position is None):
            path = probes.plain_path(entry.path)
            processed[path] = entry.batch
            if path in present and present[path].modified_ms != entry.timestamp_ms:
                changed.add(path)
    except CheckpointError as error:
        if request.start.mode == AFTER_LAST:
            raise
        unknown = Amount(None, 0, None, f"the list of processed files cannot be read: {error}")
        return SourcePrice(source.name, where, f"start {request.start.mode}", lost=unknown, repeated=unknown)
    renamed = not processed and dict(_under_other_names(standing, source, position or {}, present))
    if renamed:
        return _files_price(source, where, _Files(present, renamed, renamed=True), request, stateful)
    return _files_price(source, where, _Files(present, processed, position is None, frozenset(changed)), request, stateful)


def _under_other_names(
    standing: Standing, source: Source, position: dict[str, Any], present: dict[str, SourceFile]
) -> Iterator[tuple[str, int]]:
    """Give the files of a source that the checkpoint does not know, and that were processed under another source's name all the same."""
    if source.name in position:
        return
    keys = standing.checkpoint.sources()
    for name, offset in position.items():
        if name in keys and check_fits(source.format, offset) is None and offset is not None:
            for item in standing.checkpoint.files_log(name).entries(offset["logOffset"]):
                path = probes.plain_path(item.path)
                if path in present:
                    yield path, item.batch


def processed_files(standing: Standing, source: Source, offset: Any, everything: bool) -> Iterator[FileEntry]:
    """Give the files that the old generation processed, as its files log has them; where the offset is unknown, all that it listed."""
    last = None if everything else (offset or {}).get("logOffset", -1)
    keys = standing.checkpoint.sources()
    key = source.name if source.name in keys else "0" if keys == ("0",) else None
    if key is not None and last != -1:
        yield from standing.checkpoint.files_log(key).entries(last)


def _files_price(source: Source, where: str, files: _Files, request: ResetRequest, stateful: bool | None) -> SourcePrice:
    start = request.start
    present, processed = files.present, files.processed
    unread = [file for path, file in present.items() if path not in processed]
    read = [file for path, file in present.items() if path in processed]
    lost: list[SourceFile] = []
    repeated: list[SourceFile] = []
    then = "after the last processed batch"
    if start.mode == AFTER_LAST and files.renamed:
        repeated, then = read, "the beginning: the checkpoint knows no source of this name, but its files under another"
    elif start.mode == EARLIEST:
        repeated, then = read, f"the beginning: all {len(present):,} files that are there"
    elif start.mode == LATEST:
        lost, then = files.perhaps_unread(), "only files that appear after the new generation has begun"
    elif start.mode == TIMESTAMP:
        moment = start.timestamp_ms or 0
        lost = [file for file in files.perhaps_unread() if file.modified_ms < moment]
        repeated = [file for file in read if file.modified_ms >= moment]
        then = f"files changed at or after {datetime.fromtimestamp(moment / 1000, timezone.utc).isoformat(timespec='milliseconds')}"
    elif start.mode == OFFSETS:
        log_offset = int((start.offsets or {})[source.name]["logOffset"])
        highest = -1 if files.renamed else max(processed.values(), default=-1)
        if log_offset > highest:
            raise RequestError(
                f"offsets of {source.name} say logOffset {log_offset}, but the flow's files log ends at {highest}. Give a number from -1 "
                f"(nothing) to {highest}; after-last is what you want for the end."
            )
        repeated = [file for file in read if processed[file.path] > log_offset]
        lost = [file for file in files.perhaps_unread() if processed.get(file.path, log_offset + 1) <= log_offset]
        then = f"after files log {log_offset}"
    rebuilt = request.state != EMPTY and stateful is not False and start.mode != EARLIEST
    replayed = {file.path for file in read} - {file.path for file in repeated}
    gone = [path for path in processed if path not in present or path in files.changed]
    return SourcePrice(
        source=source.name,
        now=where,
        then=then,
        lost=probes.amount(source, lost),
        repeated=probes.amount(source, repeated),
        replayed=probes.amount(source, [present[path] for path in replayed]) if rebuilt and stateful else NONE,
        gone=Amount(len(gone), 0, None, "the files are not there any more, or were written anew") if gone and rebuilt else NONE,
        notes=(
            f"{len({file.path for file in unread} - {file.path for file in lost}):,} {UNREAD}",
            *(_rebuild_notes(gone, stateful, len(replayed)) if rebuilt else ()),
            *_option_notes(source),
        ),
    )


def _rebuild_notes(gone: list[str], stateful: bool | None, replayed: int) -> Iterator[str]:
    if stateful is None:
        yield f"if the query keeps state, {replayed:,} processed files are read once more to rebuild it, with the sink muted"
    if gone:
        said = f"{len(gone):,} processed files are gone or written anew, such as {gone[0]}"
        yield f"{said}: a state rebuilt without their rows would let those come again"


def _option_notes(source: Source) -> Iterator[str]:
    options = {key.lower(): value for key, value in source.options.items()}
    if options.get("cleansource", "off").lower() != "off":
        yield f"cleanSource is {options['cleansource']}: files go once they are processed, so state cannot be rebuilt from them"
    if options.get("latestfirst", "false").lower() == "true":
        yield "latestFirst is on: files are read newest first, and maxFileAge does not apply"
    else:
        yield f"maxFileAge is {options.get('maxfileage', '7d')}: Spark may skip files older than that against the newest, in silence"


def _plain_price(source: Source, where: str, offset: Any, request: ResetRequest) -> SourcePrice:
    unknown = Amount(None, 0, None, f"{source.format} keeps no history to count")
    if request.start.mode == AFTER_LAST:
        return SourcePrice(source.name, where, "after the last processed batch")
    if request.start.mode == OFFSETS:
        wanted = (request.start.offsets or {})[source.name]
        told = isinstance(offset, int)  # then it is known which way the position moves
        lost = unknown if not told or wanted > offset else NONE
        repeated = unknown if not told or wanted < offset else NONE
        return SourcePrice(source.name, where, describe(wanted), lost=lost, repeated=repeated)
    return SourcePrice(source.name, where, "the beginning", repeated=unknown)


def refusals_of(
    prices: tuple[SourcePrice, ...], request: ResetRequest, stateful: bool | None, missing_in_sink: str | None = None
) -> Iterator[Refusal]:
    """Give every price that the request does not accept.

    :param missing_in_sink: the batches that the checkpoint counts as done and the table has not, in words.
    """
    for price in prices:
        if price.blocked is not None:
            yield Refusal(None, f"It cannot be carried out: {price.blocked}.")
    unknown = [price for price in prices if price.unknown]
    counted = [price for price in prices if not price.unknown]
    found = {
        requests.LOSS: [f"{price.source}: {plans.in_words(price.lost)}" for price in counted if not price.lost.nothing],
        requests.REPEATS: [f"{price.source}: {plans.in_words(price.repeated)}" for price in counted if not price.repeated.nothing],
        requests.MISSING_HISTORY: [
            f"{price.source}: {plans.in_words(price.gone)}{'' if stateful else ', and whether the query keeps state is not known'}"
            for price in counted
            if not price.gone.nothing and stateful is not False
        ],
        requests.UNKNOWN_PRICE: [f"{price.source}: {price.lost.rows_unknown}" for price in unknown],
    }
    if request.start.mode == LATEST and not found[requests.LOSS]:
        found[requests.LOSS].append("nothing waits now, but what appears until the new generation has begun is skipped uncounted")
    if missing_in_sink is not None and request.start.mode != EARLIEST:
        found[requests.LOSS].append(f"the table has not {missing_in_sink}, which the checkpoint counts as done")
    for word, sources in found.items():
        if sources and word not in request.accept:
            yield Refusal(word, f"{requests.PRICES[word]} ({'; '.join(sources)}). To go on all the same, accept `{word}`.")
