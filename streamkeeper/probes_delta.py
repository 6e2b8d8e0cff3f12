"""Counting the rows of a whole version of a Delta table without a JVM, by deltalake (an optional dependency).

What lies between two versions is counted by :mod:`streamkeeper.delta_source`, from the log alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from streamkeeper.errors import NotAskable, SourceError


def rows_of(path: str, version: int | None = None) -> int:
    """Count the rows of a table at a version (the newest by default), by the statistics of its files.

    :raises SourceError: the version cannot be read, or some file of it has no statistics.
    """
    try:
        deltalake: Any = importlib.import_module("deltalake")
    except ImportError as error:
        raise NotAskable("deltalake is not installed here; install streamkeeper[probes]") from error
    exceptions: Any = importlib.import_module("deltalake.exceptions")
    try:
        actions = deltalake.DeltaTable(path, version=version).get_add_actions(flatten=True)
    except (exceptions.DeltaError, OSError) as error:
        raise SourceError(f"the table cannot be read without a JVM: {error}") from error
    names = actions.schema.names
    counts = actions["num_records"].to_pylist() if "num_records" in names else [None]
    removed = [name for name in names if name.startswith(("deletionVector", "deletion_vector"))]
    if None in counts:
        raise SourceError("some of its files do not say how many rows they hold")
    if any(value is not None for name in removed for value in actions[name].to_pylist()):
        raise SourceError("some of its rows are deleted by deletion vectors, which are not counted without a JVM")
    return sum(counts)
