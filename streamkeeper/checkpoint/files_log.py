"""Log of a files source: the processed files, each with the log's batch that read it.

``sources/<source>/<N>`` lists the files of batch N. Every tenth is ``<N>.compact`` and lists all files so
far. It grows without bound (SPARK-30462). So it is read line by line if the storage can do that, and counted
without parsing its lines.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from streamkeeper.checkpoint.log_entries import FileEntry, damaged, gaps, is_number, parse_file_entry
from streamkeeper.errors import CheckpointError
from streamkeeper.storage import LocalStorage, Storage

_COMPACT = re.compile(r"([0-9]+)\.compact")
_BATCH = re.compile(rb'"batchId":(-?[0-9]+)\}?\s*$')
_ENTRIES = re.compile(
    rb'(?:\{"path":"[\x20\x21\x23-\x5b\x5d-\x7e]++","timestamp":[0-9]{1,18},"batchId":[0-9]{1,18}\}\n)*+'
)
"""Lines as Spark writes nearly all of them: a URL, in ASCII and without an escape. Others are parsed."""
_PRINTABLE = bytes(sign for sign in range(0x20, 0x7F) if sign != 0x5C) + b"\n"
_PARSED = 1 << 24
"""Bytes of a list that are looked at field by field; of what follows, the lines that are not plain ASCII."""
_BLOCK = 1 << 20
_TAIL = 4096


@dataclass(frozen=True)
class FilesLog:
    """Processed files of one source; ``folder`` is a name in the storage. Only the methods read files."""

    storage: Storage
    folder: str

    def batches(self) -> tuple[list[int], list[int]]:
        """Return the plain batches and the compacted ones, each ascending, from one listing."""
        names = self.storage.names(self.folder)
        plain = sorted(int(name) for name in names if is_number(name))
        compact = sorted(
            int(match[1]) for match in map(_COMPACT.fullmatch, names) if match and is_number(match[1])
        )
        return plain, compact

    def last_batch(self) -> int | None:
        """Return the newest batch. It may not be processed yet: compare it with the committed offset."""
        plain, compact = self.batches()
        return max([*plain[-1:], *compact[-1:]], default=None)

    def entries(self, upto: int | None = None) -> Iterator[FileEntry]:
        """Read the processed files, oldest batch first, up to and including the log's batch ``upto``: the
        ``logOffset`` of the source's offset.

        :raises CheckpointError: a batch is missing, the log ends before ``upto``, or a file of it is damaged.
        """
        for name, number in self._names(upto):
            for entry in self._parsed(name, self._lines(name)):
                if upto is None or number <= upto or entry.batch <= upto:
                    yield entry

    def newest_entries(self, upto: int) -> list[FileEntry]:
        """Read the entries of the last batches up to and including ``upto``, in bounded time: those after the
        newest compacted batch, and the last mebibyte of that one.

        :raises CheckpointError: a file of the log is damaged.
        """
        plain, compact = self.batches()
        start = max((number for number in compact if number <= upto), default=None)
        entries = [] if start is None else self._last_entries(f"{self.folder}/{start}.compact")
        for number in (number for number in plain if (-1 if start is None else start) < number <= upto):
            name = f"{self.folder}/{number}"
            entries += self._parsed(name, self._lines(name))
        return entries

    def entries_after(self, after: int, upto: int) -> list[FileEntry]:
        """Read the entries of the batches after ``after`` up to and including ``upto``; the whole log only
        where the end of it does not hold them all.

        :raises CheckpointError: a batch is missing, or a file of the log is damaged.
        """
        newest: Iterable[FileEntry] = self.newest_entries(upto)
        # Batches are listed one after the other, so what is older than all of them was cut off in none.
        if not any(entry.batch <= after for entry in newest):
            newest = self.entries(upto)
        return [entry for entry in newest if after < entry.batch <= upto]

    def _last_entries(self, name: str) -> list[FileEntry]:
        self._check_ends(name)
        _, tail = _head_and_tail(self.storage, name, _BLOCK)
        # The first line is the version, or cut off.
        return list(self._parsed(name, (line for line in tail.split(b"\n")[1:] if line)))

    def _parsed(self, name: str, lines: Iterable[bytes]) -> Iterator[FileEntry]:
        path = self.storage.path(name)
        return (parse_file_entry(line.decode(errors="replace"), path) for line in lines)

    def count(self, upto: int | None = None) -> int:
        """Return the number of processed files up to and including batch ``upto``, without parsing them.

        Lines are counted. In a compacted batch later than ``upto``, the batch at the end of each line is
        compared.

        :raises CheckpointError: a batch is missing, or a file of the log is damaged.
        """
        return sum(
            self._count_lines(name) if upto is None or number <= upto else self._count_upto(name, upto)
            for name, number in self._names(upto)
        )

    def damage(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each damaged file that a start reads, with its damage: the newest compacted one
        and all after it, read whole, a block at a time.
        """
        plain, compact = self.batches()
        later = [f"{self.folder}/{number}" for number in plain if number > max(compact[-1:], default=-1)]
        for name in (*(f"{self.folder}/{number}.compact" for number in compact[-1:]), *later):
            damage = self._ends(name) or self._content_damage(name)
            if damage is not None:
                yield name, damage

    def _content_damage(self, name: str) -> str | None:
        """Return what is wrong with the first damaged line of a file; None if nothing is."""
        remainder, read, at_version = b"", 0, True
        for block in self._blocks(name):
            remainder, read = remainder + block, read + len(block)
            if at_version:
                _, newline, remainder = remainder.partition(b"\n")
                at_version = False
                if not newline:
                    return None  # a list of no files
            end = remainder.rfind(b"\n") + 1
            # Zeros and garbage are what a disk leaves behind; each field of a million files takes a second.
            if read <= _PARSED or remainder[:end].translate(None, _PRINTABLE):
                for line in _odd_lines(remainder, end):
                    if (damage := self._line_damage(name, line)) is not None:
                        return damage
            remainder = remainder[end:]
        return self._line_damage(name, remainder) if remainder else None

    def _line_damage(self, name: str, line: bytes) -> str | None:
        try:
            parse_file_entry(line.decode(), self.storage.path(name))
        except (CheckpointError, UnicodeDecodeError):
            return f"is damaged: it holds {line[:60]!r}, which is not a processed file"
        return None

    def _blocks(self, name: str) -> Iterator[bytes]:
        with _opened(self.storage, name) as file:
            while block := file.read(_BLOCK):
                yield block

    def sound_upto(self) -> int:
        """Return the newest batch up to which every list can be read; -1 if there is none."""
        bad = [int(name.rsplit("/", 1)[-1].partition(".")[0]) for name, _ in self.damage()]
        lacking = [*bad, *itertools.islice(self.missing(), 1)]
        newest = self.last_batch()
        if not lacking:
            return -1 if newest is None else newest
        compact = self.batches()[1][-1:]
        return -1 if min(lacking) in compact else min(lacking) - 1

    def missing(self) -> Iterator[int]:
        """Yield the batches missing after the newest compacted one, or from 0 if there is none."""
        plain, compact = self.batches()
        if plain:
            yield from itertools.chain.from_iterable(
                gaps(plain, compact[-1] + 1 if compact else 0, plain[-1])
            )

    def _names(self, upto: int | None) -> list[tuple[str, int]]:
        """Return the files to read, by batch: the newest usable compacted one, then every later plain one."""
        plain, compact = self.batches()
        start, names = -1, []
        for number in reversed(compact):
            name = f"{self.folder}/{number}.compact"
            if (damage := self._ends(name)) is None:
                start, names = number, [(name, number)]
                break
            # The files of batch N are listed only in N.compact.
            if upto is None or number <= upto:
                raise damaged(self.storage.path(name), damage)
        later = [number for number in plain if number > start and (upto is None or number <= upto)]
        last = upto if upto is not None else max(later, default=start)
        if lacking := list(gaps(later, start + 1, last + 1)):
            more = sum(gap.stop - gap.start for gap in lacking) - 1
            others = f", and {more:,} more" if more else ""
            damage = f"lacks batch {lacking[0].start} of the processed files{others}"
            raise damaged(self.storage.path(self.folder), damage)
        return names + [(f"{self.folder}/{number}", number) for number in later]

    def _ends(self, name: str) -> str | None:
        """Return what is wrong with a file by its first and last bytes; None if nothing is."""
        head, tail = _head_and_tail(self.storage, name)
        if not head:
            return "is empty: the process or the machine stopped while it was written"
        version, newline, _ = head.partition(b"\n")
        if version.rstrip() != b"v1":
            return f"starts with {version[:30]!r} instead of the version v1"
        if newline and not tail.rstrip(b"\n").endswith(b"}"):
            return f"is cut off: it ends with {tail[-30:]!r}"
        return None

    def _check_ends(self, name: str) -> None:
        if (damage := self._ends(name)) is not None:
            raise damaged(self.storage.path(name), damage)

    def _lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines after the version."""
        with _opened(self.storage, name) as file:
            self._check_version(name, file.readline())
            yield from (line for line in file if line != b"\n")

    def _check_version(self, name: str, first: bytes) -> None:
        first = first.rstrip(b"\n")
        if first != b"v1":
            raise damaged(self.storage.path(name), f"starts with {first[:30]!r} instead of the version v1")

    def _count_lines(self, name: str) -> int:
        self._check_ends(name)
        count, last = 0, b""
        for block in self._blocks(name):
            count += block.count(b"\n")
            last = block
        return count - (len(last) - len(last.rstrip(b"\n")))

    def _count_upto(self, name: str, upto: int) -> int:
        count = 0
        for line in self._lines(name):
            match = _BATCH.search(line, max(0, len(line) - 40))
            count += (int(match[1]) if match else next(self._parsed(name, [line])).batch) <= upto
        return count


def _odd_lines(content: bytes, end: int) -> Iterator[bytes]:
    """Yield the lines, up to ``end``, that are not exactly as Spark writes nearly all of them."""
    start = 0
    while start < end:
        as_usual = _ENTRIES.match(content, start, end)
        start = as_usual.end() if as_usual else start
        if start < end:
            after = content.index(b"\n", start) + 1
            yield content[start : after - 1]
            start = after


def _opened(storage: Storage, name: str) -> BinaryIO:
    """Return a file to read: a local one is not read whole, one of a store is, by one request."""
    return storage.open(name) if isinstance(storage, LocalStorage) else BytesIO(storage.read(name) or b"")


def _head_and_tail(storage: Storage, name: str, size: int = _TAIL) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; a local file is not read whole."""
    with _opened(storage, name) as file:
        head = file.read(size)
        file.seek(max(0, file.seek(0, 2) - size))
        return head, file.read()


def plain_path(uri: str) -> str:
    """Return the path of a file or folder by its URI: ``/data/a b.json`` for ``file:///data/a%20b.json``.

    Schemes other than ``file`` keep their host. Local paths are as Spark writes them: no ``//``, no ``..``.
    None ends with a slash, as locations in a catalog may.
    """
    parsed = urlsplit(uri)  # urlparse ends the path at a semicolon of its last name
    if parsed.scheme in ("", "file"):
        return os.path.normpath(unquote(parsed.path) if parsed.scheme else uri)
    return f"{parsed.scheme.replace('s3a', 's3')}://{parsed.netloc}{unquote(parsed.path).rstrip('/')}"
