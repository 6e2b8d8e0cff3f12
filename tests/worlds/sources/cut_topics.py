"""Partitions of a real broker that end earlier than they did, as after an unclean election of a leader."""

from __future__ import annotations

from pathlib import Path

from tools.kafka_broker import KafkaBroker

_HEADER = 12
"""Bytes before a batch of records: its first offset (8), and its length without these (4)."""


def cut_off(broker: KafkaBroker, topic: str, partition: int, end: int) -> dict[Path, bytes]:
    """Let a partition end at an offset that begins a batch; return its files as they were."""
    broker.stop()
    folder = broker.folder / "data" / f"{topic}-{partition}"
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for file, content in before.items():
        if file.suffix == ".log":
            file.write_bytes(_until(content, end))
    _start(broker, before)
    return before


def put_back(broker: KafkaBroker, files: dict[Path, bytes]) -> None:
    """Let a partition hold again what it had."""
    broker.stop()
    for file, content in files.items():
        file.write_bytes(content)
    _start(broker, files)


def _start(broker: KafkaBroker, files: dict[Path, bytes]) -> None:
    """Start a broker that reads the files as after a crash, and makes their indexes again."""
    for file in files:
        if file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()
    (broker.folder / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    broker.start()


def _until(content: bytes, end: int) -> bytes:
    at = 0
    while at < len(content) and int.from_bytes(content[at : at + 8]) < end:
        at += _HEADER + int.from_bytes(content[at + 8 : at + _HEADER])
    return content[:at]
