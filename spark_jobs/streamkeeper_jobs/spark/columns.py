"""Columns by literal names, and names quoted for SQL."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def column(*path: str) -> Column:
    """Return a column, or a field of a struct, by literal names."""
    return F.col(quoted(*path))


def quoted(*path: str) -> str:
    """Return a column's path quoted for SQL."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)
