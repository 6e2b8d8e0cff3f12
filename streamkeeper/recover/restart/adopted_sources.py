"""Names of the sources of an adopted checkpoint, as the flow declares them.

The order in which a query reads its sources is Spark's, and need not be the one in which they are declared.
So several sources without names must be named in the request, and what each has read must fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry, files_log
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.delta.history import read_history
from streamkeeper.errors import RequestError
from streamkeeper.manifest.environment import variables

_GLOB = re.compile(r"[*?{\[]")


def match_sources(
    checkpoint: Checkpoint, entry: OffsetEntry, sources: Sequence[Source], asked: Mapping[str, str] | None
) -> dict[str, str]:
    """Give the flow's name of each source of a checkpoint, by the checkpoint's own.

    :param entry: the offsets of the batch that the flow is to go on after.
    :param sources: the flow's, opened.
    :param asked: which is which, where someone said so.
    :raises RequestError: they do not fit, or several have no names; the message says what was found and what
        is declared.
    """
    keys = list(dict.fromkeys([*entry.sources, *checkpoint.sources()]))
    found = "; ".join(f"{key}: {describe(entry.sources.get(key))}" for key in keys)
    declared = ", ".join(f"{source.name} ({source.format})" for source in sources)
    told = f"The checkpoint at {checkpoint.path()} has the sources {found}. The flow declares {declared}."
    if asked is not None and set(asked) != set(keys):
        raise RequestError(
            f"{told} `sources` must name each of {', '.join(keys)}; it names {', '.join(asked)}. Nothing was"
            " touched."
        )
    if len(keys) != len(sources):
        raise RequestError(
            f"{told} They must be as many. Declare what the old job reads, and plan anew; nothing was"
            " touched."
        )
    by_name = {source.name: source for source in sources}
    names = dict(asked or {}) or ({name: name for name in by_name} if set(keys) == set(by_name) else {})
    if not names and len(keys) > 1:
        example = json.dumps(dict(zip(keys, by_name, strict=True)))
        raise RequestError(
            f"{told} Which is which cannot be told. Say so in `sources`, such as {example}; nothing was"
            " touched."
        )
    names = names or dict(zip(keys, by_name, strict=True))
    wrong = [_misfit(checkpoint, key, entry.sources.get(key), by_name[name]) for key, name in names.items()]
    if any(wrong):
        raise RequestError(
            f"{told} They do not fit: {'; '.join(filter(None, wrong))}. Declare what the old job reads, and"
            " plan anew; nothing was touched."
        )
    return names


def _misfit(checkpoint: Checkpoint, key: str, offset: Any, source: Source) -> str | None:
    """Say why a source of a checkpoint cannot be this one of the flow's; None where nothing speaks against
    it.
    """
    wrong = check_fits(source.format, offset)
    if wrong is not None:
        return f"{key} is not {source.name}: {wrong.rstrip('.')}"
    if offset is None:
        return None
    if source.reads_files:
        return _misfit_of_files(checkpoint, key, offset, source)
    if source.format == KAFKA:
        return _misfit_of_topics(key, offset, source)
    return _misfit_of_table(key, offset, source) if source.format == DELTA else None


def _misfit_of_files(checkpoint: Checkpoint, key: str, offset: Any, source: Source) -> str | None:
    """Files are known by their paths: where those do not lie where the source reads, all of it would be read
    again.
    """
    assert source.path is not None, "a files source has a path"
    base = files_log.plain_path(_GLOB.split(source.path, maxsplit=1)[0])
    inside = base if _GLOB.search(source.path) else f"{base.rstrip('/')}/"
    for entry in checkpoint.files_log(key).newest_entries(int(offset["logOffset"])):
        path = files_log.plain_path(entry.path)
        if path != base and not path.startswith(inside):
            return f"{key} has read {path}, and {source.name} reads {source.path}"
    return None


def _misfit_of_topics(key: str, offset: Any, source: Source) -> str | None:
    topics, pattern = set(offset), source.option("subscribePattern")
    if variables(source):  # what this process lacks cannot be compared; the driver's has it
        return None
    if pattern:
        try:
            strange = sorted(topic for topic in topics if not re.fullmatch(pattern, topic))
        except re.error:  # Java's patterns are not Python's; what cannot be compared speaks against nothing
            return None
    elif source.option("assign"):
        strange = sorted(topics - set(json.loads(source.option("assign"))))
    else:
        strange = sorted(topics - {topic.strip() for topic in source.option("subscribe").split(",")})
    return (
        f"{key} has read the topics {', '.join(sorted(topics))}; {source.name} does not read"
        f" {', '.join(strange)}"
        if strange
        else None
    )


def _misfit_of_table(key: str, offset: Any, source: Source) -> str | None:
    history = read_history(source.path) if source.path is not None else None
    if history is None or history.table_id in (None, offset["reservoirId"]):
        return None
    return (
        f"{key} has read the Delta table {offset['reservoirId']}, and {source.name} reads {history.table_id}"
        f" at {source.path}"
    )
