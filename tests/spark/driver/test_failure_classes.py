"""Failures provoked for real, and what the flow's park then says: condition, class, the recovery that
fits.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.exit_codes import Outcome
from tests.oracle import counted
from tests.worlds.flow_world import DEDUPE, Flowbed, pipeline
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
WITHIN = '.withWatermark("event_time", "1 hour").dropDuplicatesWithinWatermark(["event_id"])'


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "condition"),
    [
        ("", DEDUPE, "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"),
        (DEDUPE, '.dropDuplicates(["user_id"])', "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"),
        (WITHIN, DEDUPE, "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
    ],
    ids=["deduplication added", "other key", "other kind of deduplication"],
)
def test_a_change_of_the_query_that_its_checkpoint_cannot_take_parks_the_flow(
    make_bed: Make, before: str, after: str, condition: str
) -> None:
    bed = make_bed(pipeline(view=before))
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view=after))
    bed.arrive(3)
    rows = counted(bed.rows(), ["n"])
    assert bed.run() is Outcome.PARKED
    details = bed.park().details
    assert (details["condition"], details["classed"], details["recovery"]) == (
        condition,
        "needs recovery",
        "reset_checkpoint",
    )
    assert details["stateful"] is True
    assert details["fingerprint"] == bed.fingerprint()
    assert counted(bed.rows(), ["n"]) == rows
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    assert counted(bed.rows(), ["n"]) == {(1,): 1, (2,): 1, (3,): 1}


def write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def remove(file: Path) -> None:
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def remove_state(checkpoint: Path) -> None:
    for file in (checkpoint / "state").rglob("*.delta"):
        remove(file)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "metadata gone": (lambda checkpoint: remove(checkpoint / "metadata"), "metadata file is gone"),
    "newest offsets garbage": (
        lambda checkpoint: write(checkpoint / "offsets/2", b"garbage"),
        "offsets/2 starts with 'garbage'",
    ),
    "state files gone": (remove_state, "state are missing"),
    "files log cut off": (
        lambda checkpoint: write(checkpoint / "sources/events_raw/2", b""),
        "damaged|cut off",
    ),
}


@pytest.mark.parametrize("name", long_after(1, DAMAGE))
def test_a_damaged_checkpoint_parks_the_flow_with_what_is_wrong(bed: Flowbed, name: str) -> None:
    harm, said = DAMAGE[name]
    for number in range(5):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    harm(Path(bed.checkpoint(1).path()))
    bed.arrive(5)
    assert bed.run() is Outcome.PARKED
    park = bed.park()
    assert (park.details["classed"], park.details["recovery"]) == ("needs recovery", "reset_checkpoint")
    assert re.search(said, f"{park.reason}: {park.details['message']}"), park
    bed.reset()
    if name.startswith("files log"):
        assert bed.run() is Outcome.PARKED
    else:
        assert bed.run() is Outcome.STOPPED
        assert counted(bed.rows(), ["n"]) == {(number,): 1 for number in range(6)}


OF_THE_LAST_BATCH: dict[str, Callable[[Path], None]] = {
    "torn": lambda checkpoint: write(checkpoint / "offsets/2", b"v2"),
    "gone": lambda checkpoint: remove(checkpoint / "offsets/2"),
    "all gone": lambda checkpoint: shutil.rmtree(checkpoint / "offsets"),
}


@pytest.mark.parametrize("name", long_after(1, OF_THE_LAST_BATCH))
def test_lost_offsets_of_the_last_batch_are_found_again_by_the_reset_that_the_park_names(
    make_bed: Make, name: str
) -> None:
    bed = make_bed(pipeline())
    for number in range(3):
        bed.arrive(number)
        assert bed.run() is Outcome.STOPPED
    OF_THE_LAST_BATCH[name](Path(bed.checkpoint(1).path()))
    bed.arrive(3)
    assert bed.run() is Outcome.PARKED
    assert bed.park().details["recovery"] == "reset_checkpoint"
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    assert counted(bed.rows(), ["n"]) == {(number,): 1 for number in range(4)}


def test_columns_that_are_not_the_tables_park_the_flow_for_correction(bed: Flowbed) -> None:
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view=DEDUPE + '.withColumn("n", F.col("event_time"))'))
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert bed.park().details["classed"] == "needs correction"
