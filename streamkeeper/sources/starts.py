"""Starts in each format of source, by the name that a declaration gives it. A driver needs no more."""

from __future__ import annotations

from typing import Any

from streamkeeper.declare.model import DELTA, FILE_FORMATS, KAFKA, RATE, SOCKET, Source
from streamkeeper.sources.base.format import SourceFormat
from streamkeeper.sources.delta.start import DeltaStarts
from streamkeeper.sources.files.format import Files
from streamkeeper.sources.kafka.start import KafkaStarts
from streamkeeper.sources.rate import Rate
from streamkeeper.sources.socket import Socket

STARTS: dict[str, SourceFormat[Any, Any]] = {
    **dict.fromkeys(FILE_FORMATS, Files()),
    KAFKA: KafkaStarts(),
    DELTA: DeltaStarts(),
    RATE: Rate(),
    SOCKET: Socket(),
}


def starts_of(source: Source) -> SourceFormat[Any, Any]:
    """Return the starts in a source's format."""
    return STARTS[source.format]
