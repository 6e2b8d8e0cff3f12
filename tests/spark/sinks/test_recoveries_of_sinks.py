"""Recoveries of flows that write sinks: what comes once more is what the plan asked to accept, and no more.
Rehearsals of results: what they show is what then comes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.readers import drop_repeats
from streamkeeper.support.amounts import DUPLICATES, UNKNOWN_IMPACT
from tests.oracle import counted
from tests.worlds.flow_world import NAME, Flowbed
from tests.worlds.flows import sinks
from tests.worlds.flows.sinks import Rows
from tests.worlds.recover.old_jobs import run_declared_job
from tests.worlds.recover.results import MODES, is_exact, totals
from tests.worlds.rehearsing import for_real, planned, rehearse
from tests.worlds.shipped.beds import recover
from tests.worlds.tables.backup_world import Recoverer

COLUMNS = ("event_id", "user_id", "n")
"""Those that every sink writes in the same way; Kafka's rows are JSON, with times as Spark writes them."""
KINDS = ("function", "kafka", "parquet")


@pytest.fixture
def found(request: pytest.FixtureRequest, bed: Flowbed) -> Rows:
    """Declare a flow into a sink; return what reads the sink."""
    if request.param == "function":
        bed.declare(sinks.into_function(bed))
        return lambda: sinks.in_copies(bed)
    if request.param == "parquet":
        bed.declare(sinks.into_files("parquet"))
        return lambda: sinks.in_files(bed, "parquet")
    options = sinks.make_topic(request.getfixturevalue("brokers"))
    bed.declare(sinks.into_topic(options))
    return lambda: sinks.events_of(drop_repeats(sinks.in_topic(bed, options)))


@pytest.mark.long
@pytest.mark.parametrize("found", KINDS, indirect=True)
def test_what_is_rewound_comes_once_more(bed: Flowbed, at_work: Recoverer, found: Rows) -> None:
    for numbers in ((1, 2), (3, 4), (5,)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    assert at_work.impacts("rewind", flow=NAME, batch="0") == [DUPLICATES]
    recover(bed, "rewind", flow=NAME, batch="0", accept=[DUPLICATES])
    bed.arrive(6)
    assert bed.run() is Outcome.STOPPED
    assert counted(found(), COLUMNS) == counted([*bed.events, *bed.events[2:5]], COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize("found", ["function", "kafka"], indirect=True)
def test_a_backfill_writes_its_chunks_once_more(bed: Flowbed, at_work: Recoverer, found: Rows) -> None:
    bed.arrive(1, 2)
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    assert at_work.impacts("backfill", flow=NAME, chunk=1) == [DUPLICATES]
    recover(bed, "backfill", flow=NAME, chunk=1, accept=[DUPLICATES])
    assert counted(found(), COLUMNS) == counted(bed.events * 2, COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize("found", KINDS, indirect=True)
def test_the_job_of_a_sink_is_gone_on_with(bed: Flowbed, at_work: Recoverer, found: Rows) -> None:
    bed.arrive(1, 2)
    folder = run_declared_job(bed)
    adopted = {"flow": NAME, "checkpoint": str(folder), "old_job_is_stopped": True}
    assert at_work.impacts("adopt", **adopted) == [UNKNOWN_IMPACT]
    recover(bed, "adopt", **adopted, accept=[UNKNOWN_IMPACT])
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    assert counted(found(), COLUMNS) == counted(bed.events[2:], COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "of_table"), MODES, ids=[mode for mode, _ in MODES])
def test_totals_are_rehearsed_as_they_then_come(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    bed = make_bed(totals(mode, of_table))
    for numbers in ((1, 2, 8), (3, 9), (1,)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    made = planned(bed, "rewind", rehearse=True, flow=NAME, batch="0", target="restored")
    before = bed.rows()
    [table] = rehearse(bed, made).tables
    assert bed.rows() == before
    for_real(bed, made)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
    assert table.rows_after == len(bed.rows())
