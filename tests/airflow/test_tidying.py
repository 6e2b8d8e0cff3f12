"""``tidy_tables`` in Airflow: one run after another, nobody asked, and the command of its job."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from streamkeeper_airflow.recovery.tasks import SparkStep

from streamkeeper.drivers.submit import RECOVERY_JOB
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.tidy_tables import KIND
from streamkeeper.settings import PROJECT, Settings
from tests.recorder import Recorder

pytestmark = pytest.mark.usefixtures("project")
