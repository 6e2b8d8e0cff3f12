"""Which source of a flow each source of an adopted checkpoint is: by what its positions say, never by its
place in the query alone.

The order in which a query reads its sources is Spark's, and need not be the one in which they are declared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import RequestError
from streamkeeper.sources.formats import format_of

_MOST = 6
"""Sources up to which every way to name them is tried."""


def match_sources(
    checkpoint: Checkpoint, entry: OffsetEntry, sources: Sequence[Source], asked: Mapping[str, str] | None
) -> dict[str, str]:
    """Give the flow's name of each source of a checkpoint, by the checkpoint's own.

    :param entry: the offsets of the batch that the flow is to go on after.
    :param sources: the flow's, opened.
    :param asked: which is which, where someone said so.
    :raises RequestError: they do not fit, or could be told apart in several ways; the message says what was
        found and what is declared.
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
    ways = [dict(asked)] if asked is not None else _ways(keys, list(by_name))
    misfits = [
        [_misfit(checkpoint, key, entry.sources.get(key), by_name[name]) for key, name in way.items()]
        for way in ways
    ]
    fitting = [way for way, wrong in zip(ways, misfits, strict=True) if not any(wrong)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        why = "; ".join(dict.fromkeys(item for item in misfits[0] if item))
        raise RequestError(
            f"{told} They do not fit: {why}. Declare what the old job reads, and plan anew; nothing was"
            " touched."
        )
    example = json.dumps(fitting[0])
    raise RequestError(
        f"{told} Which is which cannot be told. Say so in `sources`, such as {example}; nothing was touched."
    )


def _ways(keys: list[str], names: list[str]) -> list[dict[str, str]]:
    """Give the ways in which sources may be named: as they are where they have names, else every order, the
    declared one first.
    """
    if set(keys) == set(names):
        return [{name: name for name in names}]
    orders = permutations(names) if len(names) <= _MOST else [tuple(names)]
    return [dict(zip(keys, order, strict=True)) for order in orders]


def _misfit(checkpoint: Checkpoint, key: str, offset: Any, source: Source) -> str | None:
    """Say why a source of a checkpoint cannot be this one of the flow's; None where nothing speaks against
    it.
    """
    wrong = check_fits(source.format, offset)
    if wrong is not None:
        return f"{key} is not {source.name}: {wrong.rstrip('.')}"
    if offset is None:
        return None
    return format_of(source).misfit(source, checkpoint, key, offset)
