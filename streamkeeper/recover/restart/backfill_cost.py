"""Amount that a backfill reads, for its plan: files, bytes and rows, exact, as an upper bound, or unknown
with the reason.

Sources are read without Spark, and nothing is changed. A source that does not answer makes the amount unknown
and does not fail the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from streamkeeper.amounts import Amount
from streamkeeper.declare.model import KAFKA, Source
from streamkeeper.delta.history import read_history
from streamkeeper.delta.summary import read_summary
from streamkeeper.errors import RequestError, SourceError, StorageError
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.sources.delta import statistics as delta_statistics
from streamkeeper.sources.files.listing import amount, list_files
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.cost import Seen, records, unknown
from streamkeeper.sources.kafka.offsets import LATEST, Offsets, Topics, misfits, records_between, resolved
from streamkeeper.tables.backups import TableBackup


@dataclass(frozen=True)
class Reading:
    """What is read, as far as it is known. ``notes`` say of when the number is, what may come besides, and
    what may lack.
    """

    amount: Amount
    notes: tuple[str, ...] = ()


def of_backup(copied: TableBackup, request: BackfillRequest) -> Reading:
    """Return the amount of the target in a backup; its rows were counted when it was made."""
    return _chosen(Reading(Amount(copied.files, copied.bytes, copied.checksum.rows)), request)


def of_source(source: Source, request: BackfillRequest) -> Reading:
    """Return the amount of what a backfill reads of a source.

    :param source: as the backfill reads it (:func:`streamkeeper.recover.restart.backfill_source.raw_source`),
        opened as far as this process can.
    :raises RequestError: what is to be read is not there.
    """
    if source.reads_files:
        return _chosen(Reading(_files(source)), request)
    return _chosen(_records(source, request) if source.format == KAFKA else _table(source), request)


def _chosen(reading: Reading, request: BackfillRequest) -> Reading:
    """Make the rows a bound where a predicate chooses among them."""
    if request.predicate is None or reading.amount.rows is None:
        return reading
    return replace(reading, amount=replace(reading.amount, at_most=True))


def _files(source: Source) -> Amount:
    try:
        found = list_files(source)
    except StorageError as error:
        raise _not_listed(error) from error
    if not found:
        raise RequestError(f"There is no file in {source.path}, so there is nothing to read. Check the path.")
    return amount(source, found.values())


def _not_listed(error: StorageError) -> RequestError:
    return RequestError(f"What is to be read cannot be listed: {error}")


def _table(source: Source) -> Reading:
    """Return the amount of a Delta table as it is now: a backfill reads it whole, and then what was committed
    meanwhile.
    """
    assert source.path is not None, "an opened Delta source has a path"
    try:
        history = read_history(source.path)
    except StorageError as error:
        raise _not_listed(error) from error
    except SourceError as error:
        return Reading(unknown(str(error)))
    if history is None:
        raise RequestError(
            f"There is no Delta table at {source.path}, so there is nothing to read. Check path or table."
        )
    found = _at(source.path, history.newest)
    if found.rows is not None and source.option("excludeRegex"):
        found = replace(found, at_most=True)
    note = (
        f"Counted is version {history.newest} of {source.path}. Rows committed before it is read are"
        " included too."
    )
    return Reading(found, (note,))


def _at(path: str, version: int) -> Amount:
    try:
        return delta_statistics.amount_at(path, version)
    except SourceError as error:
        summary = read_summary(path, version)
        return (
            unknown(str(error)) if summary is None else Amount(summary.files, summary.bytes, None, str(error))
        )


def _records(source: Source, request: BackfillRequest) -> Reading:
    """Return an upper bound of the records between the start, or all that is held, and the end, or all that
    is there now.
    """
    try:
        topics = kafka_client.look_at(source)
    except SourceError as error:
        return _unanswered(request, str(error))
    start = topics.earliest if request.from_offsets is None else _checked(request.from_offsets, topics)
    ends = request.to_offsets or {}
    upto = {
        topic: {
            part: min(ends.get(topic, {}).get(part, held.end), held.end)
            for part, held in topics.held[topic].items()
            if part in parts
        }
        for topic, parts in start.items()
    }
    return Reading(records(records_between(start, upto)), tuple(_told(Seen(upto, start, topics), ends)))


def _told(seen: Seen, ends: Offsets) -> Iterator[str]:
    if seen.holes:
        yield f"{seen.holes[0].upper()}{seen.holes[1:]}."
    endless = [
        f"{topic}/{part}"
        for topic, parts in (seen.offset or {}).items()
        for part in parts
        if part not in ends.get(topic, {})
    ]
    if endless:
        yield (
            f"Read up to the end of {', '.join(endless)} at that time. Records written until then are"
            " included."
        )


def _checked(start: Offsets, topics: Topics) -> Offsets:
    """Return a start as numbers; partitions that it does not name are not read.

    :raises RequestError: it names what is not there, or offsets that are not held.
    """
    whole = {
        topic: {**dict.fromkeys(parts, LATEST), **start.get(topic, {})}
        for topic, parts in topics.held.items()
    }
    wrong = misfits({**start, **whole}, topics)
    if wrong:
        raise RequestError(
            f"from_offsets cannot be used: {'; '.join(wrong)}. Give offsets that exist; -2 is the first"
            " offset of a partition."
        )
    return resolved(start, topics)


def _unanswered(request: BackfillRequest, why: str) -> Reading:
    """Return an upper bound of the records between offsets that are numbers; what a broker would have to say
    is unknown.
    """
    start, ends = request.from_offsets, request.to_offsets or {}
    if start is None or any(
        at < 0 or part not in ends.get(topic, {})
        for topic, parts in start.items()
        for part, at in parts.items()
    ):
        return Reading(unknown(why))
    note = f"Counted are the offsets that were asked for; whether they still exist is unknown: {why}."
    return Reading(records(records_between(start, ends)), (note,))
