"""What a rehearsal must leave as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path


def original(root: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the time of every file that flows keep: all but ledgers and manifests."""
    return {
        str(file.relative_to(root)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for part in ("state", "warehouse", "data")
        for file in (root / part).rglob("*")
        if file.is_file() and not {"ledger", "manifests", "__rehearsals"} & set(file.parts)
    }
