"""A small world of its own for each test of the core. No test here starts a JVM or Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorder import lay_jars
from tests.worlds.small_world import CHANGES, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty world with one pipeline, ``events``."""
    made = World(tmp_path)
    made.declare()
    lay_jars(made.settings.jars)
    (tmp_path / "data" / "events").mkdir(parents=True)
    return made


@pytest.fixture
def stands(world: World) -> World:
    """Three batches of one file (two rows each) are done, two files wait. The table is at version 3."""
    world.processed(3)
    world.add_files(2)
    return world


@pytest.fixture
def keyed(world: World) -> World:
    """The same, where the flow keeps its table by key."""
    world.declare(CHANGES % "")
    world.processed(3)
    world.add_files(2)
    return world
