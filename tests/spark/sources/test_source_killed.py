"""A driver that reads Kafka or Delta is killed between the sink's commit and the checkpoint's, and the flow
is reset: a real process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.files import query_id
from tests.oracle import first_per
from tests.worlds.drivers import batch_of, kill_after_the_sinks_commit
from tests.worlds.flow_world import NAME
from tests.worlds.sources.source_world import DEDUPE

pytestmark = pytest.mark.long


@pytest.mark.parametrize("source", ["kafka", "delta"])
def test_a_reset_after_a_kill_between_the_two_commits_repeats_nothing(
    source: str, request: pytest.FixtureRequest
) -> None:
    make: Callable[..., Any] = request.getfixturevalue(source)
    flow = make(view=DEDUPE)
    flow.arrive(1, 2)
    with flow.bed.driver() as driver:
        driver.until(lambda: batch_of(flow.bed) is not None)
        kill_after_the_sinks_commit(flow.bed, driver, flow.arrive)
    last = flow.bed.checkpoint(1).last_commit()
    sink = delta_log.last_transaction(str(flow.bed.table), query_id(NAME, 1)).version
    assert last is not None
    assert sink == last + 1, "in the sink, and not in the checkpoint"
    flow.declare(view='.dropDuplicates(["event_id", "user_id"])')
    flow.bed.reset()
    flow.arrive(1, 5000, 5001)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds(first_per(flow.bed.events, ["event_id"]))
    assert flow.bed.start(2).evidence["ruled_by"] == "sink"
