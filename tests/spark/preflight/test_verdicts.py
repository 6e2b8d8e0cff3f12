"""The look before the restart: what its verdict says of a changed declaration is what a driver then does, or
what the plans' difference shows where Spark says nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from streamkeeper_jobs.preflight.try_flow import try_flow

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.manifest import declared
from streamkeeper.preflight.look import look
from streamkeeper.preflight.verdict import Fit, Verdict
from streamkeeper.storage import open_storage
from tests.worlds.flow_world import DEDUPE, NAME, SCHEMA, Flowbed, pipeline
from tests.worlds.state_stores import PROVIDER, ROCKS, with_conf
from tests.worlds.suites import long_after

MARKED = '.withWatermark("event_time", "{delay}")'
WINDOWS = MARKED + (
    '.groupBy(F.window("event_time", "{length}").alias("w"){by}).agg({many}.alias("many"))'
    '.select(F.col("w.start").alias("n"), "many")'
)
MORE = f'dp.create_source("more_raw", format="json", path="{{data}}/more", schema="{SCHEMA}")'
UNION = pipeline(
    view="",
    more=MORE,
    sources=("distinct_events", "more_raw"),
    parameters="events, more",
    flow="events.unionByName(more)",
)
JOIN = """
    left = events.withWatermark("event_time", "10 seconds").select("n", F.col("event_time").alias("at"))
    right = again.withWatermark("event_time", "10 seconds")
    right = right.select(F.col("n").alias("other"), F.col("event_time").alias("until"))
    near = F.expr("other = n + 3 AND until BETWEEN at AND at + INTERVAL {bound} SECONDS")
    return left.join(right, near, "{how}").select("n", "other")
"""


def windows(
    delay: str = "10 seconds", length: str = "10 seconds", by: str = "", many: str = 'F.count("*")'
) -> str:
    """Declare counts of windows."""
    return pipeline(view=WINDOWS.format(delay=delay, length=length, by=by, many=many))


def joined(how: str = "inner", bound: int = 5) -> str:
    """Declare a stream that is joined with itself."""
    text = pipeline(
        view="",
        more=f'dp.create_source("again_raw", format="json", path="{{data}}/events", schema="{SCHEMA}")',
        sources=("distinct_events", "again_raw"),
        parameters="events, again",
    )
    return text.rpartition("    return ")[0] + JOIN.format(how=how, bound=bound)[1:]


@dataclass(frozen=True)
class Change:
    """A change of a declaration, its verdict, and words of the reason."""

    name: str
    old: str
    new: str
    fit: Fit
    why: str = ""


PLAIN, DISTINCT = pipeline(view=""), pipeline()
CHANGES = (
    Change("dropDuplicates removed", DISTINCT, PLAIN, Fit.BREAKS, "was removed or replaced"),
    Change(
        "filter changed",
        pipeline(view='.where("n > 3")'),
        pipeline(view='.where("n > 5")'),
        Fit.NOTED,
        "+ Filter (n > 5)",
    ),
    Change("rate limit", DISTINCT, pipeline(files=7), Fit.GOES_ON, "limits"),
    Change("dropDuplicates added", PLAIN, DISTINCT, Fit.BREAKS),
    Change(
        "columns of dropDuplicates",
        DISTINCT,
        pipeline(view='.dropDuplicates(["event_id", "n"])'),
        Fit.BREAKS,
        "key columns",
    ),
    Change(
        "filter added", DISTINCT, pipeline(view=f'.where("n > 0"){DEDUPE}'), Fit.NOTED, "+ Filter (n > 0)"
    ),
    Change("filter removed", pipeline(view='.where("n > 0")'), PLAIN, Fit.NOTED, "- Filter (n > 0)"),
    Change("trigger", DISTINCT, DISTINCT.replace("200 milliseconds", "300 milliseconds"), Fit.GOES_ON),
    Change(
        "comment and order of lines", DISTINCT, DISTINCT + "\n# nothing new\n", Fit.GOES_ON, "that ran last"
    ),
    Change("path", DISTINCT, DISTINCT.replace("/events", "/elsewhere"), Fit.UNDEFINED, "reads json"),
    Change(
        "source renamed", DISTINCT, DISTINCT.replace("events_raw", "renamed_raw"), Fit.BREAKS, "renamed_raw"
    ),
    Change("source added", PLAIN, UNION, Fit.NOTED, "more_raw is new"),
    Change("source removed", UNION, PLAIN, Fit.NOTED, "more_raw is gone"),
    Change(
        "column of the output computed otherwise",
        PLAIN,
        pipeline(view='.withColumn("n", F.col("n") + 1)'),
        Fit.NOTED,
        "+ Project",
    ),
    Change("column added", PLAIN, pipeline(view='.withColumn("more", F.col("n"))'), Fit.BREAKS, "lacks"),
    Change("column removed", PLAIN, pipeline(view='.drop("user_id")'), Fit.NOTED, "Project"),
    Change(
        "column of another type",
        PLAIN,
        pipeline(view='.withColumn("n", F.array("n"))'),
        Fit.BREAKS,
        "cannot be stored",
    ),
    Change("wider number", PLAIN, pipeline(view='.withColumn("n", F.col("n").cast("long"))'), Fit.NOTED),
    Change(
        "text for a number", PLAIN, pipeline(view='.withColumn("n", F.col("n").cast("string"))'), Fit.NOTED
    ),
    Change("window's length", windows(), windows(length="20 seconds"), Fit.NOTED, "20000000"),
    Change("watermark's delay", windows(), windows(delay="1 minute"), Fit.NOTED, "EventTimeWatermark"),
    Change("grouping key added", windows(), windows(by=', "user_id"'), Fit.BREAKS, "key columns"),
    Change("type of aggregate", windows(), windows(many='F.max("event_id")'), Fit.BREAKS),
    Change(
        "aggregate of the same type",
        windows(many='F.max("n")'),
        windows(many='F.min("n")'),
        Fit.NOTED,
        "min(n)",
    ),
    Change("aggregation removed", windows(), PLAIN, Fit.BREAKS),
    Change("join's type", joined(), joined(how="left_outer"), Fit.NOTED, "LeftOuter"),
    Change("join's time bound", joined(), joined(bound=50), Fit.NOTED, "INTERVAL"),
    Change(
        "within the watermark",
        DISTINCT,
        pipeline(view=MARKED.format(delay="1 hour") + '.dropDuplicatesWithinWatermark(["event_id"])'),
        Fit.BREAKS,
    ),
    Change("state store", DISTINCT, with_conf(DISTINCT, **{PROVIDER: ROCKS}), Fit.NOTED, "until a reset"),
)


def verdict_on(bed: Flowbed, scratch: Path) -> Verdict:
    """Return the verdict as ``streamkeeper preflight`` comes to it, but in this process."""
    found = look(bed.settings, declared(bed.settings).find(NAME))
    if found is not None:
        return found
    scratch.mkdir()
    return try_flow(bed.spark, bed.settings, bed.home, bed.flow(), open_storage(str(scratch)), folder=NAME)


@pytest.mark.parametrize("change", long_after(3, CHANGES), ids=lambda change: change.name)
def test_the_verdict_is_what_the_driver_then_does(
    change: Change, make_bed: Callable[..., Flowbed], tmp_path: Path
) -> None:
    bed = make_bed(change.old)
    for folder in ("more", "elsewhere"):
        bed.arrive(folder=folder)
    bed.arrive(1, 2, 3, 4)
    bed.arrive(20, 21)
    assert bed.run() is Outcome.STOPPED
    before = sorted(str(file) for file in (bed.root / "state").rglob("*"))
    bed.declare(change.new)
    found = verdict_on(bed, tmp_path / "scratch")
    assert sorted(str(file) for file in (bed.root / "state").rglob("*")) == before, "nothing is changed"
    assert (found.fit, change.why in "\n".join(found.why)) == (change.fit, True), found
    bed.arrive(40, 41)
    happened = bed.run()
    if change.fit is Fit.BREAKS:
        assert happened is Outcome.PARKED, found
    elif change.fit is not Fit.UNDEFINED:
        assert happened is Outcome.STOPPED, found


def test_a_command_tells_it_of_a_folder_that_is_not_deployed_and_by_its_exit_code(
    make_bed: Callable[..., Flowbed], tmp_path: Path
) -> None:
    bed = make_bed(DISTINCT)
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    branch = tmp_path / "branch"
    branch.mkdir()
    (branch / "events.py").write_text(PLAIN)
    settings = replace(bed.settings, jars=Path(bed.settings.jars))
    command = [sys.executable, "-m", "streamkeeper", "preflight", "--pipelines", str(branch), "--json"]
    done = subprocess.run(
        command,
        env=submit.driver(settings, [bed.flow()]).environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    [said] = json.loads(done.stdout)
    assert (said["flow"], said["fit"], said["recovery"]) == (NAME, "breaks", "reset_checkpoint")
    assert said["price"][0].startswith("events_raw: lost nothing"), said
    assert bed.run() is Outcome.STOPPED, "what is deployed is as it was"
