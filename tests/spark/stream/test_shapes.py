"""A reset with its state rebuilt, for each shape of query: the table is what an undisturbed run would
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.checkpoint import write_offsets
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import AFTER_LAST, StartAt
from streamkeeper.manifest.manifest import write_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import reset_checkpoint
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import NAME, SCHEMA, Flowbed, event, pipeline
from tests.worlds.state_stores import PROVIDER, ROCKS, with_conf

pytestmark = pytest.mark.long

Make = Callable[..., Flowbed]
BY_USER = pipeline(view='.dropDuplicates(["user_id"])')
SECOND = f'dp.create_source("second", format="json", path="{{data}}/second", schema="{SCHEMA}")'
BOTH = {
    "more": SECOND,
    "sources": ("distinct_events", "second"),
    "parameters": "events, second",
    "view": "",
    "files": 20,
}


@pytest.fixture
def rocks(spark: SparkSession) -> Iterator[None]:
    """Let the session keep state in RocksDB, as a driver's own application that declares it does."""
    spark.conf.set(PROVIDER, ROCKS)
    yield
    spark.conf.unset(PROVIDER)


def run(bed: Flowbed, name: str = NAME) -> None:
    assert bed.run(name) is Outcome.STOPPED


def left_outer(extra: str) -> str:
    """Each event with the event of the second source that has its id and comes within ten seconds, or with
    none.
    """
    right = (
        'second.withWatermark("event_time", "10 seconds").selectExpr("event_id AS other", "n AS m",'
        f' "event_time AS at"{extra})'
    )
    condition = "event_id = other AND at BETWEEN event_time AND event_time + INTERVAL 10 SECONDS"
    joined = (
        f'events.withWatermark("event_time", "10 seconds").join({right}, F.expr("{condition}"), "left_outer")'
    )
    return pipeline(**BOTH, flow=f'{joined}.selectExpr("event_id", "coalesce(m, -1) AS user_id", "n")')  # type: ignore[arg-type]


def test_an_outer_join_neither_loses_nor_repeats_what_had_no_match(make_bed: Make) -> None:
    bed = make_bed(left_outer(""))
    bed.arrive(1, 20)
    bed.arrive(1, folder="second")
    run(bed)
    bed.arrive(60)
    bed.arrive(60, 62, folder="second")
    run(bed)
    bed.holds([{**event(number), "user_id": match} for number, match in ((1, 1), (20, -1), (60, 60))])
    bed.declare(left_outer(', "user_id AS u"'))
    bed.reset()
    bed.arrive(62, 70)
    run(bed)
    bed.arrive(100)
    bed.arrive(100, folder="second")
    run(bed)
    matches = ((1, 1), (20, -1), (60, 60), (62, 62), (70, -1), (100, 100))
    bed.holds([{**event(number), "user_id": match} for number, match in matches])


COUNTING = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "{state}")

        def handleInputRows(self, key, rows, timers):
            count = self.seen.get()[0] if self.seen.exists() else 0
            for row in sorted(rows, key=lambda row: row.n):
                count += 1
                yield Row(event_id=row.event_id, user_id=count, n=row.n)
            self.seen.update({update})

        def close(self):
            pass

"""
NUMBERED = (
    'events.groupBy("user_id").transformWithState(Counting(), "event_id STRING, user_id INT, n INT",'
    ' "Append", "None")'
)


def counting(state: str, update: str) -> str:
    """Number the events of each user, in a state of one's own making, which RocksDB keeps."""
    before, _, _ = pipeline(view="", files=20).rpartition("    return ")
    text = f"{before}{COUNTING.format(state=state, update=update)[1:]}    return {NUMBERED}\n"
    return with_conf(text, **{PROVIDER: ROCKS})


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oracle of :func:`counting`."""
    counts: dict[int, int] = {}
    found = []
    for item in events:
        counts[item["user_id"]] = counts.get(item["user_id"], 0) + 1
        found.append({**item, "user_id": counts[item["user_id"]]})
    return found


@pytest.mark.usefixtures("rocks")
def test_a_state_of_ones_own_making_is_made_anew_from_history(make_bed: Make) -> None:
    bed = make_bed(counting("count INT", "(count,)"))
    bed.arrive(1, 2, 8)
    bed.arrive(3, 9)
    run(bed)
    bed.holds(numbered(bed.events))
    bed.declare(counting("count INT, twice INT", "(count, 2 * count)"))
    bed.reset()
    bed.arrive(15, 10)
    run(bed)
    bed.holds(numbered(bed.events))
    assert bed.start(2).operators == ("transformWithStateInPySparkExec",)


@pytest.mark.usefixtures("rocks")
def test_another_state_store_is_filled_from_history(make_bed: Make) -> None:
    bed = make_bed(pipeline())
    bed.spark.conf.unset(PROVIDER)
    bed.arrive(1, 2)
    run(bed)
    bed.declare(with_conf(BY_USER, **{PROVIDER: ROCKS}))
    planned, _ = reset_checkpoint.plan_flow(
        bed.settings, bed.flow(), ResetRequest((NAME,), StartAt(AFTER_LAST))
    )
    assert any(
        note.startswith("Pinned: spark.sql.streaming.stateStore.providerClass was") for note in planned.notes
    )
    bed.spark.conf.set(PROVIDER, ROCKS)
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
    write_manifest(bed.settings)
    flows = (NAME, "events.other_events")
    plan = engine.plan(bed.settings, reset_checkpoint.KIND, ResetRequest(flows, StartAt(AFTER_LAST)), "r1")
    engine.propose(bed.settings, plan)
    engine.approve(bed.settings, "events", "r1", "a test")
    for step in reset_checkpoint.KIND.step_names[:-1]:
        engine.carry_out(bed.settings, "events", "r1", step)
    bed.arrive(8, 9, 4)  # users 1, 2 and 4; event 3 is unread by the first flow, and read by the second
    for name in flows:
        run(bed, name)
    assert sorted(row["n"] for row in bed.rows()) == [1, 2, 3, 4]
    others = bed.spark.read.format("delta").load(str(bed.root / "warehouse" / "others"))
    assert sorted(row["n"] for row in others.collect()) == [2, 3, 4]
