"""What user code finds in its environment: what it needs, what the setting names, and nothing of
Airflow's.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import PIPELINE_ENV, Settings
from streamkeeper.support.user_environment import environment
from tests.worlds.pipelines import load
from tests.worlds.small_world import EVENTS, World

SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": "s3cr3t-fernet",
    "AIRFLOW_CONN_STREAMKEEPER_AIRFLOW": "s3cr3t-login",
    "AIRFLOW_VAR_TOKEN": "s3cr3t-variable",
    "_AIRFLOW_WWW_USER_PASSWORD": "s3cr3t-user",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-aws",
    "DATABASE_URL": "s3cr3t-database",
    "STREAMKEEPER_METRICS_TOKEN": "s3cr3t-metrics",
}
TELLS = "import os\nraise ValueError(sorted(os.environ.items()))\n" + EVENTS


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
def test_a_pipeline_file_finds_none_of_airflows_secrets_where_the_manifest_is_made(world: World) -> None:
    world.declare(TELLS, "spying.py")
    error = read_manifest(world.settings).errors["spying"]
    assert "ValueError" in error and world.settings.state in error, "it told what it found"
    assert "s3cr3t" not in error


@pytest.mark.usefixtures("secrets")
def test_check_lets_a_pipeline_file_see_what_drivers_will_let_it_see(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enter(monkeypatch)
    world.declare(TELLS, "spying.py")
    error = json.loads(CliRunner().invoke(app, ["check", "--json"]).stdout)["errors"]["spying"]
    assert "ValueError" in error and world.settings.state in error
    assert "s3cr3t" not in error


GIVEN = {
    "PATH": "/usr/bin", "HOME": "/home/ada", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TMPDIR": "/scratch",
    "JAVA_HOME": "/jdk", "SPARK_CONF_DIR": "/conf", "HADOOP_CONF_DIR": "/hadoop", "PYTHONPATH": "/mine",
    "SSL_CERT_FILE": "/ca.pem",
}  # fmt: skip


def test_what_java_spark_and_python_need_is_handed_on_and_what_the_setting_names() -> None:
    inherited = {**GIVEN, **SECRETS, "ORDERS_BROKERS": "b:1", "ORDERS_LOGIN": "ada"}
    settings = Settings.from_environment(
        {PIPELINE_ENV: "ORDERS_*, AWS_SECRET_ACCESS_KEY, AIRFLOW*, *__CORE__*, *_TOKEN"}
    )
    found = environment(settings, inherited)
    assert {
        name: found[name] for name in GIVEN if name not in ("PATH", "PYTHONPATH")
    }.items() <= GIVEN.items()
    assert found["PATH"].endswith(":/usr/bin") and found["PYTHONPATH"].endswith(":/mine")
    assert (found["ORDERS_BROKERS"], found["ORDERS_LOGIN"], found["AWS_SECRET_ACCESS_KEY"]) == (
        "b:1",
        "ada",
        "s3cr3t-aws",
    )
    assert SECRETS.keys() & found.keys() == {"AWS_SECRET_ACCESS_KEY"}, (
        "Airflow's never, whatever the setting says"
    )
    assert Settings.from_environment(found).pipeline_env == settings.pipeline_env


def test_a_process_started_with_it_is_this_python_with_the_project_to_import() -> None:
    said = [sys.executable, "-c", "import os, streamkeeper; print(os.environ['PYSPARK_PYTHON'])"]
    done = subprocess.run(
        said,
        env=environment(Settings.from_environment({}), {}),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == sys.executable


CONF = {
    "a key of a store": (
        {"spark.hadoop.fs.s3a.secret.key": "AKIA"},
        "has a secret in its spark_conf 'spark.hadoop.fs.s3a.secret.key'",
    ),
    "a password": (
        {"spark.ssl.keyPassword": "x"},
        "has a secret in its spark_conf 'spark.ssl.keyPassword'.*Put it into spark-defaults",
    ),
    "a password of the JVM": (
        {"spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=hunter2"},
        "has a secret in its spark_conf 'spark.driver.extraJavaOptions'",
    ),
    "a login in an address": (
        {"spark.sql.catalog.x.url": "jdbc:postgresql://ada:hunter2@db/shop"},
        "has a secret in its spark_conf 'spark.sql.catalog.x.url'",
    ),
    "a placeholder": (
        {"spark.hadoop.a": "{env:ORDERS_BROKERS}"},
        "Only options of sources take {env:NAME} and {conn:NAME.FIELD}: Spark would get the text",
    ),
}


@pytest.mark.parametrize(("conf", "message"), CONF.values(), ids=CONF.keys())
@pytest.mark.parametrize("kind", ["append", "auto cdc"])
def test_a_secret_in_a_flows_spark_conf_is_refused(
    kind: str, conf: dict[str, str], message: str, world: World
) -> None:
    flows = {
        "append": f"dp.append_flow(name='f', target='t', sources=['s'], spark_conf={conf})(lambda s: s)",
        "auto cdc": (
            "dp.create_auto_cdc_flow(name='f', target='t', source='s', keys=['id'], sequence_by='id',"
            f" spark_conf={conf})"
        ),
    }
    source = (
        "dp.create_source('s', format='json', path='/x', schema='id INT')\ndp.create_streaming_table('t')\n"
    )
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 4: the flow f .*{message}"):
        load(world.root, source + flows[kind])


def test_the_path_of_a_keytab_is_no_secret(world: World) -> None:
    conf = {
        "spark.kerberos.keytab": "/etc/ada.keytab",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "com.example.P",
    }
    source = (
        "dp.create_source('s', format='json', path='/x', schema='id INT')\ndp.create_streaming_table('t')\n"
    )
    pipeline = load(
        world.root,
        source + f"dp.append_flow(name='f', target='t', sources=['s'], spark_conf={conf})(lambda s: s)",
    )
    assert pipeline.flows[0].spark_conf == conf
