"""Names of files are names: each file is read once, whatever its name and those of its batch, and what Spark
passes over is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.history import events
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch import behind
from tests.worlds.flow_world import DEDUPE, NAME, SCHEMA, Flowbed, event, pipeline
from tests.worlds.recover.old_jobs import run_old_job
from tests.worlds.recover.recoveries import impact
from tests.worlds.sources import file_names
from tests.worlds.sources.file_names import HIDDEN, NAMES, PATTERNS, PLAIN
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

Make = Callable[..., Flowbed]
SHORT = (
    *PATTERNS,
    *PLAIN,
    "a:b.json",
    "10:00:00.json",
    "a;b.json",
    "a%20b.json",
    "a#b.json",
    "\u00e4 \n.json",
)

KEYED = """
dp.create_auto_cdc_flow(name="clean_events", target="events", source="distinct_events", keys=["event_id"],
    sequence_by="n", trigger="200 milliseconds")
"""


def put(bed: Flowbed, names: Sequence[str], folder: str = "events") -> None:
    """Write a file of one event under each name."""
    for name in names:
        made = event(len(bed.events))
        bed.events.append(made)
        file_names.put(bed.root / "data" / folder, name, json.dumps(made) + "\n")


def measured(bed: Flowbed) -> Lag:
    found = behind.measure(bed.home, bed.flow(), lambda flow: flow)
    assert found is not None
    behind.keep(bed.home, found, 0.0)
    return found.sources["events_raw"]


@pytest.mark.parametrize("names", [SHORT, pytest.param(NAMES, marks=pytest.mark.long)], ids=["some", "all"])
def test_each_file_of_a_batch_is_read_once_and_counts_as_read(names: Sequence[str], make_bed: Make) -> None:
    bed = make_bed(pipeline(view="", files=1000))
    put(bed, names)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    assert measured(bed) == Lag(0, 0, 0, None, 0.0)
    costs = impact(Recoverer.of(bed).plan("reset_checkpoint", "r1", flow=NAME))
    assert costs.lost.nothing and costs.repeated.nothing and "0 unread" in " ".join(costs.notes), costs


BESIDE = {
    "in one batch": (["a.json", "day=1/b.json", "c.json", "day=2/a[1].json", "day=2/d.json"],),
    "after batches of folders": (["day=1/a.json"], ["b.json", "c[1].json"], ["d.json", "day=3/e.json"]),
    "before batches of folders": (["a.json"], ["day=1/b.json", "c.json"]),
}
"""Names of files of batches, of which some are in folders of a column, and some in none."""


@pytest.mark.parametrize("declares", ["", ", day INT"], ids=["not declared", "declared"])
@pytest.mark.parametrize("batches", long_after(1, map(pytest.param, BESIDE.values())), ids=BESIDE.keys())
def test_files_beside_folders_of_a_column_are_read_with_null_in_it(
    batches: tuple[list[str], ...], declares: str, make_bed: Make
) -> None:
    columns = f"event_id, user_id, n, event_time{declares and ', day'}"
    bed = make_bed(
        pipeline(view=f'.selectExpr(*"{columns}".split(", "))', schema=SCHEMA + declares, files=1000)
    )
    days = dict[str, int | None]()
    for names in batches:
        for name in names:
            (bed.root / "data" / "events" / name).parent.mkdir(exist_ok=True)
            days[f"e{len(bed.events)}"] = int(name[4]) if name.startswith("day=") else None
            put(bed, [name])
        assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    if declares:
        assert {row["event_id"]: row["day"] for row in bed.rows()} == days


@pytest.mark.long
def test_folders_that_are_no_columns_beside_such_that_are_park_the_flow_until_it_says_which(
    make_bed: Make,
) -> None:
    bed = make_bed(pipeline(view="", files=1000))
    for name in ("day=1/a.json", "x/b.json", "c.json"):
        (bed.root / "data" / "events" / name).parent.mkdir(exist_ok=True)
        put(bed, [name])
    assert bed.run() is Outcome.PARKED
    text = bed.file.read_text()
    bed.declare(text.replace("options={", 'options={"recursiveFileLookup": "true", '))
    assert bed.file.read_text() != text
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "values"),
    [
        ("reset_checkpoint", {"flow": NAME}),
        ("rewind", {"flow": NAME, "batch": "1/0", "target": "restored"}),
        ("full_refresh", {"table": "events.events"}),
        ("rebuild_without_downtime", {"table": "events.events"}),
    ],
)
def test_each_name_is_read_once_through_a_recovery(
    recovery: str, values: dict[str, str], make_bed: Make
) -> None:
    """The state is rebuilt of them: events that come again are known."""
    bed = make_bed(pipeline(view=DEDUPE, files=1000))
    bed.arrive(10_000)
    put(bed, NAMES[::2])
    assert bed.run() is Outcome.STOPPED
    put(bed, NAMES[1::2])
    assert bed.run() is Outcome.STOPPED
    at_work = Recoverer.of(bed)
    for step in at_work.plan(recovery, "r1", **values).steps:
        if step != "verify_progress":
            at_work.step("r1", step)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    once = [*bed.events]
    bed.arrive(*range(20))
    assert bed.run() is Outcome.STOPPED
    bed.holds(once)


@pytest.mark.long
def test_each_name_is_read_once_by_a_backfill(make_bed: Make) -> None:
    """From the flow's own history, and from a folder of files with such names."""
    text = pipeline(view="", files=1000)
    bed = make_bed(text[: text.index("@dp.append_flow")] + KEYED)
    put(bed, NAMES[::2])
    assert bed.run() is Outcome.STOPPED
    at_work = Recoverer.of(bed)
    bed.spark.sql(f"DELETE FROM delta.`{bed.table}` WHERE n % 3 = 0")
    at_work.run("backfill", "r1", flow=NAME, chunk=7)
    bed.holds(bed.events)
    (bed.root / "data" / "earlier").mkdir()
    put(bed, NAMES, folder="earlier")
    at_work.run("backfill", "r2", flow=NAME, read="files", path=str(bed.root / "data" / "earlier"), chunk=20)
    bed.holds(bed.events)


@pytest.mark.long
def test_each_name_is_read_once_by_a_flow_that_was_another_job(make_bed: Make) -> None:
    """The job reads file by file, as Spark alone gets along with such names, but for colons."""
    bed = make_bed(pipeline(view="", files=1000))
    readable = [name for name in NAMES if ":" not in name]
    put(bed, readable[::2])
    folder = run_old_job(bed, lambda events: events)
    bed.holds(bed.events)
    put(bed, readable[1::2])
    put(bed, [name for name in NAMES if ":" in name])
    at_work = Recoverer.of(bed)
    at_work.run("adopt", "r1", flow=NAME, checkpoint=str(folder), old_job_is_stopped=True)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)


def test_what_spark_passes_over_by_rule_does_not_wait_and_other_files_are_told(make_bed: Make) -> None:
    bed = make_bed(pipeline(view="", files=1000))
    put(bed, ["a.json"])
    folder = bed.root / "data" / "events"
    for name in HIDDEN:
        file_names.put(folder, name, "{}\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).write_text("{}\n")
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    lag = measured(bed)
    assert (lag.files, lag.skipped) == (0, 1) and "\\udcff.json: rename" in lag.skipped_reason, lag

    with (folder / "a.json").open("a") as file:
        file.write("{}\n")
    os.utime(folder / "a.json", (1_790_000_000, 1_790_000_000))
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    for _ in range(2):
        lag = measured(bed)
        assert (
            lag.skipped == 2
            and f"1 file changed after being read, such as {folder}/a.json" in lag.skipped_reason
        )
    told = [one.text for one in events.read(bed.home.storage, "events") if one.kind == "files-skipped"]
    assert len(told) == 2 and told[-1] == f"events_raw: {lag.skipped_reason}", told
