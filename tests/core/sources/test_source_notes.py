"""What a plan looks at besides positions: skipped and removed files, compacted and recreated sources, pinned
settings.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import OffsetEntry, write_offsets
from streamkeeper.checkpoint.log_entries import PINNED, PROVIDER, WATERMARK_POLICY
from streamkeeper.declare.model import Location, Source
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover.moves import other_batches
from streamkeeper.sources import replay_steps
from streamkeeper.sources.files.options import EVER, FileOptions
from streamkeeper.sources.kafka.offsets import OffsetRange, Topics
from streamkeeper.sources.starts import starts_of
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, MISSING_HISTORY, UNKNOWN_IMPACT, in_words
from tests.worlds.recover.recoveries import FLOW, impact, notes, planned, refused
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import EVENTS, World
from tests.worlds.sources.source_impacts import (
    DELTA,
    HELD,
    KAFKA,
    STOOD,
    Ask,
    at,
    back_to_first,
    begun,
    broker,
    table,
)
from tests.worlds.tables.delta_logs import Table

__all__ = ["broker", "table"]
DAY = 86_400_000
DAY_OLD = {"maxFileAge": "1d"}


def declared(**options: Any) -> str:
    return EVENTS.replace("options={}", f"options={options!r}")


def files(world: World, **options: Any) -> World:
    """Three batches of one file are done; two files wait, of which the first is two days older than all that
    was read.
    """
    world.declare(declared(**options))
    world.processed(3)
    late, _ = world.add_files(2)
    moment = 1_790_000_000 - 2 * DAY / 1000
    os.utime(late, (moment, moment))
    return world


# --- files that Spark skips for their age


@pytest.mark.parametrize(
    ("options", "rows", "words"),
    [
        pytest.param({}, 0, [], id="none is declared"),
        pytest.param(DAY_OLD, 2, [DATA_LOSS], id="too old"),
        pytest.param({"MAXFILEAGE": "86400000"}, 2, [DATA_LOSS], id="too old, in milliseconds"),
        pytest.param({"maxFileAge": "3d"}, 0, [], id="not too old"),
        pytest.param({**DAY_OLD, "latestFirst": True}, 2, [DATA_LOSS], id="newest first, all at once"),
        pytest.param({**DAY_OLD, "latestFirst": True, "maxFilesPerTrigger": 5}, 0, [], id="some at a time"),
    ],
)
def test_unread_files_that_are_too_old_are_counted_as_lost(
    world: World, options: dict[str, Any], rows: int, words: list[str]
) -> None:
    found = plan(files(world, **options))
    assert (impact(found).lost.rows, refused(found)) == (rows, words)
    assert f"{1 if rows else 2} unread files will be read" in impact(found).notes
    said = "1 unread files are older than the newest processed one by more than maxFileAge"
    assert any(said in note for note in impact(found).notes) is bool(rows)
    assert refused(plan(world, accept=(DATA_LOSS,))) == []


def test_no_file_s_age_counts_unless_one_is_declared(world: World) -> None:
    """By Spark's own week a file with a time to come, as of a clock that is wrong, would be the last."""
    world.declare()
    world.processed(3)
    for file, year in zip(world.add_files(2), (1975, 2446), strict=True):
        os.utime(file, ((year - 1970) * 365 * DAY / 1000,) * 2)
    found = impact(plan(world))
    assert found.lost.nothing and "2 unread files will be read" in found.notes
    assert not [note for note in found.notes if "maxFileAge" in note]
    declares = [
        Source("raw", "json", "/d", "n INT", options, Location("p.py", 1)) for options in ({}, DAY_OLD)
    ]
    assert [starts_of(source).reader_options(source) for source in declares] == [{"maxFileAge": EVER}, {}]


def test_files_of_folders_that_spark_does_not_look_into_are_neither_read_nor_lost(world: World) -> None:
    world.processed(3)
    (below := world.root / "data" / "events" / "2026").mkdir()
    (below / "f.json").write_text("{}")
    found = impact(plan(world))
    assert "0 unread files will be read" in found.notes and found.lost.nothing
    assert any(f"does not look into, such as {below / 'f.json'}: declare" in note for note in found.notes)


def test_a_start_whose_checkpoint_lists_nothing_skips_no_file(world: World) -> None:
    assert impact(plan(files(world, maxFileAge="1d"), "earliest")).lost.nothing


def processed_with_an_old_one(world: World) -> None:
    """Let three batches of a file each be processed; the second file is older than its source's age."""
    world.declare(declared(maxFileAge="1d"))
    first, second, third = (world.add_files(1) for _ in range(3))
    old = 1_790_000_000 - 2 * DAY / 1000
    os.utime(second[0], (old, old))
    world.begin([first, second, third], 3, 3)


def test_files_that_are_too_old_are_not_repeated_either(world: World) -> None:
    processed_with_an_old_one(world)
    found = plan(world, StartAt("offsets", offsets={"events_raw": {"logOffset": 0}}))
    assert impact(found).repeated.files == 1


def test_a_rewind_with_its_table_loses_what_is_too_old_to_be_read_again(world: World) -> None:
    processed_with_an_old_one(world)
    for target, lost in (("kept", 0), ("restored", 2)):
        found = planned(world, "rewind", flow=FLOW, batch="0", target=target)
        assert impact(found).lost.rows == lost, target
        assert impact(found).repeated.rows == (2 if target == "kept" else 0), target


def test_an_age_that_cannot_be_read_is_unknown_and_said(world: World) -> None:
    found = plan(files(world, maxFileAge="a week"))
    said = "maxFileAge is a week, which cannot be read here: how many unread files Spark skips for their age"
    assert f"{said} is unknown" in impact(found).notes


def test_the_order_of_reading_is_said(world: World) -> None:
    found = impact(plan(files(world, latestFirst=True, maxFilesPerTrigger=1)))
    said = "unread files are read newest first, and for no file its age (maxFileAge) counts"
    assert f"latestFirst is on: {said}" in found.notes


# --- files that are removed once they are read


def test_history_that_was_cleaned_is_counted_and_said(world: World) -> None:
    world.declare(declared(cleanSource="delete"))
    world.processed(3)
    world.park(stateful=True)
    for file in world.files[:2]:
        file.unlink()
    found = plan(world)
    assert (impact(found).gone.files, refused(found)) == (2, [MISSING_HISTORY])
    assert "cleanSource is delete" in in_words(impact(found).gone)
    said = "files are deleted once they are processed, so they cannot be read"
    assert said in str(impact(found).notes)


def test_what_is_in_the_archive_is_told(world: World) -> None:
    archive = world.root / "archive"
    world.declare(declared(cleanSource="archive", sourceArchiveDir=str(archive)))
    world.processed(3)
    moved = Path(f"{archive}{world.files[0]}")
    moved.parent.mkdir(parents=True)
    world.files[0].rename(moved)
    said = f"1 of the processed files that are gone are in {archive}: moved back, they can be read again"
    assert said in impact(plan(world)).notes


def test_files_that_are_left_out_are_removed_by_the_source_unread(world: World) -> None:
    found = plan(files(world, cleanSource="delete"), "latest")
    said = "files that this start leaves out count as processed, and are deleted unread"
    assert f"cleanSource is delete: {said}" in impact(found).notes
    assert not any("unread" in note and "cleanSource" in note for note in impact(plan(world)).notes)


# --- topics


COMPACTED = replace(HELD, policies={"orders": "compact,delete"})


@pytest.mark.parametrize("policies", [{"orders": "delete"}, {}], ids=["deleted by age", "not told"])
def test_a_topic_that_is_not_compacted_is_no_impact(
    policies: dict[str, str], world: World, broker: Ask
) -> None:
    broker(replace(HELD, policies=policies))
    begun(world, KAFKA, STOOD, initial={"orders": {"0": 0, "1": 2}})
    world.park(stateful=True)
    assert refused(plan(world)) == []


def test_a_state_rebuilt_from_a_compacted_topic_must_be_accepted(world: World, broker: Ask) -> None:
    broker(COMPACTED)
    begun(world, KAFKA, STOOD, initial={"orders": {"0": 0, "1": 2}})
    world.park(stateful=True)
    found = plan(world)
    assert (impact(found).replayed.rows, refused(found)) == (7, [MISSING_HISTORY])
    assert "topic orders is compacted: of the records of a key only the newest stay" in in_words(
        impact(found).gone
    )
    assert refused(plan(world, accept=(MISSING_HISTORY,))) == []
    assert refused(plan(world, state="empty")) == [UNKNOWN_IMPACT]


def test_what_is_read_again_of_a_compacted_topic_is_said_to_be_a_bound(world: World, broker: Ask) -> None:
    broker(COMPACTED)
    found = plan(begun(world, KAFKA, STOOD), "earliest")
    assert refused(found) == [DUPLICATES]
    said = "Counts between offsets are upper bounds, and not all rows that were read are read again"
    assert said in str(impact(found).notes)


def test_a_full_refresh_from_a_compacted_topic_loses_what_nobody_can_count(world: World, broker: Ask) -> None:
    broker(COMPACTED)
    begun(world, KAFKA, STOOD, initial={"orders": {"0": 0, "1": 2}})
    found = planned(world, "full_refresh", table="events")
    assert refused(found) == [UNKNOWN_IMPACT]
    assert "topic orders is compacted" in found.refusals[0].message


@pytest.mark.parametrize(("target", "words"), [("kept", [DUPLICATES]), ("restored", [DATA_LOSS])])
def test_a_rewind_of_a_compacted_topic_cannot_read_all_of_it_again(
    target: str, words: list[str], world: World, broker: Ask
) -> None:
    broker(COMPACTED)
    back_to_first(world, STOOD, KAFKA, {"orders": {"0": 2, "1": 2}})
    assert refused(planned(world, "rewind", flow=FLOW, batch="0", target=target)) == words


def test_a_client_that_may_not_know_a_topics_policy_says_so(world: World, broker: Ask) -> None:
    two = Topics({**HELD.ranges, "more": {"0": OffsetRange(0, 1)}}, HELD.ids, {"more": "delete"})
    broker(two)
    said = "whether topic orders is compacted is unknown: this client may not read the topics' configuration"
    assert said in impact(plan(begun(world, KAFKA, STOOD))).notes


# --- sources that were made anew


@pytest.mark.parametrize(
    "start",
    ["earliest", "latest", StartAt("timestamp", timestamp_ms=2)],
    ids=["earliest", "latest", "a moment"],
)
def test_a_topic_that_was_made_anew_was_not_read_wherever_one_starts(
    start: StartAt | str, world: World, broker: Ask
) -> None:
    broker(HELD)
    begun(world, KAFKA, STOOD, topics={"events_raw": {"orders": "id-0"}})
    found = plan(world, start)
    assert (impact(found).repeated.nothing, refused(found)) == (True, [DATA_LOSS])
    assert "was deleted and recreated" in in_words(impact(found).lost)


def test_a_state_is_not_rebuilt_from_records_that_were_in_another_topic(world: World, broker: Ask) -> None:
    broker(HELD)
    begun(world, KAFKA, STOOD, topics={"events_raw": {"orders": "id-0"}})
    world.park(stateful=True)
    found = plan(world)
    assert refused(found) == [DATA_LOSS, MISSING_HISTORY]
    assert impact(found).replayed.nothing


@pytest.mark.parametrize(
    "start",
    ["earliest", "latest", StartAt("offsets", offsets={"events_raw": at(1)})],
    ids=["earliest", "latest", "offsets"],
)
def test_a_table_that_was_made_anew_was_not_read_wherever_one_starts(
    start: StartAt | str, world: World, table: Table
) -> None:
    begun(world, DELTA, {**at(2), "reservoirId": "another"})
    found = plan(world, start)
    assert (impact(found).repeated.nothing, refused(found)) == (True, [DATA_LOSS])
    assert "the table was recreated" in in_words(impact(found).lost)


def test_a_state_is_not_rebuilt_from_rows_that_were_in_another_table(world: World, table: Table) -> None:
    begun(world, DELTA, {**at(2), "reservoirId": "another"})
    world.park(stateful=True)
    assert refused(plan(world)) == [DATA_LOSS, MISSING_HISTORY]


# --- settings that the checkpoint pins


PARTITIONS = "spark.sql.shuffle.partitions"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


DEFAULT = PINNED[PROVIDER]


def changes(setting: str, before: str, then: str) -> str:
    return f"Pinned: {setting} was {before} in generation 1; the next generation will use {then}."


def with_header(world: World, conf: dict[str, str], spark_conf: str) -> World:
    """Let three batches be done whose header pins these settings, and the flow declare others."""
    world.declare(
        EVENTS.replace('sources=["events_raw"]', f'sources=["events_raw"], spark_conf={{{spark_conf}}}')
    )
    start = world.processed(3, operators=("dedupe",))
    entry = OffsetEntry(2, 2, 0, 1, conf, {"events_raw": {"logOffset": 2}}, {"sourceMetadataInfo": {}})
    world.home.storage.overwrite(f"{start.checkpoint}/offsets/2", write_offsets(entry))
    return world


@pytest.mark.parametrize(
    ("conf", "spark_conf", "said"),
    [
        pytest.param(dict(PINNED), "", [], id="Spark's own"),
        pytest.param({PROVIDER: ROCKS}, f"'{PROVIDER}': '{ROCKS}'", [], id="declared as it is"),
        pytest.param({PROVIDER: ROCKS}, "", [changes(PROVIDER, ROCKS, DEFAULT)], id="declared no more"),
        pytest.param(
            {WATERMARK_POLICY: "min"},
            f"'{WATERMARK_POLICY}': 'max'",
            [changes(WATERMARK_POLICY, "min", "max")],
            id="declared otherwise",
        ),
        pytest.param(
            {PARTITIONS: "200"},
            f"'{PARTITIONS}': 5",
            [changes(PARTITIONS, "2", "5")],
            id="partitions, as the state has them",
        ),
        pytest.param({"spark.sql.of.another.release": "1"}, "", [], id="not known"),
    ],
)
def test_pinned_settings_that_would_change_are_named(
    world: World, conf: dict[str, str], spark_conf: str, said: list[str]
) -> None:
    found = plan(with_header(world, conf, spark_conf=spark_conf))
    assert [note for note in found.flows[0].notes if note.startswith("Pinned: ")] == said


def test_a_policy_that_drops_what_slow_streams_deliver_is_said(world: World) -> None:
    for declared, said in (("max", 1), ("min", 0)):
        own = f"'{WATERMARK_POLICY}': '{declared}'"
        found = plan(with_header(world, {WATERMARK_POLICY: "max"}, spark_conf=own))
        assert notes(found).count("Watermark: with the policy max") == said


def test_an_age_is_read_as_spark_reads_it() -> None:
    def age(text: str) -> int | None:
        source = Source("raw", "json", "/d", "id INT", {"maxFileAge": text}, Location("p.py", 1))
        return FileOptions.of(source).max_age_ms

    ages = {"7d": 7 * DAY, "10": 10, "2 h": None, "2h": 7_200_000, "3min": 180_000, "5S": 5000}
    assert {text: age(text) for text in ages} == ages


OWN, WITHIN = "transformWithStateInPySparkExec", "dedupeWithinWatermark"


@pytest.mark.parametrize(
    ("operator", "first", "asked", "said", "impact"),
    [
        (OWN, 0, {}, "replayed in the 3 batches that it came in", None),
        (OWN, 1, {}, replay_steps.OWN_STATE, UNKNOWN_IMPACT),
        (OWN, 1, {"accept": (UNKNOWN_IMPACT,)}, replay_steps.OWN_STATE, None),
        (OWN, 1, {"state": "empty"}, None, None),
        ("dedupe", 1, {}, other_batches.REBUILT_OTHERWISE, None),
        (WITHIN, 0, {}, "replayed in the 3 batches that it came in", None),
        (WITHIN, 1, {}, other_batches.REBUILT_OTHERWISE, UNKNOWN_IMPACT),
        (WITHIN, 1, {"accept": (UNKNOWN_IMPACT,)}, other_batches.REBUILT_OTHERWISE, None),
        (WITHIN, 0, {"start": StartAt("timestamp", timestamp_ms=1)}, None, UNKNOWN_IMPACT),
        ("stateStoreSave", 0, {"start": StartAt("earliest")}, other_batches.REFRESHED, None),
    ],
)
def test_a_history_that_comes_in_other_batches_than_it_came_is_said_and_impactd(  # noqa: PLR0917
    world: World, operator: str, first: int, asked: dict[str, Any], said: str | None, impact: str | None
) -> None:
    start = world.processed(3, operators=(operator,))
    for batch in range(first):
        world.home.storage.remove(f"{start.checkpoint}/offsets/{batch}")
    found = plan(world, **asked)
    if said is not None:
        assert said in notes(found)
    else:
        assert other_batches.REBUILT_OTHERWISE in notes(found) or "empty" in asked.values()
    unknown = [item for item in found.refusals if item.covers == ("batches of old",)]
    assert [item.impact for item in unknown] == ([] if impact is None else [impact])


@pytest.mark.parametrize(("time_mode", "asks"), [("NoTime", 0), ("ProcessingTime", 1), ("EventTime", 1)])
def test_a_state_of_ones_own_has_an_impact_by_its_batches_if_it_goes_by_a_time(
    world: World, time_mode: str, asks: int
) -> None:
    """Without a time mode, Spark refuses timers and times to live."""
    start = world.processed(3, operators=(OWN,))
    world.home.storage.remove(f"{start.checkpoint}/offsets/0")
    metadata = {
        "operatorInfo": {"operatorId": 0, "operatorName": OWN},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}],
        "operatorPropertiesJson": json.dumps({"timeMode": time_mode, "outputMode": "Append"}),
    }
    file = f"{start.checkpoint}/state/0/_metadata/v2/0"
    world.home.storage.overwrite(file, b"v2\n" + json.dumps(metadata).encode())
    texts = [item.message for item in plan(world).refusals if item.impact == UNKNOWN_IMPACT]
    assert len(texts) == asks
    assert all("timers and times to live" in text and "A copied state is exact" in text for text in texts)


def test_a_full_refresh_says_that_its_rows_come_in_other_batches(world: World) -> None:
    world.processed(3, operators=("stateStoreSave",))
    assert other_batches.REFRESHED in notes(planned(world, "full_refresh", table="events.events"))
