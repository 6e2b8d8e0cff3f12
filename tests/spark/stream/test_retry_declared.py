"""A flow that declares that it would rather be retried than parked."""

from __future__ import annotations

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from tests.worlds.flow_world import DEDUPE, Flowbed, pipeline


def test_a_failure_that_would_park_the_flow_is_written_down_for_its_task_instead(bed: Flowbed) -> None:
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.declare(
        pipeline(view=".select('event_id', 'user_id', 'n', 'event_time')").replace(
            "trigger=", 'on_failure="retry", trigger='
        )
    )
    bed.arrive(2)
    assert bed.run() is Outcome.RETRY_DECLARED
    assert holds.all_of(bed.home) == []
    lease = leases.current(bed.home)
    assert lease is not None
    said = leases.failure_of(bed.home, lease.epoch)
    assert said is not None
    assert (said["classed"], said["recovery"], said["generation"]) == (
        "needs recovery",
        "reset_checkpoint",
        1,
    )
    assert said["condition"] == "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
    assert leases.life(bed.home, lease) is leases.Life.LEFT
    bed.declare(pipeline(view=DEDUPE))
    assert bed.run() is Outcome.STOPPED, "the same declaration as before continues where it stood"
    bed.holds(bed.events)
