"""Secrets in every field of every form, and in what parks a flow: none reaches an error, a plan, its words or
the ledger.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.flows import ledger
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.requests.form import FormField
from tests.worlds.recover.asked import ASKED
from tests.worlds.recover.recoveries import approve, carry_out, planned
from tests.worlds.small_world import World

SECRET = "hunter2-hunter2"
TEXTS = {
    "pair": f"password={SECRET}",
    "address": f"https://ada:{SECRET}@host/x",
    "jaas": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="{SECRET}";'
    ),
    "header": f"Authorization: Bearer {SECRET}",
    "signed": f"https://host/x?sv=1&sig={SECRET}",
    "azure": f"Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey={SECRET}",
}
OBJECTS: dict[str, dict[str, Any]] = {
    "options": {
        "kafka.sasl.jaas.config": SECRET,
        "password": SECRET,
        "fs.azure.account.key.lake.dfs.core.windows.net": SECRET,
    },
    "of a source": {"events_raw": {"token": SECRET, "logOffset": f"password={SECRET}"}},
}


@pytest.fixture
def parked(world: World) -> World:
    """A flow that has done three batches and is parked; what Spark said of it is full of secrets."""
    world.processed(3)
    world.park()
    park = world.home.storage.read(world.home.hold("park")) or b""
    inner = f'"context": {{"kafka.sasl.jaas.config": "{SECRET}", "message": "password={SECRET}"}}, "meaning"'
    world.home.storage.overwrite(world.home.hold("park"), park.replace(b'"meaning"', inner.encode(), 1))
    return world


def cases(name: str) -> Iterator[tuple[str, str, Any]]:
    """Return each field of a kind with each label and value that is tried in it."""
    for field in kind(name).form(Manifest("", (), {}, {})):
        yield from ((field.name, label, value) for label, value in _values(field))


def _values(field: FormField) -> Iterator[tuple[str, Any]]:
    if field.type == "string" and field.name in ("reason", "path", "predicate"):
        yield from TEXTS.items()
    elif field.type == "string":
        yield "pair", TEXTS["pair"]
    else:
        yield from OBJECTS.items()


def said_by(world: World, name: str, values: dict[str, Any]) -> str:
    """Plan and begin a recovery of these values, and give all that it says and keeps."""
    try:
        made = approve(world, planned(world, name, **values))
        evidence = carry_out(world, kind(name).step_names[0])
    except StreamkeeperError as error:
        return f"{error}{kept(world)}"
    return f"{plans.to_json(made)}{explain.as_markdown(made)}{explain.as_text(made)}{evidence}{kept(world)}"


def kept(world: World) -> str:
    events = [asdict(event) for event in ledger.open(world.home.storage, "events", "r1").events()]
    files = [file.read_text() for file in (world.root / "state" / "events" / "ledger").rglob("*.json")]
    return f"{events}{files}"


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_secret_in_a_field_reaches_nothing_that_is_shown_or_kept(name: str, parked: World) -> None:
    kept = Path(shutil.copytree(parked.root, f"{parked.root}-kept"))
    told = []
    for field, label, value in cases(name):
        said = said_by(parked, name, {**ASKED[name], field: value})
        if not said or SECRET in said:
            told.append(f"{field}, {label}: {said}")
        shutil.rmtree(parked.root)
        shutil.copytree(kept, parked.root)
    assert told == []


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_secret_in_the_words_of_a_park_reaches_nothing_that_is_shown_or_kept(
    name: str, parked: World
) -> None:
    said = said_by(parked, name, {**ASKED[name], "reason": TEXTS["pair"]})
    assert name in said and SECRET not in said


def test_a_value_that_would_be_kept_as_another_is_refused_before_anything_is_touched(parked: World) -> None:
    asked = {**ASKED["backfill"], "predicate": "event_id = 'x' AND token = 'abc'"}
    with pytest.raises(
        RequestError,
        match=r"predicate holds what reads like a secret \(event_id = 'x' AND token = \*\*\*\).*IN or LIKE",
    ):
        planned(parked, "backfill", **asked)
    other = planned(parked, "backfill", **{**asked, "predicate": "token IN ('abc')"})
    assert other.request["predicate"] == "token IN ('abc')"
