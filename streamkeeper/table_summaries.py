"""How large a version of a table is, by the summary that Delta writes beside each commit. No JVM is started, and no file listed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamkeeper.storage import open_storage


@dataclass(frozen=True)
class Summary:
    """What a version of a table comes to: its active files and their bytes; ``protocol`` and ``metadata`` as they stand in the log."""

    version: int
    files: int
    bytes: int
    protocol: dict[str, Any]
    metadata: dict[str, Any]


def read_summary(path: str, version: int) -> Summary | None:
    """Read a version's summary; None where there is none that can be read: it is a convenience of the writer's."""
    content = open_storage(path).read(f"_delta_log/{version:020d}.crc")
    if content is None:
        return None
    try:
        value = json.loads(content)
        return Summary(version, int(value["numFiles"]), int(value["tableSizeBytes"]), value["protocol"], value["metadata"])
    except (ValueError, KeyError, TypeError):
        return None
