"""What a reset of a flow of files loses and repeats, against a plain count of the files: wherever it starts,
whatever was read and whatever waits.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkeeper.flows.generations import (
    AFTER_LAST,
    EARLIEST,
    LATEST,
    OFFSETS,
    TIMESTAMP,
    StartAt,
    StartMode,
)
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES
from tests.worlds.recover.recoveries import impact, plan_reset, refused
from tests.worlds.small_world import World

ROWS = st.integers(1, 4)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=4),
    waiting=st.lists(ROWS, max_size=3),
    mode=st.sampled_from([AFTER_LAST, EARLIEST, LATEST, TIMESTAMP, OFFSETS]),
    place=st.integers(0, 15),
)
def test_a_start_costs_what_it_leaves_out_of_the_unread_and_takes_again_of_the_read(
    batches: list[list[int]],
    waiting: list[int],
    mode: StartMode,
    place: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    world.declare()
    first_ms, last = world.clock_ms, len(batches)
    batch_of = [number for number, sizes in enumerate(batches) for _ in sizes] + [last] * len(waiting)
    rows = [size for sizes in (*batches, waiting) for size in sizes]
    files = [world.add_files(1, size)[0] for size in rows]
    read = [
        [file for file, of in zip(files, batch_of, strict=True) if of == number] for number in range(last)
    ]
    world.begin(read, last, last)
    if mode is TIMESTAMP:
        moment = (place - 1) * 30_000  # a file comes each minute: half of the moments lie between two
        start = StartAt(mode, timestamp_ms=first_ms + moment)
        taken = [60_000 * number >= moment for number in range(len(rows))]
    elif mode is OFFSETS:
        batch = place % (last + 1) - 1
        start = StartAt(mode, offsets={"events_raw": {"logOffset": batch}})
        taken = [of > batch for of in batch_of]
    else:
        start = StartAt(mode)
        taken = [mode is EARLIEST or (mode is AFTER_LAST and of == last) for of in batch_of]
    each = list(zip(rows, batch_of, taken, strict=True))
    lost = sum(size for size, of, again in each if of == last and not again)
    repeated = sum(size for size, of, again in each if of < last and again)
    plan = plan_reset(world, start)
    assert (impact(plan).lost.rows, impact(plan).repeated.rows, impact(plan).replayed.rows) == (
        lost,
        repeated,
        0,
    )
    impacts = [*([DATA_LOSS] if lost or mode is LATEST else []), *([DUPLICATES] if repeated else [])]
    assert refused(plan) == impacts
    for accepted in impacts:
        others = [other for other in impacts if other != accepted]
        assert refused(plan_reset(world, start, accept=(accepted,))) == others
