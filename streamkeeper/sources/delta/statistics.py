"""Size of a version of a Delta table without a JVM: by deltalake, an optional dependency, and the log.

What lies between two versions is counted by :mod:`streamkeeper.delta.history`, from the log alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from streamkeeper.delta.summary import read_summary
from streamkeeper.errors import NotAskable, SourceError
from streamkeeper.support.amounts import Amount

_VECTORS = "deletionVectors"


def amount_at(path: str, version: int | None = None) -> Amount:
    """Return a version's files, their bytes, and its rows by the files' statistics; by default of the newest.

    The rows are an upper bound if deletion vectors may remove some of them and no summary says how many.

    :raises SourceError: the version cannot be read.
    """
    try:
        deltalake: Any = importlib.import_module("deltalake")
    except ImportError as error:
        raise NotAskable("deltalake is not installed here; install streamkeeper-airflow[delta]") from error
    exceptions: Any = importlib.import_module("deltalake.exceptions")
    try:
        table = deltalake.DeltaTable(path, version=version)
        actions = table.get_add_actions(flatten=True)
    except (exceptions.DeltaError, OSError) as error:
        raise SourceError(f"the table cannot be read without a JVM: {error}") from error
    sizes = actions["size_bytes"].to_pylist()
    counts = (
        actions["num_records"].to_pylist() if "num_records" in actions.schema.names else [None] * len(sizes)
    )
    if None in counts:
        return Amount(len(sizes), sum(sizes), None, "some of its files do not say how many rows they hold")
    deleted = _deleted(table, path)
    return Amount(len(sizes), sum(sizes), sum(counts) - (deleted or 0), at_most=deleted is None)


def rows_of(path: str, version: int | None = None) -> int:
    """Return the number of rows of a version by its files' statistics; by default of the newest.

    :raises SourceError: the version cannot be read, a file has no statistics, or some rows may be deleted
        uncounted.
    """
    amount = amount_at(path, version)
    if amount.rows is None:
        raise SourceError(str(amount.rows_unknown))
    if amount.at_most:
        raise SourceError(
            "some of its rows may be deleted by deletion vectors, which are not counted without a JVM"
        )
    return amount.rows


def _deleted(table: Any, path: str) -> int | None:
    """Return how many rows deletion vectors remove, which deltalake counts as rows; None if unknown."""
    if _VECTORS not in (table.protocol().reader_features or ()):
        return 0
    summary = read_summary(path, table.version())
    return None if summary is None else summary.deleted
