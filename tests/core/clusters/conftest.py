"""A driver's submission, for the clusters of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.drivers import submit
from streamkeeper.drivers.submit import Submission
from tests.worlds.small_world import World, write_manifest

Submit = Callable[[str], Submission]


@pytest.fixture
def submission(world: World, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Return the submission of a driver to a master; its environment holds the secret ``s3cr3t``."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    world.more["STREAMKEEPER_PIPELINE_ENV"] = "AWS_*"
    write_manifest(world.settings)
    return lambda master: submit.driver(world.settings, [world.flow], master)
