"""Restores of flows that read Kafka or Delta, from backups older than what Spark keeps of their batches,
while their sources moved on. What is gone from them since: tests/core/recover/test_after_restore.py, and
test_start_position.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.flows.generations import OFFSETS
from streamkeeper.recover.plans.plan import Plan
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import Flowbed, event, wait_until
from tests.worlds.sources.source_world import DEDUPE, DeltaBed, KafkaBed
from tests.worlds.tables.backup_world import Recoverer

pytestmark = pytest.mark.long

TABLE = "events.events"


def run(bed: Flowbed) -> None:
    assert bed.run() is Outcome.STOPPED


def back_up(bed: Flowbed) -> int:
    """Back the table up as ``b1``; give the batch after which its flow stood."""
    entry = Recoverer.of(bed).backup("b1", TABLE)
    batch: int = entry["flows"][0]["batch"]
    return batch


def forget(bed: Flowbed, upto: int) -> None:
    """Remove batches from the checkpoint, as Spark does with all but the last ones."""
    checkpoint = bed.checkpoint(1)
    assert checkpoint.offset_batches()[-1] > upto, "Spark never removes the last one"
    for number in range(upto + 1):
        for name in (
            f"offsets/{number}",
            f"commits/{number}",
            f"offsets/.{number}.crc",
            f"commits/.{number}.crc",
        ):
            checkpoint.storage.remove(checkpoint.name(name))


def restore(bed: Flowbed) -> Plan:
    """Put ``b1`` back, see that the flow is to go on after the offsets that it kept, and give the plan."""
    at_work = Recoverer.of(bed)
    made = at_work.plan("restore_table", "r1", table=TABLE, backup="b1")
    at_work.carry_out(made)
    decided = generations.latest(bed.home)
    assert decided is not None
    assert (decided.number, decided.start.mode, decided.start.generation) == (2, OFFSETS, 1)
    return made


@pytest.mark.parametrize("view", ["", DEDUPE], ids=["stateless", "stateful"])
def test_partitions_and_topics_that_came_since_the_backup_are_read_and_one_that_went_is_left(
    kafka: Callable[..., KafkaBed], view: str
) -> None:
    flow = kafka()
    flow.declare(topics=f'"subscribePattern": "{flow.topic}(-.*)?"', view=view)
    went, came = f"{flow.topic}-went", f"{flow.topic}-came"
    flow.create(went, 1)
    flow.arrive(*range(1, 7))
    flow.arrive(7, partition=0, topic=went)
    run(flow.bed)
    batch = back_up(flow.bed)
    flow.arrive(8, 9, 10)
    run(flow.bed)
    forget(flow.bed, batch)
    flow.widen(3)
    flow.create(came, 1)
    flow.arrive(11, 12, partition=2)
    flow.arrive(13, partition=0, topic=came)
    for future in flow.admin.delete_topics([went]).values():
        future.result(30)
    wait_until(lambda: went not in flow.admin.list_topics(timeout=10).topics)
    made = restore(flow.bed)
    told = " ".join(made.flows[0].impacts[0].notes)
    assert f"read from the first record: {flow.topic}/2, {came}" in told
    assert f"not read any more: {went}" in told
    flow.arrive(1, 14)
    run(flow.bed)
    flow.bed.holds(first_per(flow.bed.events, ["event_id"]) if view else all_rows(flow.bed.events))


def test_a_schema_that_moved_on_since_the_backup_is_moved_on_once_more(
    delta: Callable[..., DeltaBed],
) -> None:
    flow = delta(parameters="track_schema=True, ", view='.select("event_id", "user_id", "n")')
    flow.arrive(1, 2)
    run(flow.bed)
    batch = back_up(flow.bed)
    flow.arrive(3)
    flow.sql("ALTER TABLE {table} ADD COLUMN more STRING")
    flow.sql("INSERT INTO {table} VALUES ('e4', 4, 4, timestamp'2026-01-01T00:00:04Z', 'x')")
    flow.bed.events.append(event(4))
    assert flow.bed.run() is Outcome.RESTART
    run(flow.bed)
    forget(flow.bed, batch)
    restore(flow.bed)
    restarts = [Outcome.RESTART, Outcome.RESTART]
    assert [flow.bed.run() for _ in range(3)] == [*restarts, Outcome.STOPPED], (
        "its log of schemas begins, and then follows the change"
    )
    flow.bed.holds(all_rows(flow.bed.events))
