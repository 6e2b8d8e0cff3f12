"""Flows whose topic ends before their position, though it is the same one: for good, or for a moment. A real
broker of this file's own, which is stopped meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.sources.base.format import LOOKED_AT_AGAIN
from streamkeeper.support.amounts import DATA_LOSS, NONE
from tests.oracle import all_rows
from tests.worlds.flow_world import NAME, wait_until
from tests.worlds.sources.cut_topics import cut_off, put_back
from tests.worlds.sources.source_world import DEDUPE, KafkaBed
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer
from tools.kafka_broker import KafkaBroker

Make = Callable[..., KafkaBed]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def kafka(tmp_path: Path, spark: SparkSession, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a flow that has read a topic of its own up to 5 and 3, and looks again but shortly."""
    from streamkeeper_jobs.sources import formats

    monkeypatch.setattr(formats, "LOOKS_AGAIN", (0.1, 0.2))

    def make(**text: str) -> KafkaBed:
        flow = KafkaBed.make(tmp_path / "a bed", spark, broker.bootstrap_servers, **text)
        flow.arrive(2, 4)
        flow.arrive(6, 8, 10, 1, 3, 5)
        assert flow.bed.run() is Outcome.STOPPED
        return flow

    return make


def asks_for_more(flow: KafkaBed) -> bool:
    """Whether the query of the second driver has looked for new records."""
    beat = leases.read_heartbeat(flow.bed.home, 2)
    return beat is not None and beat.triggers > 0


def stands(flow: KafkaBed) -> dict[str, int]:
    checkpoint = flow.bed.checkpoint(1)
    last = checkpoint.last_commit()
    assert last is not None
    offsets: dict[str, int] = checkpoint.offsets(last).sources["raw"][flow.topic]
    return offsets


@pytest.mark.parametrize("view", long_after(1, ["", DEDUPE]), ids=["stateless", "stateful"])
def test_a_partition_that_was_cut_off_goes_on_at_its_end_and_no_row_comes_twice(
    kafka: Make, broker: KafkaBroker, view: str
) -> None:
    flow = kafka(view=view)
    cut_off(broker, flow.topic, 0, 2)
    assert flow.bed.run() is Outcome.PARKED
    park = flow.bed.park().details
    assert f"{flow.topic}/0 was read up to 5, and ends at 2, though it is the same topic" in park["message"]
    assert park["recovery"] == "reset_checkpoint"
    at_work = Recoverer.of(flow.bed)
    accept = [DATA_LOSS, *(["missing-history"] if view else [])]
    assert at_work.impacts("reset_checkpoint", flow=NAME) == accept
    plan = at_work.plan("reset_checkpoint", "r1", flow=NAME, accept=accept)
    (impact,) = plan.flows[0].impacts
    assert (impact.repeated.nothing, impact.lost.rows) == (True, None)
    assert impact.gone.rows == (3 if view else 0), "a rebuilt state lacks what was read behind the end"
    at_work.carry_out(plan)
    assert flow.bed.run() is Outcome.STOPPED
    assert flow.bed.start(2).positions == {"raw": {flow.topic: {"0": 2, "1": 3}}}
    flow.arrive(12, 14, 7)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds(all_rows(flow.bed.events))


@pytest.mark.parametrize("reset", long_after(1, [False, True]), ids=["by itself", "by a reset"])
def test_an_end_that_goes_back_costs_nothing_once_it_is_right_again(
    kafka: Make, broker: KafkaBroker, reset: bool
) -> None:
    flow = kafka()
    with flow.bed.running() as ended:
        wait_until(lambda: asks_for_more(flow))
        files = cut_off(broker, flow.topic, 0, 2)
        assert ended.result(180) is Outcome.FAILED, "it is tried again"
    assert holds.parked(flow.bed.home) is None
    planned = flow.bed.checkpoint(1).offset_batches()[-1]
    assert flow.bed.checkpoint(1).offsets(planned).sources["raw"][flow.topic]["0"] == 2, "Spark's own batch"
    at_work = Recoverer.of(flow.bed)
    plan = at_work.plan("reset_checkpoint", "r1", flow=NAME, accept=[DATA_LOSS])
    assert LOOKED_AT_AGAIN in plan.flows[0].impacts[0].notes
    put_back(broker, files)
    flow.arrive(12, 7)
    if reset:
        at_work.carry_out(plan)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds(all_rows(flow.bed.events))
    assert stands(flow)["0"] == (5 if reset else 6)


@pytest.mark.long
def test_a_flow_that_bears_losses_reads_nothing_twice_either(kafka: Make, broker: KafkaBroker) -> None:
    flow = kafka(options='"failOnDataLoss": False')
    with flow.bed.running():
        wait_until(lambda: asks_for_more(flow))
        put_back(broker, cut_off(broker, flow.topic, 0, 2))
        flow.arrive(12, 7)
        wait_until(lambda: len(flow.bed.rows()) >= len(flow.bed.events), 120)
    flow.bed.holds(all_rows(flow.bed.events))


@pytest.mark.long
def test_a_full_refresh_impacts_what_was_read_and_is_gone(kafka: Make, broker: KafkaBroker) -> None:
    flow = kafka()
    cut_off(broker, flow.topic, 0, 2)
    plan = Recoverer.of(flow.bed).draft("full_refresh", table="events")
    assert "at most 3 rows read before" in (plan.flows[0].impacts[0].lost.rows_unknown or "")
    assert plan.flows[0].impacts[0].repeated == NONE
