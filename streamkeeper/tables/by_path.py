"""Refusal of tables that cannot be read and written by their path, before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.declare.model import quarantine_of
from streamkeeper.delta.protocol import why_not_by_path
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings


def check_by_path(settings: Settings, flow: Flow) -> None:
    """Check that no table that a flow reads or writes is catalog-managed.

    :param flow: with its sources opened.
    :raises DeclarationError: one is.
    """
    for subject, path in _tables(settings, flow):
        reason = why_not_by_path(path)
        if reason is not None:
            raise DeclarationError(f"{subject}: {reason}.")


def _tables(settings: Settings, flow: Flow) -> Iterator[tuple[str, str]]:
    """Yield the tables of a flow, each with what it is to the flow and its path or URL."""
    declared = flow.declaration
    for name in filter(None, (declared.target, quarantine_of(declared))):
        table = flow.pipeline.table(name)
        if table is None or table.sink is None:
            yield f"{declared.location}: the table {name}", settings.table_path(name)
    for source in flow.pipeline.sources_of(declared):
        if source.kind.table and source.path is not None:
            yield f"{source.location}: the source {source.name}", source.path
