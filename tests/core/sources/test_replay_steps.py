"""A history is cut into steps of a bounded size, which together are all of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeeper.declare.model import Location, Source
from streamkeeper.errors import DeclarationError
from streamkeeper.sources.kafka.offsets import Offsets
from streamkeeper.sources.replay_steps import (
    BYTES,
    Bound,
    cut_files,
    cut_offsets,
    cut_versions,
    own_files,
    spread,
)

SMALL = Bound(bytes=100, files=4, records=10)


def source(**options: str) -> Source:
    return Source("raw", "json", "/data", "id INT", options, Location("p.py", 1))


@pytest.mark.parametrize(
    ("sizes", "least", "ends"),
    [
        pytest.param([], 1, [], id="nothing"),
        pytest.param([1, 1, 1], 1, [3], id="all fits"),
        pytest.param([60, 60, 60], 1, [1, 2, 3], id="by bytes"),
        pytest.param([500, 1, 1], 1, [1, 3], id="one that is too big by itself"),
        pytest.param([1] * 9, 1, [4, 8, 9], id="by number"),
        pytest.param([60, 60, 60, 60], 2, [2, 4], id="not below a batch of the source's own"),
        pytest.param([0] * 4, 1, [4], id="files that are gone have no size"),
    ],
)
def test_files_are_cut_by_bytes_and_number(sizes: list[int], least: int, ends: list[int]) -> None:
    assert cut_files(sizes, SMALL, least) == ends


@pytest.mark.long
@given(st.lists(st.integers(0, 200), max_size=40))
def test_every_step_is_bounded_and_together_they_are_all(sizes: list[int]) -> None:
    ends = cut_files(sizes, SMALL)
    steps = [sizes[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [size for step in steps for size in step] == sizes
    assert all(step and len(step) <= 4 and (len(step) == 1 or sum(step) <= 100) for step in steps)


@pytest.mark.parametrize(
    ("options", "bound", "least"),
    [
        ({}, Bound(), 1),
        ({"maxFilesPerTrigger": "10"}, Bound(), 10),
        ({"maxfilespertrigger": "20000"}, Bound(files=20_000), 20_000),
        ({"maxBytesPerTrigger": "1g"}, Bound(bytes=2**30), 1),
        ({"maxOffsetsPerTrigger": "5000000"}, Bound(records=5_000_000), 1),
        ({"maxFilesPerTrigger": "{env:N}"}, Bound(), 1),
    ],
)
def test_a_rate_limit_that_is_higher_than_the_bound_counts(
    options: dict[str, str], bound: Bound, least: int
) -> None:
    assert (Bound().of_source(source(**options)), own_files(source(**options))) == (bound, least)


def test_the_bound_is_the_sessions_own_where_it_says_one() -> None:
    assert Bound.of({BYTES: "64m"}.get) == Bound(bytes=64 * 2**20)
    with pytest.raises(DeclarationError, match=r"replay.bytes is '-1'. Allowed is a whole number above 0"):
        Bound.of({BYTES: "-1"}.get)


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        pytest.param({"t": {"0": 0}}, {"t": {"0": 10}}, [{"t": {"0": 10}}], id="all fits"),
        pytest.param(
            {"t": {"0": 0, "1": 5}},
            {"t": {"0": 20, "1": 5}},
            [{"t": {"0": 10, "1": 5}}, {"t": {"0": 20, "1": 5}}],
            id="two",
        ),
        pytest.param({}, {"t": {"0": 0}}, [{"t": {"0": 0}}], id="nothing was read"),
        pytest.param({"t": {"0": 9}}, {"t": {"0": 3}}, [{"t": {"0": 3}}], id="its beginning is gone"),
    ],
)
def test_records_are_cut_by_their_number_in_all_partitions_alike(
    first: Offsets, end: Offsets, expected: list[Offsets]
) -> None:
    assert cut_offsets(first, end, 10) == expected


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4), st.integers(1, 20)
)
def test_no_record_is_left_out_or_read_twice(parts: list[tuple[int, int]], records: int) -> None:
    first: Offsets = {"t": {str(number): start for number, (start, _) in enumerate(parts)}}
    end: Offsets = {"t": {str(number): start + length for number, (start, length) in enumerate(parts)}}
    steps = cut_offsets(first, end, records)
    assert steps[-1] == end
    before = first
    for step in steps:
        lengths = [step["t"][part] - before["t"][part] for part in end["t"]]
        assert min(lengths) >= 0
        assert sum(lengths) <= records + len(lengths)
        before = step


def test_commits_are_cut_by_their_bytes() -> None:
    assert cut_versions(3, 7, {3: 60, 5: 60, 6: 10}, SMALL) == [5, 7]
    assert cut_versions(3, 3, {}, SMALL) == []


@pytest.mark.parametrize(
    ("ends", "steps"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"a": [1, 2, 3]}, [{"a": 1}, {"a": 2}, {"a": 3}], id="one"),
        pytest.param(
            {"a": [1, 2, 3, 4], "b": ["x", "y"]},
            [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}, {"a": 3, "b": "y"}, {"a": 4, "b": "y"}],
            id="two",
        ),
    ],
)
def test_sources_go_on_together(ends: dict[str, list[Any]], steps: list[dict[str, Any]]) -> None:
    assert spread(ends) == steps
