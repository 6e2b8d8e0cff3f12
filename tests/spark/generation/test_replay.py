"""A state is rebuilt from a long history in bounded steps, which are told, and gone on with after the last
where a driver was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, leases, ledger
from streamkeeper.observe import status
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.replay_steps import BYTES, FILES, RECORDS
from streamkeeper.watch import progress
from tests.killing import Killed, dying
from tests.oracle import first_per
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.sources.source_world import DEDUPE, DeltaBed, KafkaBed
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
BY_USER = '.dropDuplicates(["user_id"])'
PLAIN = pipeline(view="", files=20)
CHANGED = pipeline(view=BY_USER, files=3)


@pytest.fixture
def small_steps(spark: SparkSession) -> Iterator[None]:
    """Let steps be of three files, or four records."""
    for name, value in ((FILES, "3"), (RECORDS, "4")):
        spark.conf.set(name, value)
    yield
    for name in (FILES, RECORDS, BYTES):
        spark.conf.unset(name)


def told(bed: Flowbed) -> list[dict[str, Any]]:
    events = ledger.open(bed.home.storage, "events", "test-recovery").events()
    return [item.evidence for item in events if item.event == "driver.rebuilding"]


def to_be_replayed(make_bed: Make) -> Flowbed:
    """Make a flow that has read eleven files, and whose next generation has to make a state of them."""
    bed = make_bed(PLAIN)
    for number in range(1, 12):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    bed.declare(CHANGED)
    bed.reset()
    return bed


@pytest.mark.usefixtures("small_steps")
def test_a_history_of_files_is_replayed_step_by_step(
    make_bed: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = to_be_replayed(make_bed)
    bed.arrive(12)
    bed.arrive(13, 15)  # users 6 and 1
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events[:11])
    start = bed.start(2)
    assert (start.seed_batch, start.positions) == (3, {"events_raw": {"logOffset": 3}})
    entries = bed.checkpoint(2).files_log("events_raw").entries(3)
    assert [entry.batch for entry in entries] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert told(bed)[-1] == {"step": 4, "of": 4, "rows": 11, "epoch": start.epoch}
    assert "state rebuilt by 2 of 4 steps (50 %), 6 rows so far" in capsys.readouterr().out
    bed.declare(pipeline(view='.dropDuplicates(["n"])', files=3))
    bed.reset()
    bed.arrive(3, 40)
    assert bed.run() is Outcome.STOPPED
    bed.holds([*bed.events[:11], bed.events[-1]])
    assert bed.start(3).seed_batch == 4, "what was read in steps is replayed in steps"


def is_killed_in(step: int, bed: Flowbed, *, after: bool) -> None:
    from streamkeeper_jobs.generation import seed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        dying(seed, "run_muted", step, patch, after=after)
        bed.run()


def steps_of_the_next(bed: Flowbed, patch: pytest.MonkeyPatch) -> int:
    """Run the next driver, and count the steps that it does."""
    from streamkeeper_jobs.generation import seed

    lease = leases.current(bed.home)
    assert lease is not None
    leases.leave(bed.home, lease, "its machine went down: this test's own process lives on")
    counted = Mock(wraps=seed.run_muted)
    patch.setattr(seed, "run_muted", counted)
    assert bed.run() is Outcome.STOPPED
    return int(counted.call_count)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("moment", long_after(1, ["before the step", "after the step"]))
def test_a_replay_that_was_cut_off_goes_on_after_its_last_step(
    make_bed: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    bed = to_be_replayed(make_bed)
    is_killed_in(3, bed, after=moment == "after the step")
    assert generations.read_start(bed.home, 2) is None
    assert status.rebuild_progress(bed.home) == "state of generation 2 rebuilt by 2 of 4 steps, 6 rows"
    assert str(progress.position(Observed(bed.home))).endswith("2 of 4 steps, 6 rows")
    bed.arrive(12)
    assert steps_of_the_next(bed, monkeypatch) == (2 if moment == "before the step" else 1)
    bed.holds(first_per(bed.events, ["n"])[:11])
    assert bed.start(2).seed_batch == 3


@pytest.mark.long
@pytest.mark.usefixtures("small_steps")
def test_another_declaration_does_not_go_on_with_the_state_of_the_one_before(
    make_bed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make_bed(PLAIN)
    for number in range(1, 8):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    bed.declare(CHANGED)
    bed.reset()
    is_killed_in(2, bed, after=False)
    bed.declare(pipeline(files=3))
    bed.arrive(7, 8)
    assert steps_of_the_next(bed, monkeypatch) == 3
    bed.holds([*bed.events[:7], bed.events[8]])


@pytest.mark.long
@pytest.mark.usefixtures("small_steps")
def test_a_history_of_records_is_replayed_step_by_step(kafka: Callable[..., KafkaBed]) -> None:
    flow = kafka(options='"maxOffsetsPerTrigger": 2')
    flow.arrive(*range(1, 11))
    assert flow.bed.run() is Outcome.STOPPED
    flow.declare(view=DEDUPE)
    flow.bed.reset()
    flow.arrive(3, 11)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds([*flow.bed.events[:10], flow.bed.events[11]])
    assert flow.bed.start(2).seed_batch == 2
    assert told(flow.bed)[-1]["rows"] == 10
    ends = [flow.bed.checkpoint(2).offsets(batch).sources["raw"] for batch in (1, 2)]
    assert ends == [{flow.topic: {"0": 4, "1": 4}}, {flow.topic: {"0": 5, "1": 5}}]


@pytest.mark.long
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("options", ["", '"readChangeFeed": True'], ids=["table", "change feed"])
def test_a_table_as_it_was_is_replayed_step_by_step(delta: Callable[..., DeltaBed], options: str) -> None:
    view = '.select("event_id", "user_id", "n", "event_time")'
    flow = delta(view=view, options=options)
    flow.arrive(0)
    flow.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    flow.arrive(*range(1, 9), files=8)
    assert flow.bed.run() is Outcome.STOPPED
    flow.declare(view=view + DEDUPE, options=options)
    flow.bed.reset()
    flow.arrive(3, 11)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds([*flow.bed.events[:9], flow.bed.events[10]])
    assert flow.bed.start(2).seed_batch == 3, "three steps, and the position once more"
    assert told(flow.bed)[-1]["rows"] == 9


@pytest.mark.long
@pytest.mark.usefixtures("small_steps")
def test_commits_since_a_declared_start_are_replayed_step_by_step(delta: Callable[..., DeltaBed]) -> None:
    flow = delta(parameters='start="version:1", ')
    flow.arrive(0)
    for number in range(1, 7):
        flow.arrive(number)
    assert flow.bed.run() is Outcome.STOPPED
    flow.declare(parameters='start="version:1", ', view=DEDUPE)
    flow.bed.reset()
    flow.arrive(0, 3, 11)
    assert flow.bed.run() is Outcome.STOPPED
    expected = [item for item in flow.bed.events if item["n"] != 0][:6]
    flow.bed.holds([*expected, flow.bed.events[7], flow.bed.events[9]])
    assert flow.bed.start(2).seed_batch == 2
