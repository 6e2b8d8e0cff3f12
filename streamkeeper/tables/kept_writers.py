"""Flows that are not declared, or not any more, and that may have written a table: found by what is kept of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from streamkeeper.flows.backfill_flow import is_backfill
from streamkeeper.flows.files import FlowHome, kept_flows
from streamkeeper.flows.side_flow import is_beside
from streamkeeper.storage import Storage


def undeclared(storage: Storage, pipeline: str, declared: Collection[str]) -> Iterator[FlowHome]:
    """Give the flows of a pipeline that something is kept of, but those that are named and those that
    recoveries made for themselves.

    :param declared: their names within the pipeline.
    """
    homes = (home for home in kept_flows(storage, pipeline) if home.flow not in declared)
    return (home for home in homes if not is_backfill(home.flow) and not is_beside(home.flow))
