"""Plans of a flow that reads Kafka or Delta. The probe of Kafka is a fake that records what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.delta.history import offset_before
from streamkeeper.errors import SourceError
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics
from tests.worlds.recover.recoveries import FLOW, planned
from tests.worlds.small_world import EVENTS, FILES, World
from tests.worlds.tables.delta_logs import ID, Table, add

KAFKA = EVENTS.replace(
    FILES, 'format="kafka", options={"kafka.bootstrap.servers": "b:1", "subscribe": "orders"}'
)
DELTA = EVENTS.replace(FILES, 'format="delta", path="{data}/source"')
STOOD: Offsets = {"orders": {"0": 6, "1": 3}}
HELD = Topics({"orders": {"0": OffsetRange(0, 10), "1": OffsetRange(2, 3)}}, {"orders": "id-1"})


def begun(world: World, text: str, offset: Any, initial: Any = None, **evidence: Any) -> World:
    """Let the flow have committed one batch up to an offset of its source ``events_raw``."""
    world.committed(text, 0, offset, initial, **evidence)
    return world


Ask = Callable[[Topics | str], list[str]]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Let the probe answer with what topics hold, or fail with these words; gives the questions, as they
    come.
    """

    def answers(topics: Topics | str) -> list[str]:
        asked: list[str] = []

        def look_at(source: Any, seconds: float = 5.0) -> Topics:
            asked.append(source.option("kafka.bootstrap.servers"))
            if isinstance(topics, str):
                raise SourceError(topics)
            return topics

        def at_time(source: Any, moment_ms: int, seconds: float = 5.0) -> Offsets:
            look_at(source)
            return {"orders": {"0": moment_ms, "1": moment_ms}}

        monkeypatch.setattr(kafka_client, "look_at", look_at)
        monkeypatch.setattr(kafka_client, "at_time", at_time)
        return asked

    return answers


@pytest.fixture
def table(world: World) -> Table:
    """Versions 0 to 2, of 5, 5 and 5 rows."""
    table = Table(Path(world.settings.data) / "source")
    table.commit(add("b0", 5))
    table.commit(add("c0", 1), add("c1", 4))
    return table


def at(version: int, index: int = -1, **more: Any) -> dict[str, Any]:
    return {**offset_before(ID, version), "index": index, **more}


def back_to_first(world: World, offset: Any, text: str, first: Any, **evidence: Any) -> Plan:
    """Plan a rewind to batch 0, which read up to ``first``; the flow stands at ``offset`` after batch 1."""
    begun(world, text, first, {"orders": {"0": 0, "1": 0}} if text == KAFKA else None, **evidence)
    folder, storage = world.home.checkpoint(1, 1), world.home.storage
    entry = OffsetEntry(1, 2, 0, 1, {}, {"events_raw": offset}, {"sourceMetadataInfo": {}})
    storage.overwrite(f"{folder}/offsets/1", write_offsets(entry))
    storage.overwrite(f"{folder}/commits/1", write_commit(CommitEntry(1, 1, 0)))
    return planned(world, "rewind", flow=FLOW, batch="0")
