"""Drivers whose JVM runs out of a small heap: what they, or the ends of their processes, say of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.drivers import failures
from streamkeeper.exit_codes import described
from streamkeeper.flows import leases
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.suites import long_after

SMALL = 'dp.configure_pipeline(driver=dp.driver(driver_memory="512m"))'
BROADCAST = '.crossJoin(F.broadcast(events.sparkSession.range(60_000_000).withColumn("u", F.uuid())))'
COLLECTED = (
    '.crossJoin(events.sparkSession.range(90_000_000).agg(F.collect_list("id").alias("ids"))'
    '.selectExpr("size(ids) AS size"))'
)


@pytest.mark.parametrize("view", long_after(0, [BROADCAST, COLLECTED]), ids=["broadcast", "task"])
def test_a_driver_whose_java_ran_out_of_memory_says_memory_and_what_to_declare(
    make_bed: Callable[..., Flowbed], view: str
) -> None:
    bed = make_bed(pipeline(view=view, more=SMALL))
    bed.arrive(1)
    with bed.driver("--available-now") as driver:
        said = described(driver.wait(300))
    lease = leases.current(bed.home)
    assert lease is not None
    failure = failures.read(leases.failure_of(bed.home, lease.epoch) or {})
    told = [said] if failure is None else [said, failures.describe(bed.name, failure)]
    assert all("Java ran out of memory" in text for text in told), told
    assert 'driver=dp.driver(driver_memory="4g")' in said
