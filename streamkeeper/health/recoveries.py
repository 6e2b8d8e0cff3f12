"""How many recoveries are open, and how many are over: by the names of their ledgers' files, none is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streamkeeper.flows import ledger
from streamkeeper.flows.files import kept_pipelines
from streamkeeper.flows.ledger import OVER
from streamkeeper.storage import Storage

_AT_ONCE = 16
"""Ledgers that are listed together: on an object store each is a round trip."""
_over: dict[str, str] = {}
"""How recoveries ended that this process saw over, by the folder of their ledger: they stay so."""


@dataclass(frozen=True)
class Recoveries:
    """Numbers of recoveries: ``open`` by pipeline, kind and newest step, ``over`` by pipeline, kind and
    outcome.

    An open recovery's step is ``planned`` or ``approved`` before its first. An outcome is ``ended`` or
    ``given_up``.
    """

    open: Mapping[tuple[str, str, str], int]
    over: Mapping[tuple[str, str, str], int]


def count(storage: Storage) -> Recoveries:
    """Count the recoveries of all pipelines, declared or not.

    :raises StorageError: the state folder cannot be read.
    """
    all_of = [
        (pipeline, recovery)
        for pipeline in kept_pipelines(storage)
        for recovery in ledger.recoveries(storage, pipeline)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        stand = list(pool.map(lambda one: _stand(storage, *one), all_of))
    still: Counter[tuple[str, str, str]] = Counter()
    done: Counter[tuple[str, str, str]] = Counter()
    for (pipeline, recovery), event in zip(all_of, stand, strict=True):
        if event is not None:
            # A recovery's id begins with its kind, which has no hyphen.
            (done if event in OVER else still)[pipeline, recovery.partition("-")[0], event] += 1
    return Recoveries(still, done)


def _stand(storage: Storage, pipeline: str, recovery: str) -> str | None:
    """Return how a recovery ended, else its newest step; None for a folder that is no recovery's."""
    book = ledger.open(storage, pipeline, recovery)
    place = storage.path(book.folder)
    if place not in _over:
        names = book.names()
        end = next((name for name in names if name in OVER), None)
        if end is None:
            return names[-1].partition(".")[0] if names else None
        _over[place] = end
    return _over[place]
