"""Declaration of an AUTO CDC flow as plain values, which
docs/reference/auto-cdc-semantics.md explains.

Names and meanings are those of Lakeflow's ``create_auto_cdc_flow``. Checks that need the source's columns
(types, conditions that parse) are in ``streamkeeper_jobs.cdc.check_spec``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from streamkeeper.errors import DeclarationError

BOOKKEEPING = "__streamkeeper"
"""Last column of every AUTO CDC target: the change that a row comes from."""

START_AT, END_AT = "__START_AT", "__END_AT"
"""Columns that SCD type 2 adds: the sequences of the changes that begin and that end a version."""

RESERVED = (BOOKKEEPING, START_AT, END_AT)
"""Names, in any case, that no column of a source may have."""

GENERATION, BATCH = f"{BOOKKEEPING}_generation", f"{BOOKKEEPING}_batch"
"""Columns that an update flow's rows get: together they are the sequence, so that a later generation wins."""


CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = FEED_COLUMNS = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
"""Columns that Delta adds to the rows of a table's change feed."""

DELETED, BEFORE_UPDATE = "delete", "update_preimage"
"""Values of ``_change_type`` of rows that are no more; those of rows that are there now, ``insert`` and
``update_postimage``, come after ``delete`` as texts do.
"""

FEED_RULES: dict[str, Any] = {
    "sequence_by": (COMMIT_VERSION, CHANGE_TYPE),
    "apply_as_deletes": f"{CHANGE_TYPE} = '{DELETED}'",
}
"""How a change feed is applied: commits in their order, and within a commit a row's delete before what
replaces it. So ``__START_AT`` and ``__END_AT`` say which commit did what.
"""


@dataclass(frozen=True)
class CdcSpec:
    """Rules by which changes become rows of the target.

    ``sequence_by`` are columns that are compared in order. It is empty if ``sequence_literal`` is given: one
    sequence for all rows, as a snapshot has. The conditions are SQL over the source's columns. Of each pair
    of lists (columns, excluded columns) at most one is given; None means all columns. ``change_feed`` says
    that the changes are a Delta table's change feed, whose own columns are not stored unless ``column_list``
    names them.

    :raises DeclarationError: the values contradict one another; the message has what was found and what is
        allowed.
    """

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
    change_feed: bool = False

    parts_may_be_null: ClassVar[bool] = False
    """Whether parts of a sequence after the first are null, as for a literal by columns; never declared."""
    one_row_a_key: ClassVar[bool] = False
    """Whether a batch with two rows of a key is refused; never declared."""

    def __post_init__(self) -> None:
        contradiction = _contradiction(self)
        if contradiction:
            raise DeclarationError(contradiction)


@dataclass(frozen=True)
class UpdateSpec(CdcSpec):
    """How the rows of an update flow replace those of the same key."""

    one_row_a_key: ClassVar[bool] = True

    @classmethod
    def for_keys(cls, keys: tuple[str, ...]) -> UpdateSpec:
        """Return the rules for a table with these keys."""
        return cls(keys, (GENERATION, BATCH), except_column_list=(GENERATION, BATCH))


def _contradiction(spec: CdcSpec) -> str | None:
    return (
        _keys_and_sequence(spec)
        or _not_both("column_list", spec.column_list, "except_column_list", spec.except_column_list)
        or _not_both(
            "track_history_column_list",
            spec.track_history_column_list,
            "track_history_except_column_list",
            spec.track_history_except_column_list,
        )
        or _by_type(spec)
    )


def _keys_and_sequence(spec: CdcSpec) -> str | None:
    if not spec.keys:
        return (
            "keys is empty. Give the names of the columns that identify a row, such as keys=['customer_id']."
        )
    if bool(spec.sequence_by) == (spec.sequence_literal is not None):
        sequence = "both columns and a literal" if spec.sequence_by else "neither a column nor a literal"
        return (
            f"sequence_by has {sequence}. Give the name of a column, a list of names, or one whole number for"
            " all rows."
        )
    for parameter, names in (("keys", spec.keys), ("sequence_by", spec.sequence_by)):
        twice = _repeated(names)
        if twice:
            return f"{parameter} names {twice} twice. Name each column once."
    return None


def _not_both(
    one: str, first: tuple[str, ...] | None, other: str, second: tuple[str, ...] | None
) -> str | None:
    if first is not None and second is not None:
        return f"{one} and {other} are both given. Give one of the two."
    for parameter, names in ((one, first), (other, second)):
        if names is not None and not names:
            return f"{parameter} is empty. Name at least one column, or leave it out: that is all columns."
        twice = _repeated(names or ())
        if twice:
            return f"{parameter} names {twice} twice. Name each column once."
    return None


def _by_type(spec: CdcSpec) -> str | None:
    if spec.scd_type not in (1, 2):
        return (
            f"the SCD type is {spec.scd_type!r}. Allowed are 1 (the newest row of each key) and 2 (every"
            " version of it)."
        )
    if spec.scd_type == 2 and spec.apply_as_truncates is not None:
        return (
            "apply_as_truncates is given with SCD type 2, where a truncate has no meaning. Leave it out, or"
            " store as SCD type 1."
        )
    tracked = spec.track_history_column_list is not None or spec.track_history_except_column_list is not None
    if spec.scd_type == 1 and tracked:
        return (
            "a track_history list is given with SCD type 1, which keeps no history. Leave it out, or store as"
            " SCD type 2."
        )
    return None


def _repeated(names: tuple[str, ...]) -> str | None:
    lower_names: set[str] = set()
    for name in names:
        if name.lower() in lower_names:
            return name
        lower_names.add(name.lower())
    return None
