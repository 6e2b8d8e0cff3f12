"""The recovery that a park names can be planned: for every reason for which a driver parks a flow.

Each condition and message of Spark's, and each error that a driver raises on its own, has a row here, or the
test fails. A plan may be refused for impacts that are accepted by their names, and for nothing else.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.drivers import failures
from streamkeeper.drivers.failures import FailureClass
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows.generations import StartAt
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import PROJECT
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, MISSING_HISTORY, UNKNOWN_IMPACT
from tests.worlds.recover.recoveries import plan_reset, refused
from tests.worlds.small_world import World

Harm = Callable[[World], None]
ALL = (DATA_LOSS, DUPLICATES, MISSING_HISTORY, UNKNOWN_IMPACT)


def at(world: World, name: str) -> Path:
    return Path(world.home.storage.path(f"{world.home.checkpoint(1, 1)}/{name}"))


def nothing(world: World) -> None:
    """Change the declaration or the source alone: the checkpoint stays as it is."""


def gone(name: str) -> Harm:
    def harm(world: World) -> None:
        file = at(world, name)
        shutil.rmtree(file) if file.is_dir() else file.unlink()

    return harm


def written(name: str, content: bytes = b"") -> Harm:
    return lambda world: bool(at(world, name).write_bytes(content)) or None


def doubtful(world: World) -> None:
    """Lose the offsets where a list without a batch leaves them open."""
    at(world, "sources/events_raw/3").write_bytes(b"v1")
    at(world, "offsets/2").unlink()


def ahead(world: World) -> None:
    for number in (3, 4):
        world.commit({"txn": {"appId": world.query_id, "version": number, "lastUpdated": 1}})


def table_anew(world: World) -> None:
    shutil.rmtree(world.version(0).parent)
    world.commit({"metaData": {"id": "u"}})


DAMAGE: dict[str, Harm] = {
    "offsets empty": written("offsets/2"),
    "offsets gone": gone("offsets/2"),
    "offsets before gone": gone("offsets/1"),
    "all offsets gone": gone("offsets"),
    "offsets in doubt": doubtful,
    "list empty": written("sources/events_raw/2"),
    "list gone": gone("sources/events_raw/2"),
    "older list garbage": written("sources/events_raw/0", b"v1\n{"),
    "all lists gone": gone("sources"),
    "commit empty": written("commits/2"),
    "commits gone": gone("commits"),
    "metadata gone": gone("metadata"),
    "metadata empty": written("metadata"),
    "two batches in flight": lambda world: [at(world, f"commits/{n}").unlink() for n in (1, 2)] and None,
    "operator cut off": written("state/0/_metadata/metadata", b"v1\n{"),
    "state gone": gone("state"),
}
SPARKS: dict[str, Harm] = {
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": nothing,
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": gone("state"),
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": nothing,
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": nothing,
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART": nothing,
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE": nothing,
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": nothing,
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": nothing,
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED": nothing,
    "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED": nothing,
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED": gone("state"),
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE": nothing,
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE": nothing,
    "STREAM_STREAM_JOIN_INCONSISTENT_STATE.*": gone("state"),
    "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE": gone("state"),
    "CANNOT_LOAD_STATE_STORE.*": gone("state"),
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": written("offsets/2", b"garbage"),
    "MALFORMED_LOG_FILE": written("offsets/2", b"garbage"),
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": gone("metadata"),
    # Sources that are no files have worlds of their own: tests/core/kinds/test_reset_checkpoint.py.
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": nothing,
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": nothing,
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION": nothing,
    "DELTA_STREAMING_TRAILING_COMMIT_MISSING": nothing,
    "DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT": nothing,
    "DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA": nothing,
    "DELTA_INVALID_SOURCE_OFFSET_FORMAT": nothing,
    "DELTA_INVALID_SOURCE_VERSION": nothing,
    "KAFKA_DATA_LOSS.*": nothing,
    r"Checksum error: \S+/(metadata|(offsets|commits|sources|state)/\S+)": written("sources/events_raw/2"),
    r"Incomplete log file": written("offsets/2"),
    r"[Bb]atch \d+ doesn't exist|batch \d+ does not exist": gone("offsets/1"),
    r"There are \[\d+\] sources in the checkpoint": nothing,
    r"Wrong basePath": nothing,
    r"Multiple streaming queries are concurrently using .*metadata": written("metadata"),
}
STARTS: dict[str, tuple[StartAt | str, int]] = {
    # a start, and how many of the files count as processed there
    "earliest": ("earliest", 0),
    "offsets": (StartAt("offsets", offsets={"events_raw": {"logOffset": 1}}), 2),
    "timestamp": (StartAt("timestamp", timestamp_ms=1_790_000_060_000), 1),
    "latest": ("latest", 4),
}
OWN: dict[str, tuple[Harm, str]] = {
    # the error by its module and function; what makes it, and the start that its text or the park names
    "generation.consistency.check_consistency": (ahead, "earliest"),
    "generation.consistency.check_returned": (nothing, "after-last"),
    "generation.consistency.check_sources": (nothing, "after-last"),
    "generation.consistency.check_state": (nothing, "after-last"),  # older files: tests/core/checkpoint
    "generation.consistency._check_starts": (nothing, "after-last"),
    "generation.consistency._check_kinds": (nothing, "earliest"),
    "generation.batches_of_old.check_accepted": (nothing, "after-last"),
    "generation.connections.commit_planned": (nothing, "after-last"),
    "generation.copy_checkpoint._files_log": (gone("sources/events_raw/1"), "earliest"),
    "generation.fence_earlier._adopted": (nothing, "after-last"),
    "generation.fence_earlier._begun_behind": (nothing, "after-last"),
    "generation.fence_earlier._begun": (nothing, "earliest"),
    "generation.fence_earlier._at_place": (nothing, "after-last"),
    "generation.fence_earlier._position_of": (nothing, "after-last"),
    "generation.source_history.check_histories": (nothing, "after-last"),
    "generation.source_history.check_history": (nothing, "after-last"),
    "generation.start_position._find": (nothing, "after-last"),
    "generation.start_position.require": (nothing, "earliest"),
    "generation.start_position._explicit": (nothing, "earliest"),
    "generation.start_position._require_fit": (nothing, "earliest"),
    "generation.take_over.copy_from": (table_anew, "earliest"),
    "sinks.file_sink.write": (nothing, "after-last"),
    "sinks.update.make": (table_anew, "earliest"),
    "sources.delta._check_commits": (nothing, "earliest"),
    "sources.delta.missing": (nothing, "earliest"),
}


def raised() -> Iterator[str]:
    """Yield each place in a driver that raises an error for which a flow is parked with a recovery."""
    jobs = PROJECT / "spark_jobs" / "streamkeeper_jobs"
    for folder in ("generation", "sinks", "sources", "stream"):
        for file in sorted((jobs / folder).glob("*.py")):
            for function in ast.walk(ast.parse(file.read_text())):
                if not isinstance(function, ast.FunctionDef):
                    continue
                for node in ast.walk(function):
                    called = (
                        node.exc.func
                        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
                        else None
                    )
                    if isinstance(called, ast.Name) and called.id in PARKING:
                        yield f"{folder}.{file.stem}.{function.name}"


PARKING = ("SinkDisagrees", "RecoveryError", "CheckpointError", "damaged")


def keys(table: Any) -> set[str]:
    return set(table[FailureClass.NEEDS_RECOVERY])


def test_every_reason_for_a_park_has_a_row() -> None:
    assert keys(failures._BY_CONDITION) | keys(failures._BY_MESSAGE) == SPARKS.keys()
    assert {*raised()} == OWN.keys()


@pytest.fixture
def ran(world: World) -> World:
    world.processed(3, operators=("dedupe",))
    world.add_files(1)
    world.ran()
    return world


def check(world: World, start: StartAt | str) -> None:
    """Plan a reset, and then with everything accepted that it asks for by name."""
    first = plan_reset(world, start)
    asked = refused(first)
    assert None not in asked, first.refusals
    assert refused(plan_reset(world, start, accept=tuple(word for word in ALL if word in asked))) == []


@pytest.mark.parametrize("harm", [*DAMAGE.values(), *SPARKS.values()], ids=[*DAMAGE, *SPARKS])
def test_the_recovery_that_a_park_names_can_be_planned(harm: Harm, ran: World) -> None:
    harm(ran)
    if Observed(ran.home).knows_position(ran.settings.table_path("events")):
        check(ran, "after-last")
        return
    with pytest.raises(CheckpointError) as refusal:
        plan_reset(ran)
    named = re.search(r"explicit offsets, such as (\{.*?\}) \(", str(refusal.value))
    assert named is not None, refusal.value
    check(ran, StartAt("offsets", offsets=json.loads(named[1])))
    check(ran, StartAt("timestamp", timestamp_ms=1))
    check(ran, "earliest")


@pytest.mark.parametrize(("start", "count"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
def test_whatever_is_damaged_a_plan_asks_for_the_files_that_a_start_loses_or_doubles(
    harm: Harm, start: StartAt | str, count: int, ran: World
) -> None:
    harm(ran)
    try:
        impacts = {*refused(plan_reset(ran, start))}
    except (CheckpointError, RequestError):
        return  # there is no such start
    assert count >= 3 or impacts & {DUPLICATES, UNKNOWN_IMPACT}, "three files were read"
    assert count <= 3 or impacts & {DATA_LOSS, UNKNOWN_IMPACT}, "one waits"


@pytest.mark.parametrize(("harm", "start"), OWN.values(), ids=OWN)
def test_the_start_that_an_error_of_our_own_names_can_be_planned(harm: Harm, start: str, ran: World) -> None:
    harm(ran)
    check(ran, start)
