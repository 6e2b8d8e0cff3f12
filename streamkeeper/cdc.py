"""What an AUTO CDC flow does with its rows, as one plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CdcSpec:
    """How the changes that a flow reads become rows of its table."""

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    sequence_literal: int | None = None
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    column_list: tuple[str, ...] | None = None
    except_column_list: tuple[str, ...] | None = None
    ignore_null_updates: bool = False
    scd_type: int = 1
    track_history_column_list: tuple[str, ...] | None = None
    track_history_except_column_list: tuple[str, ...] | None = None
