"""Looking into a Delta table without a JVM."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable, QueryBuilder

from streamkeeper.sources.delta.statistics import amount_at


def count_rows(path: str) -> int | None:
    """Return a table's number of rows by the statistics in its log; None where there is no table yet."""
    return amount_at(path).rows if DeltaTable.is_deltatable(path) else None


def read_rows(path: str) -> list[dict[str, Any]]:
    """Read a whole table, a dict a row; for small tables.

    :raises TableNotFoundError: there is none.
    """
    # Not to_pyarrow_table: its C++ threads read files through Python, and one of them that lets go of a file
    # while the interpreter ends aborts the process ("terminate called without an active exception").
    batches = QueryBuilder().register("rows", DeltaTable(path)).execute("SELECT * FROM rows")
    return [row for batch in batches for row in batch.to_struct_array().to_pylist()]
