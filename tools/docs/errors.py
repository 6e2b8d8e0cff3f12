"""Failures of Spark, Delta and Streamkeeper, by the conditions that people search for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from streamkeeper.drivers.failures import FailureClass, known
from tools.docs.made import table

SQL_STATES = {
    "CANNOT_LOAD_STATE_STORE": "58030",
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": "XX000",
    "CONCURRENT_STREAM_LOG_UPDATE": "40000",
    "CONFLICTING_DIRECTORY_STRUCTURES": "KD009",
    "CONFLICTING_PARTITION_COLUMN_NAMES": "KD009",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": "0AKDC",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": "0AKDC",
    "DELTA_INVALID_FORMAT_FROM_SOURCE_VERSION": "XXKDS",
    "DELTA_INVALID_SOURCE_OFFSET_FORMAT": "XXKDS",
    "DELTA_INVALID_SOURCE_VERSION": "XXKDS",
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": "42K03",
    "DELTA_METADATA_MISMATCH": "42KDG",
    "DELTA_MISSING_CHANGE_DATA": "KD002",
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION": "42K03",
    "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED": "KD00G",
    "DELTA_SCHEMA_CHANGED": "KD007",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS": "KD007",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION": "KD007",
    "DELTA_SOURCE_IGNORE_DELETE": "0A000",
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": "0A000",
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": "KD002",
    "DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT": "KD002",
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": "42KD4",
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": "42KD4",
    "DELTA_STREAMING_INITIAL_SNAPSHOT_TOO_LARGE": "54000",
    "DELTA_STREAMING_METADATA_EVOLUTION": "22000",
    "DELTA_STREAMING_SCHEMA_LOG_DESERIALIZE_FAILED": "22000",
    "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_DELTA_TABLE_ID": "22000",
    "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_PARTITION_SCHEMA": "22000",
    "DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA": "22000",
    "DELTA_STREAMING_SCHEMA_LOG_PARSE_SCHEMA_FAILED": "22000",
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": "KD007",
    "DELTA_STREAMING_TRAILING_COMMIT_MISSING": "42K03",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": "55019",
    "FAILED_READ_FILE": "KD001",
    "ILLEGAL_STATE_STORE_VALUE": "42601",
    "INVALID_LOG_VERSION": "KD002",
    "KAFKA_DATA_LOSS": "22000",
    "MALFORMED_LOG_FILE": "KD002",
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": "42802",
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": "42802",
    "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED": "42802",
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": "42802",
    "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE": "42802",
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": "42802",
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE": "42802",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART": "42K06",
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": "XXKST",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE": "42K06",
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE": "XX000",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": "XXKST",
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED": "XXKST",
    "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED": "42K06",
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE": "XX000",
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED": "42K06",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": "XXKST",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": "42K03",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": "42K03",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": "42K03",
    "STREAMING_UNFINISHED_REPARTITION_DETECTED": "55019",
    "STREAM_STREAM_JOIN_INCONSISTENT_STATE": "XXKST",
    "USER_RAISED_EXCEPTION": "P0001",
}
"""SQLSTATE of each condition as the jars of Spark, Delta and Spark's Kafka source have it; some have none."""

_PARTS = {
    FailureClass.NEEDS_RECOVERY: (
        "The flow is parked until a recovery",
        "A restart fails the same way: the checkpoint does not fit the flow, or what it stands on is gone.",
    ),
    FailureClass.NEEDS_CORRECTION: (
        "The flow is parked until a correction",
        "No recovery helps. A changed declaration is tried once automatically.",
    ),
    FailureClass.RESTART: ("The flow is started again at once", "The next start is expected to succeed."),
    FailureClass.TRANSIENT: ("The flow is tried again", "It is never parked for one of these."),
}
_PAGES = {"reset_checkpoint": "reset", "adopt": "adopt"}
"""Page of each recovery that a failure names."""


def errors() -> str:
    """Return a section for each class of failure, with its conditions."""
    rows = sorted(known(), key=lambda row: list(_PARTS).index(row[1]))
    return "\n".join(
        line
        for classed, failures in groupby(rows, key=lambda row: row[1])
        for line in _section(classed, failures)
    )


def _section(
    classed: FailureClass, failures: Iterator[tuple[str, FailureClass, str, str, str | None]]
) -> Iterator[str]:
    title, text = _PARTS[classed]
    yield from (f"## {title}", "", text, "")
    head = ("condition, error or message", "SQLSTATE", "what it means", "what helps")
    yield table(
        head,
        [
            (_name(key), _sql_state(key), f"{meaning[0].upper()}{meaning[1:]}", _helps(helps, recovery))
            for key, _, meaning, helps, recovery in failures
        ],
    )


def _helps(helps: str, recovery: str | None) -> str:
    link = f"[`{recovery}`](../how-to/recover/{_PAGES[recovery]}.md)" if recovery else ""
    return re.sub(r"\(docs/(\S+\.md)\)", r"([page](../\1))", ". ".join(filter(None, (link, helps))))


def _sql_state(key: str) -> str:
    state = SQL_STATES.get(key.partition(".")[0])
    return f"`{state}`" if state else ""


def _name(key: str) -> str:
    """Return a condition, or a pattern of a message as a person reads it."""
    if " " not in key:
        return f"`{key}`"
    texts = re.split(r"\|(?![^(]*\))", key)
    return " or ".join(f"“{_READ_AS.sub(_as_read, text)}”" for text in texts)


def _as_read(match: re.Match[str]) -> str:
    return {r"\d+": "N", ".*": "…", "[Bb]": "B"}.get(
        match[0], "FILE" if match[0][1:2] == "S" else match[0][1:]
    )


_READ_AS = re.compile(r"\\S\+/\(.*\)|\\d\+|\.\*|\[Bb\]|\\.")
"""Parts of a pattern that are not read as they stand."""
