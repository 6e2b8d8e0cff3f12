"""Whether a flow's table and sources are those of its checkpoint, as far as files tell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.log import last_transaction
from streamkeeper.errors import SourceError
from streamkeeper.observe import position
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.kafka.offsets import OffsetRange, Topics
from streamkeeper.sources.kafka.start import KafkaLook
from streamkeeper.trial.standing import standing
from streamkeeper.trial.verdict import Compatibility, Verdict
from tests.worlds.small_world import World
from tests.worlds.sources.source_impacts import KAFKA, STOOD, begun


def found(world: World, look: Callable[[Any], Any] = lambda source: None) -> Verdict:
    begun = Observed(world.home).begun
    assert begun is not None
    return standing(world.settings, world.home, world.flow, begun, look)


def table(world: World) -> str:
    return str(world.root / "warehouse" / "events")


@pytest.fixture
def ran(world: World) -> World:
    """A flow that has read two files, and written both."""
    world.begin([[file] for file in world.add_files(2)], 2, 2)
    return world


def test_a_flow_with_its_table_and_its_files_goes_on(ran: World) -> None:
    assert found(ran) == Verdict("events.clean_events", Compatibility.COMPATIBLE)


def test_a_table_that_is_gone_or_was_made_anew_breaks_it(ran: World) -> None:
    shutil.rmtree(table(ran))
    assert (found(ran).compatibility, found(ran).recovery) == (Compatibility.INCOMPATIBLE, "reset_checkpoint")
    ran.write_table("another", 1)
    assert "lacks batches 0 to 1" in found(ran).reasons[0]


def test_a_checkpoint_of_a_newer_spark_needs_that_spark_and_no_recovery(ran: World) -> None:
    folder = ran.home.storage.path(f"{ran.home.checkpoint(1, 1)}")
    newest = max(Path(folder, "offsets").iterdir(), key=lambda file: file.name)
    own = newest.read_text()
    newest.write_text(own.replace('"conf":{}', '"conf":{"spark.sql.of.tomorrow":"true"}'))
    assert found(ran).compatibility is Compatibility.COMPATIBLE, "without state it pins nothing that counts"
    Path(folder, "state", "0").mkdir(parents=True)
    assert found(ran).compatibility is Compatibility.RESULTS_DIFFER
    assert "pins spark.sql.of.tomorrow, which Spark 4.2 does not know" in found(ran).reasons[0]
    newest.write_text(own.replace("v2", "v3", 1))
    assert (found(ran).compatibility, found(ran).recovery) == (Compatibility.INCOMPATIBLE, None)
    assert "is of version v3, and Spark 4.2 reads v1 and v2: a newer Spark wrote it" in found(ran).reasons[0]


def test_a_batch_in_flight_is_no_contradiction(world: World) -> None:
    world.begin([[file] for file in world.add_files(3)], 1, 2)
    assert found(world).compatibility is Compatibility.COMPATIBLE


def test_a_batch_that_commits_while_the_logs_are_read_is_no_contradiction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin([[file] for file in world.add_files(3)], 1, 2)

    def then_commits(*asked: Any) -> Any:
        found = last_transaction(*asked)
        world.begin([[file] for file in world.files], 3, 3)
        return found

    monkeypatch.setattr(position, "last_transaction", then_commits)
    assert found(world).compatibility is Compatibility.COMPATIBLE


def test_a_log_that_was_cleaned_up_is_said(ran: World) -> None:
    for file in sorted((ran.root / "warehouse" / "events" / "_delta_log").glob("*.json")):
        file.unlink()
    log = ran.root / "warehouse" / "events" / "_delta_log" / f"{7:020d}.json"
    log.write_text('{"commitInfo":{}}\n')
    assert (found(ran).compatibility, "not known" in found(ran).reasons[0]) == (
        Compatibility.RESULTS_DIFFER,
        True,
    )


def test_files_that_were_written_again_are_said(ran: World) -> None:
    file = min((ran.root / "data" / "events").iterdir())
    os.utime(file, (file.stat().st_mtime + 5, file.stat().st_mtime + 5))
    assert found(ran).compatibility is Compatibility.RESULTS_DIFFER
    assert (
        found(ran)
        .reasons[0]
        .startswith("The source events_raw has files that were written again after they were read (1,")
    )


def test_a_source_that_does_not_answer_is_said(world: World) -> None:
    text = (world.root / "pipelines" / "events.py").read_text()
    world.declare(
        text.replace('path="{data}/events", schema="event_id STRING", options={}', 'path="{data}/t"').replace(
            "json", "delta"
        )
    )
    world.begin([world.add_files(1)], 1, 1)

    def look(source: Any) -> Any:
        raise SourceError("no answer")

    assert (found(world, look).compatibility, found(world, look).reasons) == (
        Compatibility.RESULTS_DIFFER,
        ("The source events_raw could not be looked at: no answer",),
    )


@pytest.mark.parametrize(
    ("held", "known", "compatibility"),
    [
        (
            Topics({"orders": {"0": OffsetRange(0, 5), "1": OffsetRange(0, 3)}}, {"orders": "id-1"}),
            "id-1",
            Compatibility.RESULTS_DIFFER,
        ),
        (
            Topics({"orders": {"0": OffsetRange(0, 5), "1": OffsetRange(0, 3)}}),
            "id-1",
            Compatibility.RESULTS_DIFFER,
        ),
        (
            Topics({"orders": {"0": OffsetRange(0, 9), "1": OffsetRange(0, 3)}}, {"orders": "id-2"}),
            "id-1",
            Compatibility.INCOMPATIBLE,
        ),
    ],
    ids=["the same", "without an id", "made anew"],
)
def test_an_end_that_may_be_right_again_in_a_moment_breaks_nothing(
    held: Topics, known: str, compatibility: Compatibility, world: World
) -> None:
    begun(world, KAFKA, STOOD, topics={"events_raw": {"orders": known}})
    verdict = found(world, lambda source: KafkaLook(held, lambda moment_ms: STOOD))
    assert verdict.compatibility is compatibility
    assert any("the driver looks again for 60 s" in why for why in verdict.reasons) is (
        compatibility is Compatibility.RESULTS_DIFFER
    )
