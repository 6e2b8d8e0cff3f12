"""A format of source that was added is read, gone on with and reset by a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import OFFSETS, StartAt
from tests.worlds.flow_world import Flowbed, pipeline

ROWS = 'dp.create_source("rows", format="rate-micro-batch", options={"rowsPerBatch": 10})'
COLUMNS = ("cast(value as string) event_id", "cast(value as int) user_id", "cast(value as int) n")


def test_a_format_that_was_added_goes_on_after_its_last_row_and_starts_at_an_offset(
    make_bed: Callable[..., Flowbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.worlds.sources import toy_source_in_job

    toy_source_in_job.register(monkeypatch)
    flow = f"rows.selectExpr{COLUMNS}"
    bed = make_bed(pipeline(more=ROWS, sources=["rows"], parameters="rows", flow=flow))
    assert bed.run() is Outcome.STOPPED
    first = len(bed.rows())
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    second = len(bed.rows())
    assert 0 < first < second
    assert sorted(row["n"] for row in bed.rows()) == list(range(second))
    bed.reset(StartAt(OFFSETS, offsets={"rows": {"offset": second - 3, "timestamp": 0}}))
    assert bed.run() is Outcome.STOPPED
    counts = Counter(row["n"] for row in bed.rows())
    assert [n for n, times in sorted(counts.items()) if times > 1] == list(range(second - 3, second))
    assert sorted(counts) == list(range(len(counts)))
