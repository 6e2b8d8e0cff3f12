"""One Spark session for all tests that can share one, with the very settings that a flow's driver is
submitted with.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper.declare.model import AppendFlow, Location
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.testing import PipelineTest
from tests.spark_conf.jvm import long_lived
from tests.worlds.flow_world import Flowbed
from tests.worlds.sources.source_world import DeltaBed, KafkaBed
from tests.worlds.state_stores import CHANGELOG, PROVIDER, STATE_FORMAT
from tests.worlds.tables.backup_world import Recoverer
from tools.kafka_broker import KafkaBroker

sys.path.insert(0, str(PROJECT / "spark_jobs"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    bare = AppendFlow("tests", "t", (), "", "1 second", {}, Location("tests", 1))
    builder = SparkSession.builder.appName("tests").master("local[2]")
    for name, value in spark_settings(Settings.from_environment({}), bare).items():
        builder = builder.config(name, value)
    # py4j says at the interpreter's end that it closes, to a stream that pytest has closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = builder.config("spark.sql.warehouse.dir", "/tmp/streamkeeper-tests-warehouse")
    with long_lived():
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Kafka broker for the whole run, in a process group of its own; its address."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def kafka(tmp_path: Path, spark: SparkSession, brokers: str) -> Callable[..., KafkaBed]:
    """Make a flow that reads a topic of its own."""
    return lambda **text: KafkaBed.make(tmp_path / "a bed", spark, brokers, **text)


@pytest.fixture
def delta(tmp_path: Path, spark: SparkSession) -> Callable[..., DeltaBed]:
    """Make a flow that reads a Delta table of its own."""
    return lambda **text: DeltaBed.make(tmp_path / "a bed", spark, **text)


@pytest.fixture(autouse=True)
def _unpinned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take back what a driver set in the shared session: elsewhere a session is its own process's, and
    ends with it.
    """
    yield
    if "spark" in request.fixturenames:
        for name in (PROVIDER, CHANGELOG, STATE_FORMAT, "spark.sql.streaming.internal.stateStore.partitions"):
            request.getfixturevalue("spark").conf.unset(name)


@pytest.fixture
def make_bed(tmp_path: Path, spark: SparkSession) -> Callable[..., Flowbed]:
    """Make a flow in folders of its own; ``make_bed(pipeline(...))`` for another pipeline file."""
    return lambda text=None, **named: Flowbed.make(tmp_path / "a bed", spark, text, **named)


@pytest.fixture
def pipeline_test(tmp_path: Path, spark: SparkSession) -> Callable[..., PipelineTest]:
    """Make a test of a pipeline file, as streamkeeper.testing.fixtures does."""
    return lambda file, **more: PipelineTest(file, tmp_path / "a test", spark, **more)


@pytest.fixture
def bed(make_bed: Callable[..., Flowbed]) -> Flowbed:
    return make_bed()


@pytest.fixture
def at_work(bed: Flowbed) -> Recoverer:
    """Recoveries of the bed's flow."""
    return Recoverer.of(bed)
