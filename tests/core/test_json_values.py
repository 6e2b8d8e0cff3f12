"""JSON of other processes: what no file of ours has is refused where it is read, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from streamkeeper.support.json_values import parse, read_as
from streamkeeper.support.times import Moment, in_iso, in_seconds, ms_in_iso


@dataclass(frozen=True)
class Inner:
    at: Moment
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    number: int
    inner: Inner
    names: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    reason: str | None = None


GOOD = {"number": 1, "inner": {"at": "2026-11-21T10:00:00+00:00"}, "names": ["a"], "counts": {"a": 1}}


@pytest.mark.parametrize(
    "content",
    [
        *(b"NaN", b"[-Infinity]", b"1e999", b"9" * 5000, b"9223372036854775808", b"[" * 100_000),
        *(b"[" * 101 + b"]" * 101, b'"\\ud800"', b'"\xed\xa0\x80"', b'{"a', b""),
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_what_no_file_of_ours_has_is_no_json(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(content)


def test_other_json_is_taken_as_it_is() -> None:
    assert parse('{"a": [1, -2.5, "\\ud83d\\ude00", null, true]}') == {"a": [1, -2.5, "😀", None, True]}


def test_an_object_is_read_with_what_is_inside_of_it() -> None:
    assert read_as(Outer, GOOD) == Outer(1, Inner("2026-11-21T10:00:00+00:00"), ("a",), {"a": 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": "1"}, "number: '1' is not a whole number"),
        ({"number": True}, "number: True is not a whole number"),
        ({"inner": 5}, "inner: 5 is not an object"),
        ({"inner": {"at": "garbage"}}, "inner: at: 'garbage' is no time in ISO 8601"),
        ({"inner": {"at": "2026-11-21T10:00:00"}}, "at: .* is no time in ISO 8601 with a time zone"),
        (
            {"inner": {"at": "2026-11-21T10:00:00Z", "share": float("inf")}},
            "inner: share: inf is no finite number",
        ),
        ({"names": "abc"}, "names: 'abc' is not a list"),
        ({"names": [1]}, "names: 1 is not a text"),
        ({"counts": {"a": None}}, "counts: None is not a whole number"),
        ({"reason": []}, r"reason: \[\] is not a text"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(
    change: dict[str, object], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        read_as(Outer, {**GOOD, **change})


def test_times_that_no_calendar_has_are_told_in_seconds() -> None:
    assert ms_in_iso(99_999_999_999_999_999) == "100000000000000 s since 1970"
    assert in_iso(-1e18) == "-1000000000000000000 s since 1970"
    assert in_seconds("99999-01-01") is None
