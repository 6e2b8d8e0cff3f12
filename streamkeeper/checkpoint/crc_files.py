"""Hidden ``.X.crc`` twins: Hadoop's ChecksumFileSystem puts one beside each file ``X`` on local disks.

Format: ``crc\\0``, the bytes per chunk as a big-endian int, then one big-endian CRC-32 for each chunk. Spark
4.2 does not check a twin when it reads (its FileContext bypasses the checksums). But it cannot write a file
whose twin exists already.
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"crc\0"


def twin_of(name: str) -> str:
    """Return the name of a file's twin: ``offsets/.7.crc`` for ``offsets/7``."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.crc"


def owner_of(base: str) -> str | None:
    """Return the file of a twin, both without their folder; None if ``base`` is not a twin's name."""
    return base[1:-4] if base.startswith(".") and base.endswith(".crc") and len(base) > 5 else None


def checksum(content: bytes, chunk: int = 512) -> bytes:
    """Return the bytes of the twin for a file's content."""
    sums = (zlib.crc32(content[start : start + chunk]) for start in range(0, len(content), chunk))
    return _MAGIC + struct.pack(">i", chunk) + b"".join(struct.pack(">I", value) for value in sums)


def fits(content: bytes, twin: bytes) -> bool:
    """Return whether a twin belongs to this content."""
    if len(twin) < 8 or twin[:4] != _MAGIC:
        return False
    chunk = struct.unpack(">i", twin[4:8])[0]
    return chunk > 0 and checksum(content, chunk) == twin
