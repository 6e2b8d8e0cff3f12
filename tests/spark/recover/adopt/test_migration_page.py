"""The page on migration, played: the job before runs bare, its flow after continues where it stood."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import end_group
from demo.tables import count_rows, read_rows
from streamkeeper.drivers.submit import spark_submit
from streamkeeper.settings import PROJECT, Settings
from tools.waiting import wait_until

pytestmark = pytest.mark.long

PAGE = (PROJECT / "docs" / "get-started" / "migrate.md").read_text()
DAG, JOB, PIPELINE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MOVE = PAGE.partition("## Move it")[2]
[COMMANDS] = re.findall(r"^```bash\n(streamkeeper hold.*?)^```", MOVE, re.MULTILINE | re.DOTALL)
[TABLE_PATHS] = re.findall("STREAMKEEPER_TABLE_PATHS=(.*)", MOVE)
START = "airflow dags unpause flow__sales__orders_flow"
SECONDS = 300.0


class Shop:
    """Folders of the page below one of the test's."""

    def __init__(self, root: Path) -> None:
        self.root, self.arrived = root, dict[str, float]()
        self.table = f"{root}/lake/tables/orders"
        for name in ("jobs", "dags", "pipelines", "lake/landing/orders"):
            (root / name).mkdir(parents=True)
        (root / "dags" / "orders_stream.py").write_text(self.here(DAG))
        self.job.write_text(self.here(JOB))
        settings = {name: f"{root}/{name.lower()}" for name in ("PIPELINES", "STATE", "WAREHOUSE", "DATA")}
        settings["TABLE_PATHS"] = self.here(TABLE_PATHS)
        self.environment = {f"STREAMKEEPER_{name}": place for name, place in settings.items()}

    @property
    def job(self) -> Path:
        return self.root / "jobs" / "orders_stream.py"

    def here(self, text: str) -> str:
        return text.replace("/lake/", f"{self.root}/lake/").replace("/srv/jobs/", f"{self.root}/jobs/")

    def arrive(self, name: str, **amounts: float) -> None:
        aside = self.root / "lake" / "landing" / f".{name}"
        rows = [
            {"order_id": key, "customer": "Ada", "amount": amount, "ordered_at": "2026-01-01T10:00:00Z"}
            for key, amount in amounts.items()
        ]
        aside.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        aside.rename(self.root / "lake" / "landing" / "orders" / name)
        self.arrived |= amounts

    def oracle(self) -> list[str]:
        return sorted(key for key, amount in self.arrived.items() if amount > 0)

    def rows(self) -> list[str]:
        has_table = count_rows(self.table) is not None
        return sorted(row["order_id"] for row in read_rows(self.table)) if has_table else []

    def run(self, command: str) -> str:
        """Run a command of the page; a person says yes to its plan."""
        line = [sys.executable, "-m", *command.split(), *(["--yes"] if " recover " in command else [])]
        done = subprocess.run(
            line,
            env={**os.environ, **self.environment},
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def run_job(self) -> None:
        """Run the job as its DAG does, until the table has all that is there; then end it."""
        jars = Settings.from_environment(self.environment).jars
        conf = {
            "spark.driver.extraClassPath": f"{jars}/*",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.ui.enabled": "false",
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [spark_submit(), "--master", "local[1]", *options, str(self.job)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with (self.root / "job.log").open("wb") as log:
            job = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(lambda: self.rows() == self.oracle() or None, SECONDS, "the job has written all")
        finally:
            end_group(job.pid, grace=30)
            job.wait()


def test_a_bare_job_is_adopted_by_the_page_and_its_flow_continues_its_table_exactly(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.arrive("1.json", a=1.0, b=-1.0, c=2.0)
    shop.run_job()

    scan = json.loads(shop.run(f"streamkeeper adopt --scan {tmp_path}/dags --json"))
    [job] = scan["jobs"]
    assert (job["job"], job["becomes"], job["hinders"]) == ("orders_stream.orders", "append flow", [])
    assert job["query"]["checkpoint"] == f"{tmp_path}/lake/checkpoints/orders"

    (tmp_path / "pipelines" / "sales.py").write_text(shop.here(PIPELINE))
    *commands, start = shop.here(COMMANDS).strip().splitlines()
    assert start == START
    shop.arrive("2.json", d=3.0, e=-4.0)
    outputs = [shop.run(command) for command in commands]
    assert f"The table that it looked at, and continues, is {shop.table}." in outputs[1]
    assert shop.rows() == ["a", "c"], "an adoption writes no rows"

    shop.run("streamkeeper run sales.orders_flow --available-now")
    shop.arrive("3.json", f=5.0)
    shop.run("streamkeeper run sales.orders_flow --available-now")
    assert shop.rows() == shop.oracle() == ["a", "c", "d", "f"]
    assert not (tmp_path / "warehouse" / "orders").exists()
