"""Columns by their names as they are, and names quoted for SQL."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def column(*path: str) -> Column:
    """Give a column, or a field of a struct, by its names as they are."""
    return F.col(quoted(*path))


def quoted(*path: str) -> str:
    """Quote a column's path for SQL."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)
