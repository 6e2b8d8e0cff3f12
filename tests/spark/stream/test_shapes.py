"""A reset with its state rebuilt where the state store is another, the offset log has no names, or flows
share a source: the table is what an undisturbed run would hold. Shapes of queries are in test_states.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.checkpoint import write_offsets
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.exit_codes import Outcome
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.state_stores import PROVIDER, ROCKS, with_conf
from tests.worlds.tables.backup_world import Recoverer

pytestmark = pytest.mark.long

Make = Callable[..., Flowbed]
BY_USER = pipeline(view='.dropDuplicates(["user_id"])')


def run(bed: Flowbed, name: str = NAME) -> None:
    assert bed.run(name) is Outcome.STOPPED


def test_another_state_store_is_filled_from_history(make_bed: Make) -> None:
    bed = make_bed(pipeline())
    bed.arrive(1, 2)
    run(bed)
    bed.declare(with_conf(BY_USER, **{PROVIDER: ROCKS}))
    [planned] = Recoverer.of(bed).draft("reset_checkpoint", flow=NAME).flows
    assert any(note.startswith(f"Pinned: {PROVIDER} was") for note in planned.notes)
    bed.spark.conf.set(PROVIDER, ROCKS)  # as a driver's own application has it by its declaration
    bed.reset()
    bed.arrive(8, 3)
    run(bed)
    bed.holds(first_per(bed.events, ["user_id"]))
    folder = Path(bed.checkpoint(2).path("state/0/0"))
    assert any(file.suffix in {".zip", ".changelog"} for file in folder.iterdir())


def without_names(bed: Flowbed) -> None:
    """Turn the checkpoint of generation 1 into one with version 1 of the offset log, as a job that names no
    sources writes.
    """
    checkpoint, storage = bed.checkpoint(1), bed.home.storage
    for batch in checkpoint.offset_batches():
        entry = checkpoint.offsets(batch)
        name = checkpoint.name(f"offsets/{batch}")
        storage.remove(twin_of(name))
        header = {**entry.conf, "spark.sql.shuffle.partitions": "2"}
        old = write_offsets(
            type(entry)(batch, 1, entry.watermark_ms, entry.timestamp_ms, header, entry.sources)
        )
        storage.overwrite(name, old)
    Path(checkpoint.path("sources/events_raw")).rename(checkpoint.path("sources/0"))


@pytest.mark.parametrize("text", [pipeline(view="", files=20), BY_USER], ids=["stateless", "rebuilt"])
def test_an_offset_log_without_names_is_gone_on_from(make_bed: Make, text: str) -> None:
    bed = make_bed(pipeline(files=20))
    bed.arrive(1, 2)
    bed.arrive(3)
    run(bed)
    without_names(bed)
    bed.declare(text)
    bed.reset()
    bed.arrive(8, 4)
    run(bed)
    bed.holds(all_rows(bed.events) if text != BY_USER else first_per(bed.events, ["user_id"]))
    assert bed.checkpoint(2).offsets(bed.checkpoint(2).offset_batches()[-1]).version == 2


MORE = """
dp.create_streaming_table("others")

@dp.append_flow(name="other_events", target="others", sources=["events_raw"], trigger="200 milliseconds")
def other_events(raw):
    return raw{view}
"""


def shared(view: str, other: str) -> str:
    return pipeline(view=view) + MORE.format(view=other)


def test_flows_that_share_a_source_are_reset_together_or_alone(make_bed: Make) -> None:
    """Each has positions of its own in the source that both read."""
    bed = make_bed(shared("", '.where("n > 1")'))
    bed.arrive(1, 2)
    run(bed)
    bed.arrive(3)
    run(bed, "events.other_events")
    bed.declare(shared('.dropDuplicates(["user_id"])', '.dropDuplicates(["user_id"])'))
    flows = (NAME, "events.other_events")
    Recoverer.of(bed).run("reset_checkpoint", "r1", flows=flows)
    bed.arrive(8, 9, 4)  # users 1, 2 and 4; event 3 is unread by the first flow, and read by the second
    for name in flows:
        run(bed, name)
    assert sorted(row["n"] for row in bed.rows()) == [1, 2, 3, 4]
    others = bed.spark.read.format("delta").load(str(bed.root / "warehouse" / "others"))
    assert sorted(row["n"] for row in others.collect()) == [2, 3, 4]
