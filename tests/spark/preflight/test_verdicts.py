"""The look before the restart: what its verdict says of a change is what a driver then does.

Where Spark says nothing, the verdict must: a table is that of an unchanged flow wherever it just goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.trial.try_flow import try_flow

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.manifest import declared, read_manifest
from streamkeeper.storage import open_storage
from streamkeeper.trial.look import look, verdicts
from streamkeeper.trial.verdict import Compatibility, Verdict
from tests.worlds.flow_world import NAME, Flowbed
from tests.worlds.flows.sinks import make_topic
from tests.worlds.preflight.catalogue import (
    BROKERS,
    BY_NAME,
    CATALOGUE,
    DELTA_WORLD,
    DISTINCT,
    KAFKA_WORLD,
    MAPPED_WORLD,
    OUTCOMES,
    PLAIN,
    Change,
    filled,
)
from tests.worlds.preflight.meanwhile import HELPING, Scene
from tests.worlds.sources.source_world import DeltaBed, KafkaBed
from tests.worlds.suites import long_after

MakeScene = Callable[..., tuple[Scene, str]]


@pytest.fixture(scope="module")
def has_run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Callable[[str], Flowbed]:
    """Return a flow of files that has run a declaration. Of several that ask for the same declaration, each
    gets the folders as that one run left them.
    """
    beds: dict[str, Flowbed] = {}

    def restored(declaration: str) -> Flowbed:
        if declaration not in beds:
            made = Flowbed.make(tmp_path_factory.mktemp("has run") / "a bed", spark)
            beds[declaration] = first_run(Scene(made), declaration).bed
            made.root.rename(aside_of(made.root))
        bed = beds[declaration]
        rmtree(bed.root, ignore_errors=True)
        copytree(aside_of(bed.root), bed.root, symlinks=True)
        jvm = spark._jvm
        assert jvm is not None
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return replace(bed, events=[*bed.events])

    return restored


def aside_of(root: Path) -> Path:
    """Return where a flow's folders are kept as its first run left them."""
    return root.with_name("as it was")


def first_run(scene: Scene, declaration: str) -> Scene:
    """Declare a flow, let events come, and run it."""
    for number, name in ((30, "more"), (31, "elsewhere")):
        scene.bed.arrive(number, folder=name)
    (scene.bed.root / "pipelines" / "helping.py").write_text(HELPING.format(least=0))
    scene.bed.declare(declaration)
    scene.arrive(1, 2, 3, 4)
    scene.arrive(20, 21)
    assert scene.bed.run() is Outcome.STOPPED
    return scene


@pytest.fixture
def make_scene(
    tmp_path: Path,
    spark: SparkSession,
    has_run: Callable[[str], Flowbed],
    request: pytest.FixtureRequest,
) -> MakeScene:
    """Make a flow that has run a change's old declaration, and its new one's text."""

    def make(change: Change, folder: str = "a bed") -> tuple[Scene, str]:
        root = tmp_path / folder
        old, new = change.old, change.new
        if change.world == KAFKA_WORLD:
            kafka = KafkaBed.make(root, spark, request.getfixturevalue("brokers"))
            old, new = (filled(text, kafka.topic, kafka.brokers) for text in (old, new))
            return first_run(Scene(kafka.bed, kafka), old), new
        if change.world in (DELTA_WORLD, MAPPED_WORLD):
            delta = DeltaBed.make(root, spark)
            if change.world == MAPPED_WORLD:
                delta.map_columns()
            return first_run(Scene(delta.bed, delta), old), new
        if BROKERS in old + new:
            brokers = request.getfixturevalue("brokers")
            topics = [make_topic(brokers)["subscribe"] for _ in range(2)]
            old, new = (filled(text, topics[0], brokers, topics[1]) for text in (old, new))
            return first_run(Scene(Flowbed.make(root, spark)), old), new
        return Scene(has_run(old)), new

    return make


@pytest.fixture(scope="module")
def of_unchanged() -> dict[tuple[str, tuple[int, ...]], list[str]]:
    """Rows of flows of files that went on as they were declared, by declaration and events."""
    return {}


@contextmanager
def settings_of_its_own(spark: SparkSession) -> Iterator[None]:
    """Take back what flows set inside the block: elsewhere a driver's session ends with it."""
    before = dict(spark.conf.getAll)
    yield
    now = dict(spark.conf.getAll)
    for name in filter(spark.conf.isModifiable, now):
        if name not in before:
            spark.conf.unset(name)
        elif now[name] != before[name]:
            spark.conf.set(name, before[name])


def verdict_on(bed: Flowbed, scratch: Path) -> Verdict:
    """Return the verdict as ``streamkeeper preflight`` comes to it, but in this process."""
    found = look(bed.settings, declared(bed.settings).find(NAME))
    if found is not None:
        return found
    scratch.mkdir()
    return try_flow(bed.spark, bed.settings, bed.home, bed.flow(), open_storage(str(scratch)))


def run_on(bed: Flowbed) -> Outcome:
    """Run drivers until one does not ask for the next at once."""
    for _ in range(4):
        outcome = bed.run()
        if outcome is not Outcome.RESTART:
            break
    return outcome


def state_of(bed: Flowbed) -> list[tuple[str, int]]:
    """Return all files of the state folder, with their times."""
    files = (bed.root / "state").rglob("*")
    return sorted((str(file), file.stat().st_mtime_ns) for file in files if file.is_file())


def rows_of(bed: Flowbed) -> list[str]:
    return sorted(map(repr, bed.rows()))


@pytest.mark.parametrize(
    "change", long_after(3, CATALOGUE), ids=lambda change: f"{change.part}: {change.name}".replace("`", "")
)
def test_the_verdict_is_what_the_driver_then_does(
    change: Change,
    make_scene: MakeScene,
    of_unchanged: dict[tuple[str, tuple[int, ...]], list[str]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    with settings_of_its_own(spark):
        scene, new = make_scene(change)
        bed = scene.bed
        if change.meanwhile is not None:
            change.meanwhile(scene)
        before = state_of(bed)
        bed.declare(new)
        found = verdict_on(bed, tmp_path / "scratch")
        assert state_of(bed) == before, "nothing is changed"
        scene.arrive(*change.come)
        happened = run_on(bed)
    assert (found.compatibility, happened) == (change.compatibility, OUTCOMES[change.driver]), found
    assert change.why in "\n".join(found.reasons), found
    if change.shows is not None:
        assert change.shows(bed.rows()), bed.rows()
    if change.makes_the_same:
        shown, case = rows_of(bed), (change.old, tuple(change.come))
        if scene.source is not None or case not in of_unchanged:
            with settings_of_its_own(spark):
                unchanged, _ = make_scene(change, "unchanged")
                unchanged.arrive(*change.come)
                assert unchanged.bed.run() is Outcome.STOPPED
            of_unchanged[case] = rows_of(unchanged.bed)
        assert shown == of_unchanged[case]


def test_a_flow_without_a_batch_has_no_state_that_must_fit_and_a_query_that_must_run(
    make_bed: Callable[..., Flowbed], tmp_path: Path
) -> None:
    bed = make_bed(PLAIN)
    assert bed.run() is Outcome.STOPPED
    bed.declare(DISTINCT)
    assert verdict_on(bed, tmp_path / "one").compatibility is Compatibility.COMPATIBLE
    bed.declare(PLAIN.replace("return events\n", 'return events.where("nope > 1")\n'))
    assert verdict_on(bed, tmp_path / "other").compatibility is Compatibility.INCOMPATIBLE
    assert bed.run() is Outcome.PARKED


@pytest.mark.parametrize("change", BY_NAME, ids=lambda change: change.name)
def test_a_name_alone_tells_of_a_flow_that_is_renamed_or_removed(
    change: Change, make_scene: MakeScene, tmp_path: Path
) -> None:
    scene, _ = make_scene(change)
    bed = scene.bed
    read_manifest(bed.settings)
    branch = tmp_path / "branch"
    branch.mkdir()
    (branch / "events.py").write_text(change.new)
    new = replace(bed.settings, pipelines=branch)
    found = verdicts(bed.settings, new, declared(new), [])[-1]
    assert (found.compatibility, change.why in "\n".join(found.reasons)) == (change.compatibility, True), (
        found
    )
    bed.declare(change.new)
    flows = [flow.full_name for flow in read_manifest(bed.settings).flows()]
    assert (NAME in flows) == (change.compatibility is Compatibility.INCOMPATIBLE), (
        "renamed, it keeps its last declaration"
    )
    assert "events.cleaned" not in flows
    assert bed.run() is OUTCOMES[change.driver]
    assert bed.table.is_dir() and bed.home.generations()


@pytest.mark.long
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
    assert (said["flow"], said["compatibility"], said["recovery"]) == (
        NAME,
        "incompatible",
        "reset_checkpoint",
    )
    assert said["impact"][0].startswith("events_raw: data loss: nothing"), said
    assert bed.run() is Outcome.STOPPED, "what is deployed is as it was"
