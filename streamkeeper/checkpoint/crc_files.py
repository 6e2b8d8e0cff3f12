"""The hidden ``.X.crc`` twins that Hadoop's ChecksumFileSystem puts beside a file ``X`` on local disks.

Format: ``crc\\0``, the bytes per chunk as a big-endian int, then one big-endian CRC-32 for each chunk. Spark
4.2 does not check a twin when it reads (its FileContext goes past the checksums), but it cannot write a file
whose twin is there already.
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"crc\0"


def twin_of(name: str) -> str:
    """Give the name of the twin of a file: ``offsets/7`` has ``offsets/.7.crc``."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.crc"


def owner_of(base: str) -> str | None:
    """Give the file that a twin belongs to, both without their folder; None if ``base`` is no twin's name."""
    return base[1:-4] if base.startswith(".") and base.endswith(".crc") and len(base) > 5 else None


def checksum(content: bytes, chunk: int = 512) -> bytes:
    """Give the bytes of the twin of a file with this content."""
    sums = (zlib.crc32(content[start : start + chunk]) for start in range(0, len(content), chunk))
    return _MAGIC + struct.pack(">i", chunk) + b"".join(struct.pack(">I", value) for value in sums)


def fits(content: bytes, twin: bytes) -> bool:
    """Tell whether a twin belongs to this content."""
    if len(twin) < 8 or twin[:4] != _MAGIC:
        return False
    chunk = struct.unpack(">i", twin[4:8])[0]
    return chunk > 0 and checksum(content, chunk) == twin
