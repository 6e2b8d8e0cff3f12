"""Checks of the options of sources and sinks when a pipeline file is imported.

Each raises :class:`DeclarationError`, with file, line, what was found and what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import (
    DELTA,
    FILE_FORMATS,
    FILE_SINKS,
    FORMATS,
    KAFKA,
    KAFKA_SINK,
    SOCKET,
    AutoCdcFlow,
    Format,
    Location,
    Pipeline,
    Source,
)
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import DeclarationError

TOPICS = ("subscribe", "subscribePattern", "assign")
"""Options for the topics of a Kafka source; each source has exactly one."""

_PLACEHOLDER = re.compile(r"\{(?:env|conn):")
_WHOLE = re.compile(r"[1-9][0-9]*")
_SIZE = re.compile(r"[1-9][0-9]*\s*([kmgtp]?b?)?", re.IGNORECASE)
_Fits = tuple[Callable[[str], bool], str]
"""Whether a value is allowed, in small letters, and what is."""
_NUMBER: _Fits = (lambda text: bool(_WHOLE.fullmatch(text)), "a whole number above 0")
_TRUTH: _Fits = (("true", "false").__contains__, "true or false")
_BYTES: _Fits = (lambda text: bool(_SIZE.fullmatch(text)), "a size such as 10m or 1g")
_PORT: _Fits = (lambda text: bool(_WHOLE.fullmatch(text)) and int(text) < 65536, "a port, 1 to 65535")
_POSITIONS = (
    "positions belong to the flow's generation; create_source(start=…) says where the first one starts. Leave"
    " it out."
)
_KAFKA_REFUSED = {
    **dict.fromkeys(
        (
            "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "endingoffsets",
            "endingoffsetsbytimestamp", "endingtimestamp", "kafka.auto.offset.reset",
        ),
        _POSITIONS,
    ),
    **dict.fromkeys(
        (
            "kafka.key.deserializer", "kafka.value.deserializer", "kafka.enable.auto.commit",
            "kafka.interceptor.classes", "kafka.key.serializer", "kafka.value.serializer",
        ),
        "Spark sets it itself: keys and values come as bytes, to be cast in a view. Leave it out.",
    ),
}  # fmt: skip
_CHECKPOINT = "each generation of a flow has a checkpoint of its own. Leave it out."
_RETENTION = "a file that leaves the sink's log is no part of it, and is lost to its readers. Leave it out."
_KAFKA_SINK_REFUSED = {
    "checkpointlocation": _CHECKPOINT,
    "kafka.transactional.id": (
        "Spark's writer opens no transaction. A reader drops what came twice by the rows' headers"
        " (streamkeeper.readers). Leave it out."
    ),
    **dict.fromkeys(
        ("kafka.key.serializer", "kafka.value.serializer"),
        "Spark sets it itself: it writes keys and values as texts or bytes. Leave it out.",
    ),
}
_DELTA_REFUSED = {
    **dict.fromkeys(("endingversion", "endingtimestamp", "versionasof", "timestampasof"), _POSITIONS),
    **dict.fromkeys(
        ("schematrackinglocation", "schemalocation"),
        "the log of the source's schemas belongs into the generation's checkpoint. Say"
        " create_source(track_schema=True) instead.",
    ),
}
_FILES_REFUSED = {
    **dict.fromkeys(
        ("ignorecorruptfiles", "ignoremissingfiles"),
        "a file that cannot be read, or is gone, would count as read, and nothing would tell that its rows"
        " are not in the table. Leave it out; pathGlobFilter leaves out a file that is named as broken.",
    ),
    "filenameonly": (
        "of two files of one name in two folders the second would never be read, and nothing would tell."
        " Leave it out."
    ),
}
_KAFKA_VALUES = {
    **dict.fromkeys(
        ("minoffsetspertrigger", "maxoffsetspertrigger", "minpartitions", "maxrecordsperpartition"), _NUMBER
    ),
    **dict.fromkeys(("failondataloss", "includeheaders"), _TRUTH),
}
_FEEDS = ("readchangefeed", "readchangedata", "skipchangecommits")
_REPEATS = ("ignorechanges", "ignorefiledeletion")
"""Options by which a Delta source gives all rows of a file that a commit wrote again, changed or not."""
_DELTA_VALUES = {
    **dict.fromkeys((*_FEEDS, "ignoredeletes", *_REPEATS, "failondataloss"), _TRUTH),
    "maxfilespertrigger": _NUMBER,
    "maxbytespertrigger": _BYTES,
}


def check_kafka(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a Kafka source."""
    subject = f"{location}: the Kafka source {name}"
    options_by_name = _checked_options(subject, options, _KAFKA_REFUSED, _KAFKA_VALUES)
    _check_broker(subject, options_by_name)
    ways = [options_by_name[way.lower()] for way in TOPICS if way.lower() in options_by_name]
    if len(ways) != 1:
        present = " and ".join(key for key, _ in ways) or "none of them"
        raise DeclarationError(
            f"{subject} has {present}. Give exactly one of the options {', '.join(TOPICS)}."
        )
    _check_topics(subject, *ways[0])


def check_kafka_sink(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a Kafka sink."""
    subject = f"{location}: the Kafka sink {name}"
    _check_broker(subject, _checked_options(subject, options, _KAFKA_SINK_REFUSED, {}))
    others = [key for key in options if key.lower() != "topic" and not key.lower().startswith("kafka.")]
    if others:
        raise DeclarationError(
            f"{subject} has the option {others[0]!r}. Allowed are topic, and those of Kafka's producer, such"
            " as 'kafka.bootstrap.servers'."
        )


def check_file_sink(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a sink of files; see :func:`check_kafka_sink`."""
    subject = f"{location}: the sink {name}"
    if not options.get("path"):
        raise DeclarationError(f"{subject} has no path. Give the folder of its files: {{'path': '…'}}.")
    _checked_options(subject, options, {"checkpointlocation": _CHECKPOINT, "retention": _RETENTION}, {})


def _check_broker(subject: str, options_by_name: Mapping[str, tuple[str, str]]) -> None:
    if not options_by_name.get("kafka.bootstrap.servers", ("", ""))[1].strip():
        raise DeclarationError(
            f"{subject} names no broker. Give the option 'kafka.bootstrap.servers': 'host:9092,…', or"
            " '{env:NAME}' for what the environment variable NAME holds where the flow runs."
        )


def check_delta(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a Delta source."""
    subject = f"{location}: the Delta source {name}"
    options_by_name = _checked_options(subject, options, _DELTA_REFUSED, _DELTA_VALUES)
    on = [options_by_name[key][0] for key in _FEEDS if options_by_name.get(key, ("", ""))[1] == "true"]
    if len(on) > 1:
        raise DeclarationError(
            f"{subject} has {' and '.join(on)}. The change data feed gives changed rows as rows,"
            " skipChangeCommits leaves them out: give one."
        )


def check_files(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a source of files."""
    _checked_options(f"{location}: the source {name}", options, _FILES_REFUSED, {})


def check_socket(name: str, options: Mapping[str, str], location: Location) -> None:
    """Check the options of a socket source."""
    subject = f"{location}: the socket source {name}"
    options_by_name = _checked_options(subject, options, {}, {})
    for key, like in (("host", "localhost"), ("port", "9999")):
        if not options_by_name.get(key, ("", ""))[1].strip():
            raise DeclarationError(
                f"{subject} has no {key}. Give the option '{key}': '{like}', or '{{env:NAME}}' for what the"
                " environment variable NAME holds where the flow runs."
            )
    _checked_options(subject, options, {}, {"port": _PORT})
    if "includetimestamp" in options_by_name:
        raise DeclarationError(
            f"{subject} has the option {options_by_name['includetimestamp'][0]!r}. Its only column is value:"
            " add current_timestamp() in a view, and leave the option out."
        )


CHECKS: dict[str, Callable[[str, Mapping[str, str], Location], None]] = {
    KAFKA: check_kafka,
    DELTA: check_delta,
    SOCKET: check_socket,
    **dict.fromkeys(FILE_FORMATS, check_files),
}
"""Checks of the options of formats that have any."""


SINKS: dict[str, Callable[[str, Mapping[str, str], Location], None]] = {
    KAFKA_SINK: check_kafka_sink,
    **dict.fromkeys(FILE_SINKS, check_file_sink),
}
"""Checks of the options of each format that a sink may have."""


def check_start(name: str, source_format: str, start: object, location: Location) -> str | dict[str, Any]:
    """Return the declared start of a source's first generation, after a check that it is valid."""
    if start == "earliest":
        return "earliest"
    subject = f"{location}: the source {name} ({source_format}) has start {start!r}"
    source_kind = FORMATS[source_format]
    if not source_kind.starts:
        raise DeclarationError(
            f"{subject}. Only Kafka and Delta sources take another start than 'earliest'; others are read"
            " whole."
        )
    if isinstance(start, Mapping) and source_kind.records:
        plain: dict[str, Any] = json.loads(json.dumps(dict(start)))
        misfit = check_fits(source_format, plain) if plain else "It names no topic."
        if misfit is not None:
            raise DeclarationError(f"{subject}: {misfit}")
        return plain
    if isinstance(start, str) and (
        start == "latest" or _starts_well(source_kind, *start.partition(":")[::2])
    ):
        return start
    raise DeclarationError(f"{subject}. Allowed are {source_kind.starts}.")


def check_no_echo(pipeline: Pipeline) -> None:
    """Check that no flow reads the table that it writes."""
    for flow in pipeline.flows:
        # Each of its batches would be input of a later one, without end.
        echo = next((source for source in pipeline.sources_of(flow) if source.table == flow.target), None)
        if echo is not None:
            raise DeclarationError(
                f"{flow.location}: the flow {flow.name} writes the table {flow.target}, which its source"
                f" {echo.name} ({echo.location}) reads: it would read its own rows, endlessly. Let it write"
                " or read another table."
            )


def check_no_repeats(pipeline: Pipeline) -> None:
    """Check that no flow but one of AUTO CDC, where an older change of a key does nothing, is given rows of
    a Delta table again.
    """
    for flow in pipeline.flows:
        for source in pipeline.sources_of(flow):
            on = [key for key in source.options if key.lower() in _REPEATS and source.option(key) == "true"]
            if source.kind.table and on and not isinstance(flow, AutoCdcFlow):
                raise DeclarationError(
                    f"{source.location}: the source {source.name} has {on[0]}, by which it gives all rows of"
                    " each file that a commit wrote again, unchanged ones included: the flow"
                    f" {flow.name} ({flow.location}) would have them twice. Declare readChangeFeed or"
                    " skipChangeCommits instead."
                )


def check_no_takers(pipeline: Pipeline) -> None:
    """Check that no flow removes or moves files that another one reads, perhaps later."""
    reads = [(flow, source) for flow in pipeline.flows for source in pipeline.sources_of(flow)]
    for taker, taken in ((flow, source) for flow, source in reads if source.takes_files):
        for flow, source in reads:
            if flow is not taker and _share_files(taken, source):
                raise DeclarationError(
                    f"{taken.location}: the source {taken.name} has cleanSource, by which the flow"
                    f" {taker.name} removes or moves the files that it has read, and the flow {flow.name}"
                    f" ({flow.location}) reads the same: those that it has not read by then would be lost to"
                    " it, without a word. Leave cleanSource out."
                )


def _share_files(one: Source, other: Source) -> bool:
    if not (one.reads_files and other.reads_files):
        return False
    names = {one.option("pathGlobFilter"), other.option("pathGlobFilter")} - {""}
    paths = sorted(plain_path(str(source.path)).rstrip("/") + "/" for source in (one, other))
    return len(names) < 2 and paths[1].startswith(paths[0])


def check_connections(pipeline: Pipeline) -> None:
    """Check that no flow that runs once reads a source that has nothing before it is connected."""
    for flow in pipeline.flows:
        connected = next((source for source in pipeline.sources_of(flow) if source.kind.connection), None)
        if flow.once and connected is not None:
            raise DeclarationError(
                f"{flow.location}: the flow {flow.name} runs once, and its source {connected.name}"
                f" ({connected.location}) has nothing when a driver connects: it would be done with no row."
                " Leave once out."
            )


def _starts_well(source_kind: Format, kind: str, text: str) -> bool:
    if kind == "version":
        return source_kind.table and text.isascii() and text.isdecimal()
    return kind == "timestamp" and moment_ms(text) is not None


def moment_ms(text: str) -> int | None:
    """Return an ISO 8601 time with a time zone in epoch milliseconds; None if it is none, or before 1970."""
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        return None
    return int(moment.timestamp() * 1000) if moment.tzinfo is not None and moment.timestamp() >= 0 else None


def _check_topics(subject: str, way: str, text: str) -> None:
    if not text.strip():
        raise DeclarationError(f"{subject} has an empty {way}. Name the topics.")
    if way.lower() == "subscribe" and not all(part.strip() for part in text.split(",")):
        raise DeclarationError(
            f"{subject} has subscribe {text!r}, with an empty name in it. Give names with commas between"
            " them."
        )
    if way.lower() == "assign" and not _assigns(text):
        raise DeclarationError(
            f'{subject} has assign {text!r}. Give JSON of partitions by topic, such as \'{{"orders": [0,'
            f" 1]}}'."
        )


def _assigns(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    numbers = list(value.values()) if isinstance(value, dict) else []
    return bool(numbers) and all(
        isinstance(parts, list) and parts and all(type(part) is int for part in parts) for parts in numbers
    )


def _checked_options(
    subject: str,
    options: Mapping[str, str],
    refused: Mapping[str, str],
    values: Mapping[str, _Fits],
) -> dict[str, tuple[str, str]]:
    """Return the options as given, with their values, by names in small letters.

    :raises DeclarationError: one is among the ``refused``, or has none of the allowed ``values``.
    """
    options_by_name = {key.lower(): (key, value) for key, value in options.items()}
    for key, (name, value) in options_by_name.items():
        if key in refused:
            raise DeclarationError(f"{subject} has the option {name!r}: {refused[key]}")
        if key in values and not _PLACEHOLDER.search(value):
            fits, allowed = values[key]
            if not fits(value.strip().lower()):
                raise DeclarationError(f"{subject} has {name} {value!r}. Allowed is {allowed}.")
    return options_by_name
