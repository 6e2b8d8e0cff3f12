"""The session of a driver: the master of spark-submit, then what is declared, then other settings of
spark-submit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.spark.jvm import classes

from streamkeeper.drivers.submit import driver
from streamkeeper.errors import SettingsError
from tests.worlds.flow_world import Flowbed, pipeline

JOB = """
from streamkeeper_jobs.spark.session import open_session
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings

settings = Settings.from_environment()
loaded = load_pipeline(settings.pipelines / "events.py", settings.data)
context = open_session(settings, Flow(loaded, loaded.flow("clean_events"), "")).sparkContext
names = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.ui.showConsoleProgress")
print("found", context.master, *map(context.getConf().get, names))
"""


@pytest.mark.long
def test_a_driver_has_the_master_of_spark_submit_and_its_settings_where_the_flow_declares_no_others(
    bed: Flowbed, tmp_path: Path
) -> None:
    declared = {"spark.sql.session.timeZone": "UTC"}
    bed.declare(pipeline().replace('target="events",', f'target="events", spark_conf={declared},'))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    asked = driver(bed.settings, [bed.flow()], "local[3]")
    told = ["--conf", "spark.sql.session.timeZone=CET", "--conf", "spark.ui.showConsoleProgress=true"]
    at = asked.command().index(str(asked.application))
    done = subprocess.run(
        [*asked.command()[:at], *told, str(job)],
        env={**asked.environment, "PYTHONPATH": f"{asked.environment['PYTHONPATH']}:spark_jobs"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "found local[3] 3 UTC true" in done.stdout, done.stdout[-3000:]


def test_a_class_that_no_jar_has_is_named_with_the_way_out(spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match=r"class streamkeeper\.cdc\.Later: .* `make setup`"):
        classes(spark)("streamkeeper.cdc.Later")
