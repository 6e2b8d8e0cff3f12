"""How much a driver's log grows: a real process of spark-submit, as it is submitted, over many small batches
and then none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.worlds.flow_world import DEDUPE, Flowbed, heartbeat, pipeline
from tests.worlds.state_stores import PROVIDER, ROCKS, with_conf

pytestmark = pytest.mark.long

BATCHES = 45
BYTES_PER_MINUTE = 200
"""One line of progress, with room for a longer flow's name."""


def test_the_log_grows_by_a_line_a_minute_whatever_the_number_of_batches(
    make_bed: Callable[..., Flowbed],
) -> None:
    """Of a query that keeps state in RocksDB, which has more to say than any other."""
    text = with_conf(pipeline(view=DEDUPE, files=1), **{PROVIDER: ROCKS})
    bed = make_bed(text.replace('"200 milliseconds"', '"10 milliseconds"'))
    for number in range(BATCHES):
        bed.arrive(number)
    with bed.driver() as driver:
        driver.until(lambda: batch_of(bed) >= 5)
        began, size, before = time.monotonic(), bed.log.stat().st_size, batch_of(bed)
        driver.until(lambda: batch_of(bed) == BATCHES - 1, timeout=500)
        grown, minutes = bed.log.stat().st_size - size, (time.monotonic() - began) / 60
        print(f"{grown} bytes in {BATCHES - before} batches and {minutes:.1f} minutes")
        assert grown <= BYTES_PER_MINUTE * (minutes + 1), driver.said()[-3000:]
        size, triggers = bed.log.stat().st_size, triggers_of(bed)
        driver.until(lambda: triggers_of(bed) >= triggers + 20)
        assert bed.log.stat().st_size == size, driver.said()[-3000:]
    bed.holds(bed.events)


def batch_of(bed: Flowbed) -> int:
    found = heartbeat(bed)
    return -1 if found is None or found.batch is None else found.batch


def triggers_of(bed: Flowbed) -> int:
    found = heartbeat(bed)
    return 0 if found is None else found.triggers
