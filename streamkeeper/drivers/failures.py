"""Classes of failures: retry, or park the flow until a recovery. Tables decide, by the error conditions of
Spark (``error-conditions.json``) and Delta (``delta-error-classes.json``).

A Spark failure is a chain of causes (:mod:`streamkeeper.drivers.causes`). The first link that the tables know
decides; else the failure is named by its deepest error condition. Failures without a condition are identified
by their message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from streamkeeper.drivers.causes import (
    MEMORY,
    Cause,
    decisive,
    headline,
    out_of_memory,
    particulars,
    remedy,
)
from streamkeeper.errors import (
    ChangeRefused,
    CheckpointError,
    NewerCheckpoint,
    RecoveryError,
    RowsOfOthers,
    SinkDisagrees,
    StreamkeeperError,
    TableUnfit,
)
from streamkeeper.redaction import redact_text
from streamkeeper.support.json_values import read_as


class FailureClass(Enum):
    """What a failure needs."""

    NEEDS_RECOVERY = "needs recovery"
    """A restart fails again: the checkpoint does not fit the flow. The flow is parked."""
    NEEDS_CORRECTION = "needs correction"
    """The declaration or the software must be corrected first; no recovery helps. The flow is parked."""
    BAD_INPUT = "input at fault"
    """A batch fails the same way for the same input. Tried as often as the flow declares, then parked."""
    RESTART = "restart at once"
    """The next start is expected to succeed."""
    TRANSIENT = "transient"
    """Retried, forever."""


@dataclass(frozen=True)
class Failure:
    """Classified failure, described for the user. ``recovery`` names the DAG that helps, or None.

    ``particulars`` are sentences on what its causes name: a file, an expression, a line of code; ``remedy``
    is what helps, where that is known. Of a bad input, ``tries`` drivers failed so at ``batch``, and
    ``limit`` of them park the flow.
    """

    classed: FailureClass
    condition: str | None
    sql_state: str | None
    meaning: str
    recovery: str | None
    message: str
    context: dict[str, Any] = field(default_factory=dict)
    particulars: tuple[str, ...] = ()
    remedy: str = ""
    batch: int | None = None
    tries: int = 0
    limit: int = 0

    @property
    def lasts(self) -> bool:
        """Whether no restart helps, so that the flow is parked unless it declares otherwise."""
        if self.classed is FailureClass.BAD_INPUT:
            return 0 < self.limit <= self.tries
        return self.classed in (FailureClass.NEEDS_RECOVERY, FailureClass.NEEDS_CORRECTION)

    @property
    def code(self) -> str:
        """Condition and SQLSTATE as Spark prints them, or the exception's class."""
        if self.condition is None:
            return str(self.context.get("type", "no error condition"))
        return f"{self.condition} (SQLSTATE {self.sql_state})" if self.sql_state else self.condition


START = "start"
"""Name, in a failure's context, of the starts that its recovery can be planned with; none for its default."""
OTHER_STARTS = "explicit offsets, a timestamp or earliest"
EXPECTATION_FAILED = "The expectation"
"""First words of the error that a row raises which fails an ``expect_or_fail``."""

_LOOKED_FOR = (
    "Kafka did not have records that the flow was to read, which may pass; the next driver looks whether they"
    " are gone"
)
_VARIABLE_CHANGED = "a state variable changed its type"
_CHANGED_OFTEN = "a state changed its columns more often than Spark keeps count of"
_STATE_DAMAGED = "files of the state are missing or damaged"
_OTHER_ROWS = "rows of the state have other columns than the query keeps"
_HISTORY_GONE = "the history that the flow still had to read is gone from the Delta source"
_NO_POSITION = "the position of the Delta source, as the checkpoint has it, cannot be read"
_SCHEMA_CHANGED = "the schema of the Delta source changed"
_SCHEMAS_DAMAGED = "the log of the Delta source's schemas, in the checkpoint, is damaged"
_UNFOLLOWED = (
    "columns of the Delta source were renamed, dropped or changed their type, and the source does not follow"
    " its table's schemas"
)
_FEED_CHANGED = (
    "columns of the Delta source changed within the commits that the flow had to read of its change feed"
)
_BY_CONDITION: Mapping[FailureClass, Mapping[str, str]] = {
    FailureClass.NEEDS_RECOVERY: {
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": (
            "a stateful operation (dropDuplicates, an aggregation, a join) was removed or replaced, and the"
            " checkpoint still has its state"
        ),
        "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": (
            "a stateful operation (dropDuplicates, an aggregation, a join) was added, or its state was lost:"
            " the checkpoint has none for it"
        ),
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": "the key columns of a stateful operation changed",
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": (
            "what a stateful operation keeps changed: other aggregates, another join type"
        ),
        "STATE_STORE_INVALID_CONFIG_AFTER_RESTART": (
            "a setting of the state store changed that its checkpoint has fixed"
        ),
        "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE": _VARIABLE_CHANGED,
        "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": _VARIABLE_CHANGED,
        "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": _VARIABLE_CHANGED,
        "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED": _CHANGED_OFTEN,
        "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED": _CHANGED_OFTEN,
        "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED": _STATE_DAMAGED,
        "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE": _OTHER_ROWS,
        "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE": _OTHER_ROWS,
        "STREAM_STREAM_JOIN_INCONSISTENT_STATE.*": _STATE_DAMAGED,
        "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE": "a snapshot file of the state is gone",
        "CANNOT_LOAD_STATE_STORE.*": _STATE_DAMAGED,
        "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": "a file of the checkpoint does not fit its checksum",
        "MALFORMED_LOG_FILE": "a file of the checkpoint's logs is damaged",
        "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": "the checkpoint's metadata file is gone",
        "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": "the Delta table that the flow reads was recreated",
        "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": _HISTORY_GONE,
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION": _HISTORY_GONE,
        "DELTA_STREAMING_TRAILING_COMMIT_MISSING": _HISTORY_GONE,
        "DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT": _HISTORY_GONE,
        "DELTA_INVALID_SOURCE_OFFSET_FORMAT": _NO_POSITION,
        "DELTA_INVALID_SOURCE_VERSION": _NO_POSITION,
        "DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA": (
            "columns of the Delta source changed within a batch that was planned before its schemas were"
            " followed"
        ),
        "KAFKA_DATA_LOSS.*": (
            "records that the flow had yet to read are gone from Kafka, or their topic was recreated"
        ),
    },
    FailureClass.NEEDS_CORRECTION: {
        "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": (
            "a state variable has a name that the state store refuses"
        ),
        **dict.fromkeys(
            (
                "ILLEGAL_STATE_STORE_VALUE.*",
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
            ),
            "the code of a state uses it in a way that Spark refuses",
        ),
        "STREAMING_UNFINISHED_REPARTITION_DETECTED": (
            "somebody began to give the state another number of partitions, and did not finish"
        ),
        "DELTA_SOURCE_TABLE_IGNORE_CHANGES": (
            "rows of the Delta source were changed, and the flow reads appends only"
        ),
        "DELTA_SOURCE_IGNORE_DELETE": (
            "rows of the Delta source were deleted, and the flow reads appends only"
        ),
        "CONFLICTING_DIRECTORY_STRUCTURES": (
            "some files of the source are in folders of a column (column=value), and others in other folders"
        ),
        "CONFLICTING_PARTITION_COLUMN_NAMES": (
            "files of the source are in folders of different columns (column=value)"
        ),
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": (
            "the offsets that a Kafka source is declared to start at leave partitions out"
        ),
        "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED": (
            "a Delta table that the flow reads or writes is catalog-managed, and cannot be read by its path"
        ),
        "DELTA_METADATA_MISMATCH": "the columns of the flow do not match those of its table",
        "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": (
            "columns of the Delta source were renamed, dropped or changed their type, and the source must"
            " declare that the flow is ready for it, by its option allowSourceColumnRename,"
            " allowSourceColumnDrop or allowSourceColumnTypeChange ('always')"
        ),
        "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": _UNFOLLOWED,
        "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _UNFOLLOWED,
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": _FEED_CHANGED,
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": _FEED_CHANGED,
        "DELTA_MISSING_CHANGE_DATA": (
            "the table had no change feed yet in commits that the flow had to read of it"
        ),
        "DELTA_STREAMING_SCHEMA_LOG_DESERIALIZE_FAILED": _SCHEMAS_DAMAGED,
        "DELTA_STREAMING_SCHEMA_LOG_PARSE_SCHEMA_FAILED": _SCHEMAS_DAMAGED,
        "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_DELTA_TABLE_ID": _SCHEMAS_DAMAGED,
        "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_PARTITION_SCHEMA": (
            "the partitions of the Delta source changed, and its schemas were followed"
        ),
        "DELTA_STREAMING_INITIAL_SNAPSHOT_TOO_LARGE": (
            "the Delta source has more files than Delta lists for a first start"
        ),
        "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION": (
            "the checkpoint was written by a newer Delta than this one"
        ),
        "USER_RAISED_EXCEPTION": (
            "a row fails an expectation that each row must meet, and nothing of its batch was written"
        ),
        "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION": (
            "the checkpoint was written by a newer Spark than this one"
        ),
        "UNSUPPORTED_LOG_VERSION.*": "the checkpoint was written by another Spark than this one can read",
    },
    FailureClass.RESTART: {
        "DELTA_STREAMING_METADATA_EVOLUTION": "the schema of the Delta source changed and was recorded",
        "DELTA_SCHEMA_CHANGED": _SCHEMA_CHANGED,
        "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS": _SCHEMA_CHANGED,
        "DELTA_SCHEMA_CHANGED_WITH_VERSION": _SCHEMA_CHANGED,
        "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": _SCHEMA_CHANGED,
    },
    FailureClass.TRANSIENT: {
        "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR": (
            "a task of an earlier batch still had the state store"
        ),
        "CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY": "loading the state ran out of memory",
        "CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY": "loading the state ran out of memory",
        "CONCURRENT_STREAM_LOG_UPDATE": (
            "two runs of the query wrote one checkpoint, or a file of its offset log is gone"
        ),
        "FAILED_READ_FILE.FILE_NOT_EXIST": (
            "a file was removed before it was read; the next driver looks whether it is gone"
        ),
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": _LOOKED_FOR,
        "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE": _LOOKED_FOR,
    },
}
"""Meanings of error conditions, or of all of a family (``PREFIX.*``): the condition itself comes first."""
_ONLY_WITH = {"USER_RAISED_EXCEPTION": rf"{EXPECTATION_FAILED} .* fails for the row "}
"""Patterns of the message, for a condition that a pipeline's own code may raise, too."""

_BY_MESSAGE: Mapping[FailureClass, Mapping[str, str]] = {
    FailureClass.NEEDS_RECOVERY: {
        r"Checksum error: \S+/(metadata|(offsets|commits|sources|state)/\S+)": (
            "a file of the checkpoint does not fit its checksum (its hidden .crc twin)"
        ),
        r"Incomplete log file": "a file of the checkpoint's logs is cut off",
        r"[Bb]atch \d+ doesn't exist|batch \d+ does not exist": "a batch is gone from the checkpoint's logs",
        r"There are \[\d+\] sources in the checkpoint": (
            "the number of sources changed, and the checkpoint has the old ones"
        ),
        r"Wrong basePath": "the path of a files source changed, and the checkpoint has files of the old one",
        r"Multiple streaming queries are concurrently using .*metadata": (
            "the checkpoint's metadata and its checksum do not match"
        ),
    },
    FailureClass.NEEDS_CORRECTION: {
        r"If startingOffsets contains specific offsets, you must specify all TopicPartitions": (
            "the offsets that a Kafka source is declared to start at leave partitions out"
        ),
        r"a newer Spark wrote it": "the checkpoint was written by a newer Spark than this one",
    },
    FailureClass.TRANSIENT: {
        r"SparkContext\.dagScheduler\(\)\" is null|SparkContext was shut down|stopped SparkContext": (
            "Spark's process was ending, and this is an echo of it: its exit code tells why (52 and 3: Java"
            " ran out of memory)"
        ),
    },
}
"""Meanings of failures without a condition, by a pattern of the message; the first that fits decides.

A failure that is in neither table is transient, unless the declaration is at fault.
"""
_MESSAGE_HELPS = "What the message names."
_BY_ERROR: Mapping[type[StreamkeeperError], tuple[FailureClass, str, str, str | None]] = {
    SinkDisagrees: (
        FailureClass.NEEDS_RECOVERY,
        "its checkpoint and its table contradict each other",
        "Or restore the newer of the two, as the message says.",
        "reset_checkpoint",
    ),
    CheckpointError: (FailureClass.NEEDS_RECOVERY, "its checkpoint cannot be read", "", "reset_checkpoint"),
    RecoveryError: (
        FailureClass.NEEDS_RECOVERY,
        "its generation cannot start as decided",
        "",
        "reset_checkpoint",
    ),
    RowsOfOthers: (
        FailureClass.NEEDS_RECOVERY,
        "its table has rows that none of its flows wrote",
        'Or declare existing_rows="keep" of the table.',
        "adopt",
    ),
    ChangeRefused: (
        FailureClass.NEEDS_CORRECTION,
        "a batch holds changes that cannot be applied, and nothing of it was written",
        _MESSAGE_HELPS,
        None,
    ),
    TableUnfit: (
        FailureClass.NEEDS_CORRECTION,
        "its table is not as its flows left it, and nothing was written",
        _MESSAGE_HELPS,
        None,
    ),
}
"""Errors of Streamkeeper itself that park a flow: class, meaning, what helps beside the recovery, and the
recovery. Of an error's classes the nearest decides.
"""
_APPENDS_ONLY = (
    "Let the source declare the option skipChangeCommits, which passes over such commits, or readChangeFeed,"
    " which reads the changes."
)
_OF_STATES = ("ILLEGAL_STATE_STORE_VALUE", "STATEFUL_PROCESSOR_")
_ALL_PARTITIONS = "Declare an offset for every partition, or another start."
_NO_COLUMNS = (
    "Declare the option recursiveFileLookup of the source ('true'), by which folders are no columns, or move"
    " the files that the message names."
)
_OTHER_SPARK = "Go back to the Spark that wrote it."
_FOLLOW = (
    "Declare track_schema=True of the source, and let its view handle the columns of both schemas"
    " (docs/how-to/sources/delta.md)."
)
_START_ELSEWHERE = (
    "Reset the flow from explicit offsets or a timestamp (reset_checkpoint): after the last batch it would"
    " meet the same."
)
_REMEDIES: Mapping[str, str] = {
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": "Rename the state variable.",
    **dict.fromkeys(
        (key for key in _BY_CONDITION[FailureClass.NEEDS_CORRECTION] if key.startswith(_OF_STATES)),
        "Correct the code of the state: the message names the operation.",
    ),
    "STREAMING_UNFINISHED_REPARTITION_DETECTED": "Finish it, as the message says.",
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": _APPENDS_ONLY,
    "DELTA_SOURCE_IGNORE_DELETE": _APPENDS_ONLY,
    "CONFLICTING_DIRECTORY_STRUCTURES": _NO_COLUMNS,
    "CONFLICTING_PARTITION_COLUMN_NAMES": _NO_COLUMNS,
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": _ALL_PARTITIONS,
    "DELTA_METADATA_MISMATCH": "Give the columns of the table, with their types; the message names both.",
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": (
        "Declare that option of the source, and let the view handle the columns of both schemas."
    ),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": _FOLLOW,
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _FOLLOW,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": _START_ELSEWHERE,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": _START_ELSEWHERE,
    "DELTA_MISSING_CHANGE_DATA": _START_ELSEWHERE,
    "DELTA_STREAMING_SCHEMA_LOG_DESERIALIZE_FAILED": _START_ELSEWHERE,
    "DELTA_STREAMING_SCHEMA_LOG_PARSE_SCHEMA_FAILED": _START_ELSEWHERE,
    "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_DELTA_TABLE_ID": _START_ELSEWHERE,
    "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_PARTITION_SCHEMA": _START_ELSEWHERE,
    "DELTA_STREAMING_INITIAL_SNAPSHOT_TOO_LARGE": (
        "Declare a start of the source, or the setting that Delta names."
    ),
    "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION": "Go back to the Delta that wrote it.",
    "USER_RAISED_EXCEPTION": "Correct the data, or the expectation.",
    "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION": _OTHER_SPARK,
    "UNSUPPORTED_LOG_VERSION.*": _OTHER_SPARK,
    r"a newer Spark wrote it": _OTHER_SPARK,
    r"If startingOffsets contains specific offsets, you must specify all TopicPartitions": _ALL_PARTITIONS,
    "CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY": MEMORY,
    "CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY": MEMORY,
}
"""What helps, where no recovery does and the meaning does not say it, by the keys of both tables."""
_CONDITIONS, _MESSAGES = (
    {
        key: (classed, meaning, _REMEDIES.get(key, ""))
        for classed, meanings in table.items()
        for key, meaning in meanings.items()
    }
    for table in (_BY_CONDITION, _BY_MESSAGE)
)

_MOST_LINES = 15
"""Lines of a message that are shown."""
_NOT_SPARKS_FAULT = ("AnalysisException", "ParseException", "DeclarationError")


def classify(causes: Sequence[Cause]) -> Failure:
    """Return the class of a failure from its chain of causes, outermost first.

    A condition anywhere in the chain weighs more than a message. An ``AnalysisException`` that is in no table
    is the declaration's fault, as are a ``ParseException`` and a ``DeclarationError``.
    """
    if not causes:
        return Failure(FailureClass.TRANSIENT, None, None, "the driver ended without a reason", None, "")
    for look_up in (_by_condition, _by_message):
        for cause in causes:
            if (row := look_up(cause)) is not None:
                return _failure(*row, cause, causes)
    main, help_ = decisive(causes), remedy(causes)
    if (memory := out_of_memory(causes)) is not None:
        return _failure(FailureClass.TRANSIENT, "Java ran out of memory", MEMORY, memory, causes)
    if any(cause.type.rsplit(".", 1)[-1].endswith(_NOT_SPARKS_FAULT) for cause in causes):
        meaning = "the declaration of the flow cannot run"
        return _failure(FailureClass.NEEDS_CORRECTION, meaning, "", main, causes)
    if help_ is not None:
        meaning = "its batch holds what it cannot process, and nothing of the batch was written"
        return _failure(FailureClass.BAD_INPUT, meaning, help_, main, causes)
    return _failure(FailureClass.TRANSIENT, "a failure that another try may fix", "", main, causes)


def own(error: Exception) -> Failure | None:
    """Return the failure that an error of Streamkeeper itself is; None if it is another one, whose causes
    decide (:func:`classify`), as do those of a checkpoint that a newer Spark wrote.
    """
    row = next((_BY_ERROR[base] for base in type(error).__mro__ if base in _BY_ERROR), None)
    if row is None or isinstance(error, NewerCheckpoint):
        return None
    classed, meaning, _, recovery = row
    return Failure(classed, None, None, meaning, recovery, str(error), {"type": type(error).__name__})


def known() -> Iterator[tuple[str, FailureClass, str, str, str | None]]:
    """Yield each failure that the tables have: its condition, the pattern of its message, or the class of
    Streamkeeper's own error; its class, its meaning, what helps (empty where the meaning says it), and the
    recovery that fits.
    """
    for key, (classed, meaning, helps) in {**_CONDITIONS, **_MESSAGES}.items():
        yield key, classed, meaning, helps, _recovery(classed)
    for error, row in _BY_ERROR.items():
        yield error.__name__, *row


def _recovery(classed: FailureClass) -> str | None:
    return "reset_checkpoint" if classed is FailureClass.NEEDS_RECOVERY else None


_Row = tuple[FailureClass, str, str]


def _by_condition(cause: Cause) -> _Row | None:
    name = cause.condition or ""
    if name in _ONLY_WITH and not re.search(_ONLY_WITH[name], cause.message):
        return None
    return _CONDITIONS.get(name) or _CONDITIONS.get(f"{name.partition('.')[0]}.*")


def _by_message(cause: Cause) -> _Row | None:
    return next((row for pattern, row in _MESSAGES.items() if re.search(pattern, cause.message)), None)


def _failure(
    classed: FailureClass, meaning: str, helps: str, cause: Cause, causes: Sequence[Cause]
) -> Failure:
    return Failure(
        classed,
        cause.condition,
        cause.sql_state,
        meaning,
        _recovery(classed),
        headline(cause),
        {"type": cause.type},
        particulars(causes, cause),
        helps,
    )


def _start(failure: Failure) -> str:
    """Return from where a recovery must start, if not after the last batch, which is its default."""
    start = failure.context.get(START)
    return f", from {start}: what was read up to the last batch is not known for certain" if start else ""


def read(details: Mapping[str, Any]) -> Failure | None:
    """Return the failure in the details of a park; None if they have none, or another process changed it."""
    names = {field.name for field in fields(Failure)}
    try:
        return read_as(Failure, {name: value for name, value in details.items() if name in names})
    except (TypeError, ValueError):
        return None


def describe(flow: str, failure: Failure, retried: bool = False) -> str:
    """Return what failed and what helps, in terms of the user's flow, with the SQLSTATE and without secrets.

    :param retried: the flow declares that it is retried rather than parked.
    """
    lines = [f"The flow {flow} stopped: {failure.meaning}.", f"Spark says {failure.code}: {_shown(failure)}"]
    lines += failure.particulars
    return redact_text("\n".join([*lines, _what_follows(failure, retried)]))


def brief(failure: Failure) -> str:
    """Return what failed in one line, without secrets."""
    first = _shown(failure).splitlines()[0]
    return redact_text("; ".join([f"{failure.meaning}: {failure.code}: {first}", *failure.particulars]))


def _shown(failure: Failure) -> str:
    """Return what Spark, or Streamkeeper, said: all that a person is asked to correct is in it."""
    lines = failure.message.strip().splitlines() or ["(nothing)"]
    more = len(lines) - _MOST_LINES
    return "\n".join([*lines[:_MOST_LINES], *([f"… ({more} more lines)"] if more > 0 else [])])


def _what_follows(failure: Failure, retried: bool) -> str:
    """Return what becomes of the flow, and what helps."""
    correct = failure.remedy or "Correct what is named above."
    match failure.classed:
        case FailureClass.NEEDS_RECOVERY | FailureClass.NEEDS_CORRECTION if retried:
            fits = f"{failure.recovery}, for this flow, would fix it." if failure.recovery else correct
            return f"A restart is likely to fail the same way; it is retried, as declared. {fits}"
        case FailureClass.NEEDS_RECOVERY:
            return (
                "A restart would fail the same way, so the flow is parked. Recover this flow with"
                f" {failure.recovery}{_start(failure)}."
            )
        case FailureClass.NEEDS_CORRECTION:
            return (
                f"A restart would fail the same way, so the flow is parked. {correct} A changed declaration"
                " is tried once automatically."
            )
        case FailureClass.BAD_INPUT:
            return f"{_tried(failure, retried)} {correct}"
        case FailureClass.RESTART:
            return "It is started again at once."
        case FailureClass.TRANSIENT:
            return f"It is tried again. {failure.remedy}".strip()


def _tried(failure: Failure, retried: bool) -> str:
    """Return how often a batch failed for its input, and what follows."""
    at = "" if failure.batch is None else f" at batch {failure.batch}"
    tries = (
        f"try {failure.tries} of {failure.limit} that failed so{at}"
        if failure.limit
        else "a try that failed so"
    )
    if not failure.lasts:
        return f"This was {tries}; it is tried again."
    if retried:
        return f"This was {tries}; it is retried, as declared."
    return (
        f"This was {tries}, so the flow is parked, with its checkpoint where it was. A changed declaration is"
        " tried once automatically; after a correction of the input, release it (streamkeeper release"
        " --park)."
    )
