"""Names of the sources of an adopted checkpoint, as the flow declares them.

The order in which a query reads its sources is Spark's, and need not be the one in which they are declared.
So several sources without names must be named in the request, and what each has read must fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import RequestError
from streamkeeper.sources.formats import format_of


def match_sources(
    checkpoint: Checkpoint,
    entry: OffsetEntry,
    sources: Sequence[Source],
    requested_names: Mapping[str, str] | None,
) -> dict[str, str]:
    """Return the flow's name of each source of a checkpoint, by the checkpoint's own.

    :param entry: the offsets of the batch that the flow is to continue after.
    :param sources: the flow's, opened.
    :param requested_names: which is which, where someone said so.
    :raises RequestError: they do not fit, or several have no names; the message says what was found and what
        is declared.
    """
    keys = list(dict.fromkeys([*entry.sources, *checkpoint.sources()]))
    described_sources = "; ".join(f"{key}: {describe(entry.sources.get(key))}" for key in keys)
    declared = ", ".join(f"{source.name} ({source.format})" for source in sources)
    comparison = (
        f"The checkpoint at {checkpoint.path()} has the sources {described_sources}. The flow"
        f" declares {declared}."
    )
    if requested_names is not None and set(requested_names) != set(keys):
        raise RequestError(
            f"{comparison} `sources` must name each of {', '.join(keys)}; it names "
            f"{', '.join(requested_names)}. Nothing was changed."
        )
    if len(keys) != len(sources):
        raise RequestError(
            f"{comparison} Their numbers differ. Nothing was changed. Declare the sources that the old job"
            " reads, and plan again."
        )
    by_name = {source.name: source for source in sources}
    names = dict(requested_names or {}) or (
        {name: name for name in by_name} if set(keys) == set(by_name) else {}
    )
    if not names and len(keys) > 1:
        example = json.dumps(dict(zip(keys, by_name, strict=True)))
        raise RequestError(
            f"{comparison} The plan cannot match them. Nothing was changed. Set `sources`, such as {example}."
        )
    names = names or dict(zip(keys, by_name, strict=True))
    wrong = [_misfit(checkpoint, key, entry.sources.get(key), by_name[name]) for key, name in names.items()]
    if any(wrong):
        raise RequestError(
            f"{comparison} They do not fit: {'; '.join(filter(None, wrong))}. Declare what the old job"
            " reads, and plan again; nothing was changed."
        )
    return names


def _misfit(checkpoint: Checkpoint, key: str, offset: Any, source: Source) -> str | None:
    """Return why a source of a checkpoint cannot be this one of the flow; None if nothing says so."""
    wrong = check_fits(source.format, offset)
    if wrong is not None:
        return f"{key} is not {source.name}: {wrong.rstrip('.')}"
    if offset is None:
        return None
    return format_of(source).misfit(source, checkpoint, key, offset)
