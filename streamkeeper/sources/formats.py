"""The formats of source as plans and the monitor ask for them, by the name that a declaration gives them.

Each is one class, whose starts a driver shares (:mod:`streamkeeper.sources.starts`).
"""

from __future__ import annotations

from typing import Any

from streamkeeper.declare.model import DELTA, FILE_FORMATS, KAFKA, RATE, SOCKET, Source
from streamkeeper.sources.base.format import PlannedFormat
from streamkeeper.sources.delta.format import Delta
from streamkeeper.sources.files.format import Files
from streamkeeper.sources.kafka.format import Kafka
from streamkeeper.sources.rate import Rate
from streamkeeper.sources.socket import Socket

FORMATS: dict[str, PlannedFormat[Any, Any]] = {
    **dict.fromkeys(FILE_FORMATS, Files()),
    KAFKA: Kafka(),
    DELTA: Delta(),
    RATE: Rate(),
    SOCKET: Socket(),
}


def format_of(source: Source) -> PlannedFormat[Any, Any]:
    """Return the format of a source."""
    return FORMATS[source.format]
