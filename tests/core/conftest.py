"""A small world of its own for each test of the core. No test here starts a JVM or Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.small_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty world with one pipeline, ``events``."""
    made = World(tmp_path)
    made.declare()
    (tmp_path / "data" / "events").mkdir(parents=True)
    return made
