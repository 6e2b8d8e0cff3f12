"""Classes of failures: retry, or park the flow until a recovery. One table decides, by
the error conditions of Spark (``error-conditions.json``) and Delta (``delta-error-classes.json``).

A Spark failure is a chain of causes. Its name is the first error condition other than the generic
``STREAM_FAILED``. Failures without a condition are identified by their message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from streamkeeper.redaction import redact_text


class FailureClass(Enum):
    """What a failure needs."""

    NEEDS_RECOVERY = "needs recovery"
    """A restart fails again: the checkpoint does not fit the flow. The flow is parked."""
    NEEDS_CORRECTION = "needs correction"
    """The declaration or the software must be corrected first; no recovery helps. The flow is parked."""
    RESTART = "restart at once"
    """The next start is expected to succeed."""
    TRANSIENT = "transient"
    """Retried, forever."""


@dataclass(frozen=True)
class Cause:
    """One link of a failure's chain: class name, message, and Spark's error condition and SQLSTATE if it has
    them.
    """

    type: str
    condition: str | None
    sql_state: str | None
    message: str


@dataclass(frozen=True)
class Rule:
    """One row of the table: a condition (exact, or ``PREFIX.*``) or a pattern of the message, and its
    meaning.
    """

    condition: str | None
    message: str | None
    classed: FailureClass
    meaning: str
    recovery: str | None = None


@dataclass(frozen=True)
class Failure:
    """Classified failure, described for the user. ``recovery`` names the DAG that helps, or None."""

    classed: FailureClass
    condition: str | None
    sql_state: str | None
    meaning: str
    recovery: str | None
    message: str
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """Condition and SQLSTATE as Spark prints them, or the exception's class."""
        if self.condition is None:
            return str(self.context.get("type", "no error condition"))
        return f"{self.condition} (SQLSTATE {self.sql_state})" if self.sql_state else self.condition


EXPECTATION_FAILED = "The expectation"
"""First words of the error that a row raises which fails an ``expect_or_fail``."""

_RESET = "reset_checkpoint"
_R, _C, _S, _T = (
    FailureClass.NEEDS_RECOVERY,
    FailureClass.NEEDS_CORRECTION,
    FailureClass.RESTART,
    FailureClass.TRANSIENT,
)

RULES: tuple[Rule, ...] = (
    Rule(
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        None,
        _R,
        "a stateful operation (dropDuplicates, an aggregation, a join) was removed or replaced, and the"
        " checkpoint still has its state",
        _RESET,
    ),
    Rule(
        "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
        None,
        _R,
        "a stateful operation (dropDuplicates, an aggregation, a join) was added, or its state was lost: the"
        " checkpoint has none for it",
        _RESET,
    ),
    Rule(
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        None,
        _R,
        "the key columns of a stateful operation changed",
        _RESET,
    ),
    Rule(
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        None,
        _R,
        "what a stateful operation keeps changed: other aggregates, another join type",
        _RESET,
    ),
    Rule(
        "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
        None,
        _R,
        "a setting of the state store changed that its checkpoint has fixed",
        _RESET,
    ),
    Rule("STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE", None, _R, "a state variable changed its type", _RESET),
    Rule(
        "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS",
        None,
        _C,
        "a state variable has a name that the state store refuses",
    ),
    Rule(
        "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR",
        None,
        _T,
        "a task of an earlier batch still had the state store",
    ),
    Rule(
        "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE",
        None,
        _R,
        "a snapshot file of the state is gone",
        _RESET,
    ),
    Rule(
        "CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY",
        None,
        _T,
        "loading the state ran out of memory",
    ),
    Rule(
        "CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY",
        None,
        _T,
        "loading the state ran out of memory",
    ),
    Rule("CANNOT_LOAD_STATE_STORE.*", None, _R, "files of the state are missing or damaged", _RESET),
    Rule(
        "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
        None,
        _R,
        "a file of the checkpoint does not fit its checksum",
        _RESET,
    ),
    Rule("MALFORMED_LOG_FILE", None, _R, "a file of the checkpoint's logs is damaged", _RESET),
    Rule(
        "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
        None,
        _R,
        "the checkpoint's metadata file is gone",
        _RESET,
    ),
    Rule(
        "CONCURRENT_STREAM_LOG_UPDATE",
        None,
        _T,
        "two runs of the query wrote one checkpoint, or a file of its offset log is gone",
        None,
    ),
    Rule(
        "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
        None,
        _R,
        "the Delta table that the flow reads was recreated",
        _RESET,
    ),
    Rule(
        "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
        None,
        _R,
        "the history that the flow still had to read is gone from the Delta source",
        _RESET,
    ),
    Rule(
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
        None,
        _R,
        "the history that the flow still had to read is gone from the Delta source",
        _RESET,
    ),
    Rule(
        "DELTA_SOURCE_TABLE_IGNORE_CHANGES",
        None,
        _C,
        "rows of the Delta source were changed, and the flow reads appends only",
    ),
    Rule(
        "DELTA_SOURCE_IGNORE_DELETE",
        None,
        _C,
        "rows of the Delta source were deleted, and the flow reads appends only",
    ),
    Rule(
        "KAFKA_DATA_LOSS.*",
        None,
        _R,
        "records that the flow had yet to read are gone from Kafka, or their topic was recreated",
        _RESET,
    ),
    Rule(
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        None,
        _C,
        "the offsets that a Kafka source is declared to start at leave partitions out",
    ),
    Rule("DELTA_METADATA_MISMATCH", None, _C, "the columns of the flow do not match those of its table"),
    Rule(
        "DELTA_STREAMING_METADATA_EVOLUTION",
        None,
        _S,
        "the schema of the Delta source changed and was recorded",
    ),
    Rule(
        "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",
        None,
        _C,
        "columns of the Delta source were renamed, dropped or changed their type, and the flow must"
        " declare that it is ready for it",
    ),
    Rule("DELTA_SCHEMA_CHANGED", None, _S, "the schema of the Delta source changed"),
    Rule("DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS", None, _S, "the schema of the Delta source changed"),
    Rule("DELTA_SCHEMA_CHANGED_WITH_VERSION", None, _S, "the schema of the Delta source changed"),
    Rule(
        "USER_RAISED_EXCEPTION",
        rf"{EXPECTATION_FAILED} .* fails for the row ",
        _C,
        "a row fails an expectation that each row must meet, and nothing of its batch was written",
    ),
    Rule(
        "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION",
        None,
        _C,
        "the checkpoint was written by a newer Spark than this one",
    ),
    Rule(
        "UNSUPPORTED_LOG_VERSION.*",
        None,
        _C,
        "the checkpoint was written by another Spark than this one can read",
    ),
    Rule(
        None,
        r"If startingOffsets contains specific offsets, you must specify all TopicPartitions",
        _C,
        "the offsets that a Kafka source is declared to start at leave partitions out",
    ),
    Rule(
        None,
        r"Checksum error: \S+/(metadata|(offsets|commits|sources|state)/\S+)",
        _R,
        "a file of the checkpoint does not fit its checksum (its hidden .crc twin)",
        _RESET,
    ),
    Rule(None, r"Incomplete log file", _R, "a file of the checkpoint's logs is cut off", _RESET),
    Rule(
        None,
        r"[Bb]atch \d+ doesn't exist|batch \d+ does not exist",
        _R,
        "a batch is gone from the checkpoint's logs",
        _RESET,
    ),
    Rule(
        None,
        r"There are \[\d+\] sources in the checkpoint",
        _R,
        "the number of sources changed, and the checkpoint has the old ones",
        _RESET,
    ),
    Rule(
        None,
        r"Wrong basePath",
        _R,
        "the path of a files source changed, and the checkpoint has files of the old one",
        _RESET,
    ),
    Rule(
        None,
        r"Multiple streaming queries are concurrently using .*metadata",
        _R,
        "the checkpoint's metadata and its checksum do not match",
        _RESET,
    ),
)
"""Rules in order of precedence: the first that fits decides. A failure without a rule is transient, unless
the declaration is at fault.
"""

_NOT_SPARKS_FAULT = ("AnalysisException", "ParseException", "DeclarationError")


def classify(causes: Sequence[Cause]) -> Failure:
    """Return the class of a failure from its chain of causes, outermost first.

    A condition anywhere in the chain weighs more than a message. An ``AnalysisException`` without a rule is
    the declaration's fault, as are a ``ParseException`` and a ``DeclarationError``.
    """
    for rules in ([rule for rule in RULES if rule.condition], [rule for rule in RULES if not rule.condition]):
        for cause in causes:
            for rule in rules:
                if _fits(rule, cause):
                    return Failure(
                        rule.classed,
                        cause.condition,
                        cause.sql_state,
                        rule.meaning,
                        rule.recovery,
                        cause.message,
                        {"type": cause.type},
                    )
    deepest = next(
        (cause for cause in causes if cause.condition not in (None, "STREAM_FAILED")),
        causes[-1] if causes else None,
    )
    if deepest is None:
        return Failure(_T, None, None, "the driver ended without a reason", None, "")
    faulty = any(cause.type.rsplit(".", 1)[-1].endswith(_NOT_SPARKS_FAULT) for cause in causes)
    meaning = (
        "the declaration of the flow cannot run"
        if faulty
        else "an unknown failure, which another try may fix"
    )
    return Failure(
        _C if faulty else _T,
        deepest.condition,
        deepest.sql_state,
        meaning,
        None,
        deepest.message,
        {"type": deepest.type},
    )


def _fits(rule: Rule, cause: Cause) -> bool:
    if rule.condition is not None:
        if cause.condition is None:
            return False
        if rule.condition.endswith(".*"):
            family = rule.condition.removesuffix(".*")
            if cause.condition != family and not cause.condition.startswith(family + "."):
                return False
        elif cause.condition != rule.condition:
            return False
    return rule.message is None or re.search(rule.message, cause.message) is not None


def read(details: Mapping[str, Any]) -> Failure | None:
    """Return the failure in the details of a park; None where a park has none that was classed."""
    names = {field.name for field in fields(Failure)}
    known = {name: value for name, value in details.items() if name in names}
    if known.get("classed") not in {item.value for item in FailureClass}:
        return None
    return Failure(**{**known, "classed": FailureClass(known["classed"])})


def describe(flow: str, failure: Failure, retried: bool = False) -> str:
    """Return what failed and what helps, in terms of the user's flow, with the SQLSTATE and without secrets.

    :param retried: the flow declares that it is retried rather than parked.
    """
    said = (failure.message.strip().splitlines() or ["(nothing)"])[0].removeprefix(f"[{failure.condition}] ")
    lines = [
        f"The flow {flow} stopped: {failure.meaning}.",
        f"Spark says {failure.code}: {redact_text(said)}",
    ]
    if retried:
        fits = (
            f"{failure.recovery}, for this flow, would fix it"
            if failure.recovery
            else "Correcting what is named above would fix it"
        )
        lines.append(f"A restart is likely to fail the same way; it is retried, as declared. {fits}.")
    elif failure.classed is FailureClass.NEEDS_RECOVERY:
        lines.append(
            "A restart would fail the same way, so the flow is parked. Recover this flow with"
            f" {failure.recovery}."
        )
    elif failure.classed is FailureClass.NEEDS_CORRECTION:
        lines.append(
            "A restart would fail the same way, so the flow is parked. Correct what is named above; a"
            " changed declaration is tried once automatically."
        )
    elif failure.classed is FailureClass.RESTART:
        lines.append("It is started again at once.")
    else:
        lines.append("It is tried again.")
    return "\n".join(lines)
