"""Keeps what the monitor sees of a flow in its history, once a look."""

from __future__ import annotations

from datetime import datetime

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.health.flows import FlowHealth
from streamkeeper.history import rows
from streamkeeper.history.rows import LAG, Sample, Totals
from streamkeeper.watch.batch_numbers import told_by


def keep(home: FlowHome, row: FlowHealth, now: float) -> None:
    """Keep the numbers of one look at a flow; those of a flow that never had a driver are not kept.

    :param now: the storage's time, in seconds since 1970.
    :raises StorageError: a file of the flow is damaged, or cannot be written.
    """
    if row.epoch is None:
        return
    last, lag = row.batch_numbers, row.lag
    sample = Sample(
        at=now,
        epoch=row.epoch,
        totals=row.totals,
        state=row.state,
        generation=row.generation,
        state_rows=None if last is None else last.state_rows,
        state_bytes=None if last is None else last.state_bytes,
        watermark=None if last is None else last.watermark,
        **{} if lag is None else {name: getattr(lag, name.removeprefix("lag_")) for name in LAG},
    )
    rows.record(home, sample, lambda: _began(home, sample), lambda epoch: _last_of(home, epoch))


def _began(home: FlowHome, sample: Sample) -> float:
    lease = leases.read(home, sample.epoch)
    return sample.at if lease is None else datetime.fromisoformat(lease.at).timestamp()


def _last_of(home: FlowHome, epoch: int) -> Totals:
    """Return the totals that the driver of an epoch told last; none if it never told any."""
    return told_by(leases.read_heartbeat(home, epoch)).totals
