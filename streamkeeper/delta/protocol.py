"""Whether a Delta table can be read and written by its path: a catalog-managed one has commits that only its
catalog knows (Delta's protocol, "Catalog-managed tables").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.storage import Storage, open_storage

CATALOG_MANAGED = ("catalogManaged", "catalogOwned-preview")
"""Names of the table feature: the present one, and that of its preview."""


def why_not_by_path(path: str) -> str | None:
    """Return why the table at a path or URL cannot be used, in words; None if it can, or there is no table.

    A log whose protocol is only in a checkpoint is let pass: Delta itself refuses such a table by its path.

    :raises CheckpointError: the log is damaged.
    """
    protocol = _protocol(path)
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    feature = next((name for name in CATALOG_MANAGED if name in features), None)
    if feature is None:
        return None
    return (
        f"the Delta table at {path} is catalog-managed (table feature {feature}): its newest commits are in"
        " its catalog and not in its log, which Streamkeeper reads and writes by path. Nothing was touched."
        " Use an external table without that feature"
    )


def _protocol(path: str) -> dict[str, Any]:
    storage, versions = open_storage(path), delta_log.versions(path)
    if not versions:
        return {}
    summary = storage.read(f"{delta_log.LOG}/{versions[0]:020d}.crc")
    try:
        protocol = next(_of(storage, versions)) if summary is None else dict(json.loads(summary)["protocol"])
        delta_log.check_action({"protocol": protocol})
        return protocol
    except (ValueError, KeyError, TypeError):  # writers need not write a valid summary; the commits count
        return next(_of(storage, versions))


def _of(storage: Storage, versions: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the protocols in some commits, newest first, and then one without features."""
    for version in versions:
        content = storage.read(f"{delta_log.LOG}/{version:020d}.json") or b""
        for line in content.splitlines() if b'"protocol"' in content else ():
            protocol = delta_log.action_in(storage, version, line).get("protocol")
            if isinstance(protocol, dict):
                yield protocol
    yield {}
