"""Telling failures apart: every row of the table, as Spark 4.2.0 and Delta 4.4.0 word them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamkeeper_jobs.driver.driver import _fail

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.drivers.causes import Cause
from streamkeeper.drivers.failures import FailureClass, brief, classify, describe, own
from streamkeeper.errors import NewerCheckpoint, SinkDisagrees, SourceError, TableUnfit
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.flows import holds, leases
from streamkeeper.flows.leases import Heartbeat
from tests.worlds.small_world import World

WRAPPER = Cause(
    "org.apache.spark.sql.streaming.StreamingQueryException",
    "STREAM_FAILED",
    "XXKST",
    "[STREAM_FAILED] Query terminated",
)
RECOVER, CORRECT, RESTART, RETRY = (
    FailureClass.NEEDS_RECOVERY,
    FailureClass.NEEDS_CORRECTION,
    FailureClass.RESTART,
    FailureClass.TRANSIENT,
)

CONDITIONS = {
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": (RECOVER, "removed or replaced"),
    "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED": (RECOVER, "missing or damaged"),
    "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE": (RECOVER, "snapshot"),
    "CANNOT_LOAD_STATE_STORE": (RECOVER, "missing or damaged"),
    "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR": (RETRY, "still had the state store"),
    "CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY": (RETRY, "out of memory"),
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": (CORRECT, "were changed"),
    "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION": (CORRECT, "newer Spark"),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": (CORRECT, "does not follow its table's"),
    "DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA": (RECOVER, "within a batch"),
    "DELTA_STREAMING_SCHEMA_LOG_PARSE_SCHEMA_FAILED": (CORRECT, "schemas, in the checkpoint, is damaged"),
    "DELTA_STREAMING_TRAILING_COMMIT_MISSING": (RECOVER, "is gone from the Delta source"),
    "DELTA_MISSING_CHANGE_DATA": (CORRECT, "no change feed yet"),
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED": (RECOVER, "missing or damaged"),
    "STREAM_STREAM_JOIN_INCONSISTENT_STATE.NULL_VALUE": (RECOVER, "missing or damaged"),
    "ILLEGAL_STATE_STORE_VALUE.NULL_VALUE": (CORRECT, "the code of a state"),
    "DELTA_STREAMING_METADATA_EVOLUTION": (RESTART, "schema"),
    "FAILED_READ_FILE.FILE_NOT_EXIST": (RETRY, "removed before it was read"),
}

MESSAGES = {
    "Incomplete log file /x/offsets/3": (RECOVER, "cut off"),
    "batch 7 doesn't exist": (RECOVER, "a batch is gone"),
    "There are [2] sources in the checkpoint offsets and now there are [1] sources requested by the query.": (
        RECOVER,
        "number of sources",
    ),
    "Wrong basePath /a for the root path: file:/b": (RECOVER, "path of a files source"),
    "Multiple streaming queries are concurrently using file:/c/metadata": (RECOVER, "checksum do not match"),
    "Checksum error: file:/state/x/checkpoints/1/offsets/5 at 0 exp: 1 got: 2": (RECOVER, ".crc"),
    "Checksum error: file:/data/events/f1.json at 0 exp: 1 got: 2": (RETRY, "another try"),
    "/x/offsets/3 is of version v3, and Spark 4.2 reads v1 and v2: a newer Spark wrote it.": (
        CORRECT,
        "newer Spark",
    ),
    "Connection reset by peer": (RETRY, "another try"),
    "": (RETRY, "another try"),
}


FILE_GONE = "File file:/state/0/1/3.delta does not exist"


@pytest.mark.parametrize("condition", ["CANNOT_LOAD_STATE_STORE", "DELTA_SOURCE_TABLE_IGNORE_CHANGES"])
@pytest.mark.parametrize("deepest", [None, "FAILED_READ_FILE.FILE_NOT_EXIST"], ids=["Java's", "Spark's"])
def test_a_condition_tells_the_file_that_the_deepest_cause_names(condition: str, deepest: str | None) -> None:
    cause = Cause("org.apache.spark.SparkException", condition, "58030", f"[{condition}] something")
    below = Cause("java.io.FileNotFoundException", deepest, None, FILE_GONE)
    failure = classify([WRAPPER, cause, Cause("java.lang.RuntimeException", None, None, "x"), below])
    assert failure.condition == condition
    assert FILE_GONE in brief(failure)
    assert FILE_GONE in describe("sales.orders", failure)


@pytest.mark.parametrize(("condition", "expected"), CONDITIONS.items(), ids=CONDITIONS.keys())
def test_each_condition_is_classed_wherever_it_stands_in_the_chain(
    condition: str, expected: tuple[FailureClass, str]
) -> None:
    cause = Cause("org.apache.spark.SparkException", condition, "42K03", f"[{condition}] something")
    for chain in (
        [cause],
        [WRAPPER, cause],
        [WRAPPER, Cause("java.util.concurrent.ExecutionException", None, None, "x"), cause],
    ):
        failure = classify(chain)
        assert (failure.classed, failure.condition, failure.sql_state) == (expected[0], condition, "42K03")
        assert expected[1] in failure.meaning
        assert failure.recovery == ("reset_checkpoint" if expected[0] is RECOVER else None)


@pytest.mark.parametrize(("message", "expected"), MESSAGES.items(), ids=MESSAGES.keys())
def test_failures_without_a_condition_are_told_by_their_message(
    message: str, expected: tuple[FailureClass, str]
) -> None:
    failure = classify([WRAPPER, Cause("java.lang.AssertionError", None, None, message)])
    assert failure.classed is expected[0]
    assert expected[1] in failure.meaning


def test_a_condition_weighs_more_than_a_message_nearer_to_the_top() -> None:
    told = Cause("java.lang.RuntimeException", None, None, "Wrong basePath")
    cause = Cause("x", "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR", None, "m")
    assert classify([told, cause]).classed is RETRY


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        (
            [
                Cause(
                    "org.apache.spark.sql.AnalysisException",
                    "UNRESOLVED_COLUMN.WITH_SUGGESTION",
                    "42703",
                    "m",
                )
            ],
            CORRECT,
        ),
        (
            [Cause("pyspark.errors.exceptions.captured.ParseException", "PARSE_SYNTAX_ERROR", "42601", "m")],
            CORRECT,
        ),
        ([Cause("DeclarationError", None, None, "events.py, line 3: …")], CORRECT),
        ([Cause("java.net.SocketTimeoutException", None, None, "m")], RETRY),
        ([], RETRY),
    ],
    ids=["analysis", "parse", "declaration", "network", "nothing known"],
)
def test_what_no_row_knows_is_retried_unless_the_declaration_is_at_fault(
    causes: list[Cause], expected: FailureClass
) -> None:
    assert classify(causes).classed is expected


def test_a_failure_is_described_in_the_words_of_the_flow_with_its_sqlstate_and_what_fits() -> None:
    cause = Cause(
        "x",
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "42K03",
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] first line\nsecond line"
        "\n\tat x.y(Z.java:1)",
    )
    said = describe("events.clean_events", classify([WRAPPER, cause]))
    for part in (
        "events.clean_events stopped",
        "dropDuplicates",
        "SQLSTATE 42K03",
        "first line\nsecond line\n",
        "parked",
        "reset_checkpoint",
    ):
        assert part in said
    assert "Z.java" not in said
    assert said.count(cause.condition or "") == 1, "the condition is said once"


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "Let the source declare the option skipChangeCommits"),
        ("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG", "Declare track_schema=True"),
        ("ILLEGAL_STATE_STORE_VALUE.NULL_VALUE", "Correct the code of the state"),
        ("DELTA_STREAMING_METADATA_EVOLUTION", "at once"),
        (None, "tried again"),
    ],
    ids=["correction", "schemas", "state", "restart", "retry"],
)
def test_a_description_says_what_happens_next(condition: str | None, part: str) -> None:
    assert part in describe("p.f", classify([Cause("E", condition, None, "m")]))


WROTE = Cause(
    "org.apache.spark.SparkException", "TASK_WRITE_FAILED", "58030", "[TASK_WRITE_FAILED] Task failed"
)
READING = Cause(
    "org.apache.spark.SparkException",
    "FAILED_READ_FILE.NO_HINT",
    "KD001",
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/f%20.json.  SQLSTATE: KD001",
)
TRACEBACK = """[PYTHON_EXCEPTION] An exception was thrown from the worker: Traceback (most recent call last):
  File "/opt/pipelines/events.py", line 9, in whole
    return fetch(n)
  File "/usr/lib/python3.11/urllib/request.py", line 1351, in do_open
    raise {error}
{error}
 SQLSTATE: 38000"""


def worker(error: str) -> Cause:
    return Cause("x.PythonException", "PYTHON_EXCEPTION", "38000", TRACEBACK.format(error=error))


def java(name: str, message: str = "m") -> Cause:
    return Cause(name, None, None, message)


CHAINS = {
    "value": (
        [
            WRAPPER,
            WROTE,
            Cause("x", "CAST_INVALID_INPUT", "22018", "[CAST_INVALID_INPUT] The value 'a' is bad."),
        ],
        (FailureClass.BAD_INPUT, "CAST_INVALID_INPUT", "The value 'a' is bad.", "try_cast"),
    ),
    "constraint": (
        [WRAPPER, WROTE, Cause("x", "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", "23001", "CHECK n > 0 violated")],
        (FailureClass.BAD_INPUT, "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", "n > 0", "quarantine"),
    ),
    "value in a file": (
        [
            WRAPPER,
            READING,
            Cause("x", "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION", "22023", "bad record"),
        ],
        (FailureClass.BAD_INPUT, "MALFORMED_RECORD_IN_PARSING", "bad record", "s3a://b/f%20.json"),
    ),
    "broken file": (
        [WRAPPER, READING, java("java.util.zip.ZipException", "invalid block type")],
        (FailureClass.BAD_INPUT, "FAILED_READ_FILE", "s3a://b/f%20.json", "invalid block type"),
    ),
    "file that is away": (
        [WRAPPER, READING, java("java.io.FileNotFoundException", "f.json does not exist")],
        (RETRY, "FAILED_READ_FILE", "s3a://b/f%20.json", "does not exist"),
    ),
    "network below a file": (
        [WRAPPER, READING, java("java.net.SocketTimeoutException", "Read timed out")],
        (RETRY, "FAILED_READ_FILE", "s3a://b/f%20.json", "Read timed out"),
    ),
    "value in a function": (
        [WRAPPER, WROTE, worker("ValueError: no number: 'a'")],
        (
            FailureClass.BAD_INPUT,
            "PYTHON_EXCEPTION",
            "ValueError: no number: 'a'",
            "events.py, line 9, in whole",
        ),
    ),
    "network in a function": (
        [WRAPPER, WROTE, worker("urllib.error.URLError: <urlopen error timed out>")],
        (RETRY, "PYTHON_EXCEPTION", "urlopen error timed out", "events.py, line 9, in whole"),
    ),
    "lost executor": (
        [WRAPPER, WROTE, java("org.apache.spark.SparkException", "ExecutorLostFailure (executor 1 exited)")],
        (RETRY, "SparkException", "ExecutorLostFailure", "tried again"),
    ),
    "memory": (
        [WRAPPER, WROTE, java("java.lang.OutOfMemoryError", "Java heap space")],
        (
            RETRY,
            "java.lang.OutOfMemoryError",
            "Java ran out of memory",
            'driver=dp.driver(driver_memory="4g")',
        ),
    ),
    "echo of an end": (
        [java("java.lang.NullPointerException", 'of "org.apache.spark.SparkContext.dagScheduler()" is null')],
        (RETRY, "java.lang.NullPointerException", "Spark's process was ending", "Java ran out of memory"),
    ),
    "memory, told by Py4J": (
        [
            java(
                "Py4JException", "An exception was raised by the Python Proxy: java.lang.OutOfMemoryError: GC"
            )
        ],
        (RETRY, "Py4JException", "Java ran out of memory", 'driver=dp.driver(driver_memory="4g")'),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_deepest_cause_names_the_failure_and_only_a_bad_input_is_not_retried_for_ever(name: str) -> None:
    chain, (classed, code, *parts) = CHAINS[name]
    failure = classify(chain)
    said = describe("p.f", failure)
    assert (failure.classed, failure.lasts) == (classed, False), failure
    for part in (code, *parts):
        assert part in said
    if classed is FailureClass.BAD_INPUT:
        tried = replace(failure, batch=7, tries=3, limit=3)
        assert tried.lasts and "try 3 of 3 that failed so at batch 7, so the flow is parked" in describe(
            "p.f", tried
        )


def test_all_that_a_park_asks_to_correct_is_in_its_text() -> None:
    message = (
        "Column x was dropped. Set one of:\n  .option('allowSourceColumnDrop', '3')\n  .option('more', 'x')"
    )
    failed = Cause("x", "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION", "KD002", message)
    plan = "[UNRESOLVED_COLUMN] `u` cannot be resolved. SQLSTATE: 42703; line 1;\n'Project ['u]\n+- R"
    analysis = Cause("x.AnalysisException", "UNRESOLVED_COLUMN", "42703", plan)
    assert message in describe("p.f", classify([WRAPPER, failed]))
    said = describe("p.f", classify([analysis]))
    assert "`u` cannot be resolved" in said
    assert "Project" not in said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (52, 'Java ran out of memory: declare more, such as driver=dp.driver(driver_memory="4g")'),
        (3, "Java ran out of memory"),
        (137, "killed from outside; if by the kernel or the container for memory"),
        (-9, "ended by SIGKILL (killed from outside"),
        (-15, "ended by SIGTERM"),
        (1, "exit code 1"),
    ],
)
def test_the_end_of_a_process_without_memory_says_memory(code: int, said: str) -> None:
    assert said in described(code)
    assert ("memory" in described(code)) == (code in (52, 3, 137, -9))


def test_a_checkpoint_of_a_newer_spark_parks_its_flow_without_a_recovery(world: World) -> None:
    start = world.processed(1)
    checkpoint = Checkpoint(world.home.storage, start.checkpoint)
    Path(checkpoint.path("offsets/0")).write_text("v3\n{}\n{}")
    with pytest.raises(NewerCheckpoint) as raised:
        checkpoint.offsets(0)
    lease = leases.acquire(world.home, 1, world.settings.lease_term)
    beat = Heartbeat(lease.epoch, 1, "starting", 1, "")
    assert _fail(world.home, world.flow, lease, raised.value, beat, world.settings) is Outcome.PARKED
    park = holds.parked(world.home)
    assert park is not None and park.details["recovery"] is None
    assert "was written by a newer Spark" in park.reason and "Spark 4.2 reads v1 and v2" in park.reason


def test_an_error_of_streamkeepers_own_is_classed_by_its_nearest_class_and_another_one_is_not() -> None:
    disagrees, unfit = own(SinkDisagrees("behind")), own(TableUnfit("a copy"))
    assert disagrees is not None
    assert (disagrees.recovery, disagrees.code) == ("reset_checkpoint", "SinkDisagrees")
    assert disagrees.meaning == "its checkpoint and its table contradict each other"
    assert unfit is not None and (unfit.classed, unfit.recovery) == (CORRECT, None)
    assert own(SourceError("no broker")) is None and own(NewerCheckpoint("v3")) is None
