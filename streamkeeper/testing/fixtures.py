"""Fixtures of pytest: ``pytest_plugins = ["streamkeeper.testing.fixtures"]`` in a ``conftest.py``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamkeeper.declare.model import AppendFlow, Location
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper.testing.pipeline_test import PipelineTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests, with the settings that a flow's driver is submitted with."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    bare = AppendFlow("tests", "t", (), "", "1 second", {}, Location("tests", 1))
    builder = SparkSession.builder.appName("tests").master(DEFAULT_MASTER)
    for name, value in spark_settings(Settings.from_environment(), bare).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def pipeline_test(tmp_path: Path, spark: SparkSession) -> Callable[..., PipelineTest]:
    """Make a test of a pipeline file: ``pipeline_test("pipelines/orders.py", schemas={…})``."""
    return lambda file, **more: PipelineTest(file, tmp_path / "pipeline test", spark, **more)
