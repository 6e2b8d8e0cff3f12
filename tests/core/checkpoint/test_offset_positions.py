"""Offsets in words, and which sources they fit."""

from __future__ import annotations

from typing import Any

import pytest

from streamkeeper.declare.offsets import check_fits, describe, kind_of


def delta(version: int, index: int, starting: bool = False) -> dict[str, Any]:
    return {
        "sourceVersion": 1,
        "reservoirId": "id",
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": starting,
    }


@pytest.mark.parametrize(
    ("offset", "kind", "words"),
    [
        ({"logOffset": 7}, "files", "files log 7"),
        ({"orders": {"10": 5, "0": 120}}, "kafka", "topic orders: partition 0 → 120, partition 10 → 5"),
        ({"a": {"0": 1}, "b": {"0": 2}}, "kafka", "topic a: partition 0 → 1; topic b: partition 0 → 2"),
        ({"logOffset": {"0": 1}}, "kafka", "topic logOffset: partition 0 → 1"),
        (delta(12, -1), "delta", "version 12, all before it done"),
        (delta(12, -100), "delta", "version 12, all before it done"),
        (delta(12, 4), "delta", "version 12, files 0 to 4 of it done"),
        (delta(12, -20), "delta", "version 12, its change of the table's metadata"),
        (delta(3, 8, starting=True), "delta", "initial snapshot of version 3, files 0 to 8 of it done"),
        (delta(3, -1, starting=True), "delta", "initial snapshot of version 3, nothing of it done"),
        (12, "rate", "12 s of rows"),
        ({"offset": 5, "timestamp": 1000}, "rate", "row 5"),
        (None, "unknown", "nothing read yet"),
        ({}, "unknown", "offset {}"),
        (True, "unknown", "offset True"),
        ({"logOffset": "7"}, "unknown", "offset {'logOffset': '7'}"),
        ({"shardId-0": {"iterator": "x"}}, "unknown", "offset {'shardId-0': {'iterator': 'x'}}"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_an_offset_is_told_in_words(offset: Any, kind: str, words: str) -> None:
    assert kind_of(offset) == kind
    assert describe(offset) == words


@pytest.mark.parametrize("source_format", ["json", "csv", "parquet", "orc", "text", "kafka", "delta", "rate"])
def test_nothing_read_yet_fits_every_source(source_format: str) -> None:
    assert check_fits(source_format, None) is None


@pytest.mark.parametrize(
    ("source_format", "offset"),
    [("json", {"logOffset": -1}), ("kafka", {"t": {"0": -2, "1": 0}}), ("delta", delta(0, -1)), ("rate", 0)],
)
def test_an_offset_at_the_edge_fits(source_format: str, offset: Any) -> None:
    assert check_fits(source_format, offset) is None


@pytest.mark.parametrize(
    ("source_format", "offset", "said"),
    [
        (
            "json",
            {"orders": {"0": 1}},
            [
                "{'orders': {'0': 1}} is an offset of a kafka source",
                '{"logOffset": <batch of the files log>}',
            ],
        ),
        ("kafka", {"logOffset": 1}, ["of a files source", '{"<topic>": {"<partition>": <next offset>}}']),
        ("delta", 7, ["7 is an offset of a rate source", "reservoirVersion"]),
        ("rate", "7", ["'7' is an offset of no source that is known", "a number of seconds"]),
        ("json", {"logOffset": -2}, ["no batch -2", "-1 (nothing yet) and above"]),
        ("rate", -1, ["-1 s is before", "0 and above"]),
        ("kafka", {"t": {"0": -3}}, ["no offset t/0: -3", "-2 (earliest)"]),
        ("delta", delta(-1, 0), ["no version -1", "0 and above"]),
        ("kinesis", 7, ["'kinesis'", "json", "kafka"]),
    ],
)
def test_an_offset_that_does_not_fit_is_told_with_what_is_allowed(
    source_format: str, offset: Any, said: list[str]
) -> None:
    message = check_fits(source_format, offset)
    assert message is not None
    assert [part for part in said if part not in message] == []
