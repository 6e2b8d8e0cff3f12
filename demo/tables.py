"""Looking into a Delta table without a JVM."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError


class TableWatch:
    """Counts the rows of one table again and again, by the statistics in its log; only new commits are read
    at each look.

    :param path: the table's folder or URL.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._table: DeltaTable | None = None

    def rows(self) -> int | None:
        """Return the number of rows, or None where there is no table yet.

        :raises ValueError: a file of the table has no statistics, so that only reading it would tell.
        """
        if self._table is None:
            try:
                self._table = DeltaTable(self.path)
            except TableNotFoundError:
                return None
        else:
            self._table.update_incremental()
        return count(self._table)


def count(table: DeltaTable) -> int:
    """Count a table's rows by the statistics of its files.

    :raises ValueError: a file has none.
    """
    files = table.get_add_actions(flatten=True)
    # Deltalake's stubs say that there may be an array here; there is always a column.
    column: Any = files.column("num_records") if "num_records" in files.schema.names else None
    counts: list[int | None] = column.to_pylist() if column is not None else []
    if len(counts) != files.num_rows or None in counts:
        raise ValueError(
            f"{table.table_uri} has files without statistics, so its rows cannot be counted by its log. Count"
            " them with Spark."
        )
    return sum(number for number in counts if number is not None)


def read_rows(path: str) -> list[dict[str, Any]]:
    """Read a whole table, a dict a row; for small tables.

    :raises TableNotFoundError: there is none.
    """
    # Not to_pyarrow_table: its C++ threads read files through Python, and one of them that lets go of a file
    # while the interpreter ends aborts the process ("terminate called without an active exception").
    found = QueryBuilder().register("rows", DeltaTable(path)).execute("SELECT * FROM rows")
    return [row for batch in found for row in batch.to_struct_array().to_pylist()]
