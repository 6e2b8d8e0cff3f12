"""What a look asks of the store: as much for each flow however many there are, and however old they are."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from streamkeeper.health import flows as health
from streamkeeper.health import past
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.storage import LocalStorage
from tests.worlds.flows import many_flows

MOST = 16
"""Requests for each flow: reads of small files, lists of folders with few names, one time of a file."""
HOURS = 50


def requests(root: str, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what one look asks of the store."""
    asked = Counter[str]()
    with monkeypatch.context() as patch:
        for name in ("read", "names", "modified", "size", "open", "create", "overwrite", "remove"):
            original = getattr(LocalStorage, name)

            def counted(*arguments, _name=name, _original=original):  # type: ignore[no-untyped-def]
                asked[_name] += 1
                return _original(*arguments)

            patch.setattr(LocalStorage, name, counted)
        rows = health.look_at_all(LocalStorage(root), manifest)
    assert {row.state for row in rows} == {"running"}
    return asked


def test_the_requests_of_a_look_grow_with_the_flows_and_not_with_their_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, manifest = many_flows.make(tmp_path / "few", many_flows.A_FILE)
    few = requests(world.settings.state, manifest, monkeypatch)
    assert set(few) == {"read", "names", "modified"}, "a look changes nothing"
    now = time.time()
    for flow in manifest.flows():
        home = many_flows.home_of(world.settings, flow)
        for hour in range(HOURS):
            past.keep(home, health.look(home, flow), now + 3600 * hour)
        assert len(home.storage.names(home.history("minutes"))) >= HOURS - 2
    assert requests(world.settings.state, manifest, monkeypatch) == few
    other, more = many_flows.make(tmp_path / "more", 2 * many_flows.A_FILE)
    many = requests(other.settings.state, more, monkeypatch)
    assert many.total() <= 2 * few.total()
    assert many.total() - few.total() <= MOST * many_flows.A_FILE
