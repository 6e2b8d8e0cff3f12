"""Amount that a backfill reads, for its plan: files, bytes and rows, exact, as an upper bound, or unknown
with the reason.

Sources are read without Spark, and nothing is changed. A source that does not answer makes the amount unknown
and does not fail the plan.
"""

from __future__ import annotations

from dataclasses import replace

from streamkeeper.amounts import Amount
from streamkeeper.declare.model import Source
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.sources.base.format import Reading
from streamkeeper.sources.formats import format_of
from streamkeeper.tables.backups import TableBackup


def of_backup(copied: TableBackup, request: BackfillRequest) -> Reading:
    """Return the amount of the target in a backup; its rows were counted when it was made."""
    return _chosen(Reading(Amount(copied.files, copied.bytes, copied.checksum.rows)), request)


def of_source(source: Source, request: BackfillRequest) -> Reading:
    """Return the amount of what a backfill reads of a source.

    :param source: as the backfill reads it (:func:`streamkeeper.recover.restart.backfill_source.raw_source`),
        opened as far as this process can.
    :raises RequestError: what is to be read is not there.
    """
    return _chosen(format_of(source).held(source, request.from_offsets, request.to_offsets), request)


def _chosen(reading: Reading, request: BackfillRequest) -> Reading:
    """Make the rows a bound where a predicate chooses among them."""
    if request.predicate is None or reading.amount.rows is None:
        return reading
    return replace(reading, amount=replace(reading.amount, at_most=True))
