"""Who else has to do with a table that is emptied or put back: flows that read it as a stream, and who wrote
it and is no flow of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import DELTA, Source
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.settings import Settings


def readers(settings: Settings, manifest: Manifest, path: str) -> Iterator[tuple[Flow, Source]]:
    """Give every flow that reads the table at a path or URL as a Delta source, with that source."""
    for flow in manifest.flows():
        for declared in flow.pipeline.sources_of(flow.declaration):
            source = opened_if_possible(declared, settings)
            if (
                source.format == DELTA
                and source.path is not None
                and plain_path(source.path) == plain_path(path)
            ):
                yield flow, source


def what_it_feels(source: Source) -> str:
    """Say what becomes of a reader when rows of its table are removed and written again, by how it reads
    them.
    """
    options = {name.lower(): value.lower() for name, value in source.options.items()}
    if "true" in (options.get("readchangefeed"), options.get("readchangedata")):
        return "gets every row as deleted, and what is written again as inserted"
    if "true" in (
        options.get("skipchangecommits"),
        options.get("ignorechanges"),
        options.get("ignoredeletes"),
    ):
        return "does not see the rows go, and gets what is written again a second time"
    return (
        "fails at the commit that removes rows, and is parked: it needs a reset or a full refresh of its own"
    )


def what_readers_feel(settings: Settings, manifest: Manifest, path: str) -> list[str]:
    """Give what each flow that reads a table will feel, in words."""
    return [f"{flow.full_name} {what_it_feels(source)}" for flow, source in readers(settings, manifest, path)]
