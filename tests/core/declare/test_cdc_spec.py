"""What an AUTO CDC flow may declare, as far as it can be told without the source's columns."""

from __future__ import annotations

from typing import Any

import pytest

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.errors import DeclarationError

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"keys": ()}, "keys is empty"),
    "a key twice": ({"keys": ("id", "ID")}, "keys names ID twice"),
    "no sequence": ({"sequence_by": ()}, "neither a column nor a literal"),
    "a column and a literal": ({"sequence_literal": 0}, "both columns and a literal"),
    "a sequence column twice": ({"sequence_by": ("at", "at")}, "sequence_by names at twice"),
    "both lists of columns": (
        {"column_list": ("id",), "except_column_list": ("op",)},
        "column_list and except_column_list are both given",
    ),
    "an empty list": ({"column_list": ()}, "column_list is empty"),
    "a column twice in a list": ({"except_column_list": ("op", "op")}, "except_column_list names op twice"),
    "an unknown SCD type": ({"scd_type": 3}, "SCD type is 3. Allowed are 1"),
    "truncates with type 2": (
        {"scd_type": 2, "apply_as_truncates": "true"},
        "apply_as_truncates is given with SCD type 2",
    ),
    "history lists with type 1": (
        {"track_history_column_list": ("name",)},
        "track_history list is given with SCD type 1",
    ),
    "both history lists": (
        {"scd_type": 2, "track_history_column_list": ("a",), "track_history_except_column_list": ("b",)},
        "track_history_column_list and track_history_except_column_list are both given",
    ),
}


@pytest.mark.parametrize(("changed", "said"), WRONG.values(), ids=WRONG)
def test_a_contradiction_is_refused_in_the_users_words(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        CdcSpec(**{"keys": ("id",), "sequence_by": ("at",), **changed})


def test_a_literal_stands_for_the_sequence_of_all_rows() -> None:
    assert CdcSpec(keys=("id",), sequence_by=(), sequence_literal=0).sequence_literal == 0
