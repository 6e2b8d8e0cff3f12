"""Effects of a files source's options on its history: files that Spark skips for their age, or removes.

Facts (Spark 4.2.0, FileStreamSource, read and run): a source whose checkpoint lists files silently skips each
unread one that is older than the newest listed by more than ``maxFileAge``, and forgets the listed ones that
are, so that one of them which is written again is read again; while nothing is listed yet, all are read.
``latestFirst`` with a limit turns that off. Spark's own age is a week; where none is declared, Streamkeeper
gives :data:`EVER`. ``cleanSource`` deletes or moves files after their batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.declare.model import Source
from streamkeeper.sources.files.listing import SourceFile

OFF, DELETE, ARCHIVE = "off", "delete", "archive"

EVER = "1000000000d"
"""An age that no file has, by whatever clock."""

_TIME = re.compile(r"([0-9]+)([a-z]*)")
_UNITS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class FileOptions:
    """The options of one source that affect its history.

    ``max_age`` is empty if none is declared; ``max_age_ms`` is None if no age applies, or it is unknown.
    """

    max_age: str
    max_age_ms: int | None
    latest_first: bool
    clean: str
    archive: str

    @classmethod
    def of(cls, source: Source) -> FileOptions:
        """Return the options of a source."""
        latest_first = source.option("latestFirst", "false").strip().lower() == "true"
        limited = bool(source.option("maxFilesPerTrigger") or source.option("maxBytesPerTrigger"))
        age = source.option("maxFileAge").strip()
        clean = source.option("cleanSource", OFF).strip().lower()
        counts = not (latest_first and limited)
        return cls(
            age,
            _milliseconds(age) if counts else None,
            latest_first,
            clean,
            source.option("sourceArchiveDir").rstrip("/"),
        )

    def skipped(self, newest_ms: int | None, files: Iterable[SourceFile]) -> list[SourceFile]:
        """Return the files that a generation skips for their age.

        :param newest_ms: the time of the newest file that its checkpoint lists; None if it lists none.
        :param files: that it does not list.
        """
        if newest_ms is None or self.max_age_ms is None:
            return []
        return [file for file in files if file.modified_ms < newest_ms - self.max_age_ms]

    def notes(self, skipped: int, gone: list[str], *, skips_on: bool) -> Iterator[str]:
        """Yield the effects of the options on a start.

        :param skipped: how many unread files are skipped for their age.
        :param gone: paths of processed files that no longer exist.
        :param skips_on: the start leaves unread files out, and lists them as processed.
        """
        if skipped:
            yield (
                f"{skipped:,} unread files are older than the newest processed one by more than maxFileAge"
                f" ({self.max_age}): Spark skips them silently. They count as lost; with a longer"
                " maxFileAge they are read"
            )
        yield from self._age()
        yield from self._cleaning(gone, skips_on)

    def _age(self) -> Iterator[str]:
        if self.latest_first:
            limited = "" if self.max_age_ms is not None else ", and for no file its age (maxFileAge) counts"
            yield f"latestFirst is on: unread files are read newest first{limited}"
        elif self.max_age and self.max_age_ms is None:
            yield (
                f"maxFileAge is {self.max_age}, which cannot be read here: how many unread files Spark skips"
                " for their age is unknown"
            )
        elif self.max_age:
            yield (
                f"maxFileAge is {self.max_age}: Spark silently skips a new file whose time is more than"
                f" {self.max_age} before the newest file's, and reads one again that is written again when it"
                " was older than that"
            )

    def _cleaning(self, gone: list[str], skips_on: bool) -> Iterator[str]:
        if self.clean == OFF:
            return
        action = f"moved to {self.archive}" if self.clean == ARCHIVE else "deleted"
        yield (
            f"cleanSource is {self.clean}: files are {action} once they are processed, so they cannot be read"
            " again"
        )
        if skips_on:
            yield (
                f"cleanSource is {self.clean}: files that this start leaves out count as processed, and are"
                f" {action} unread"
            )
        archived = sum(self._archived(path) for path in gone) if self.clean == ARCHIVE else 0
        if archived:
            yield (
                f"{archived:,} of the processed files that are gone are in {self.archive}: moved back, they"
                " can be read again"
            )

    def _archived(self, path: str) -> bool:
        """Return whether a file is in the archive, under its whole path; only a local archive is checked."""
        return "://" not in self.archive and Path(f"{self.archive}{path}").is_file()


def _milliseconds(text: str) -> int | None:
    """Return milliseconds of a time as Spark reads it: a number and a unit, by default ms; None if none."""
    match = _TIME.fullmatch(text.lower())
    unit = _UNITS.get(match[2]) if match else None
    return int(int(match[1]) * unit) if match and unit is not None else None
