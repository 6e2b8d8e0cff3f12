"""What docker-compose.yaml and the Dockerfile promise, read without Docker. tests/compose runs them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for

from streamkeeper.settings import PROJECT

TEXT = (PROJECT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:?[-?])?([^}]*)\}")
SECRET = re.compile(r"PASSWORD|SECRET|_KEY\b|_KEY$|SQL_ALCHEMY_CONN|BROKER_URL|RESULT_BACKEND|AIRFLOW_CONN_")
AIRFLOW = {"init", "api-server", "scheduler", "dag-processor", "triggerer", "worker", "housekeeping"}
S3_LOGIN = {"AWS_ACCESS_KEY_ID": "S3_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY": "S3_SECRET_KEY"}

every_service = pytest.mark.parametrize("name", SERVICES)


@dataclass
class Stage:
    """One stage of the Dockerfile: what it is made from, its instructions, and its last user."""

    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def user(self) -> str | None:
        return next((value for name, value in reversed(self.instructions) if name == "USER"), None)


def stages() -> dict[str, Stage]:
    text = re.sub(
        r"\\\n", " ", re.sub(r"^#.*\n", "", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)
    )
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, value = line.partition(" ")
        if name == "FROM":
            parent, _, stage = value.partition(" AS ")
            found[stage] = Stage(parent)
        elif found:
            list(found.values())[-1].instructions.append((name, value.strip()))
    return found


STAGES = stages()


def secrets(tmp_path: Path) -> dict[str, str]:
    """Make the file of secrets as `make .env` does, and read it."""
    subprocess.run(
        ["sh", "docker/make_env.sh", tmp_path / "env"], cwd=PROJECT, check=True, capture_output=True
    )
    lines = [line for line in (tmp_path / "env").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def environment(service: dict[str, Any]) -> dict[str, str]:
    return dict(service.get("environment") or {})


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """Return the sources of a service's volumes by their places, as they are without an environment."""
    filled = [VARIABLE.sub(lambda match: match[3], item) for item in service.get("volumes", ())]
    return {parts[1]: parts[0] for parts in (item.split(":") for item in filled)}


def test_the_file_fits_the_schema_of_compose_files() -> None:
    schema = json.loads(
        files("check_jsonschema.builtin_schemas.vendor").joinpath("compose-spec.json").read_text()
    )
    assert not [error.message for error in validator_for(schema)(schema).iter_errors(COMPOSE)]


def test_secrets_are_made_by_one_command_each_another_and_stay(tmp_path: Path) -> None:
    made = secrets(tmp_path)
    values = [value for name, value in made.items() if name != "COMPOSE_PROJECT_NAME"]
    assert all(len(value) >= 32 for value in values) and len(set(values)) == len(values)
    assert (tmp_path / "env").stat().st_mode & 0o777 == 0o600
    assert secrets(tmp_path) == made, "who runs it again keeps the secrets"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_that_is_there_keeps_its_lines_and_gets_what_it_lacks(end: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    known = "# of old\nAIRFLOW_PORT=81\nREDIS_PASSWORD='a b'\r\nexport S3_ACCESS_KEY=mine" + end
    file.write_text(known, newline="")
    file.chmod(0o644)
    added = {*secrets(tmp_path)} - {"AIRFLOW_PORT", "REDIS_PASSWORD", "export S3_ACCESS_KEY"}
    kept, new = file.read_bytes()[: len(known)], file.read_bytes()[len(known) :]
    assert kept == known.encode() and new.startswith(b"" if end else b"\n")
    asked = {match[1] for match in VARIABLE.finditer(TEXT) if match[2] == ":?"}
    assert added == asked - {"REDIS_PASSWORD", "S3_ACCESS_KEY"}, "no COMPOSE_PROJECT_NAME: other volumes"
    assert file.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [file]


def test_no_secret_has_a_default_or_a_value_in_the_file(tmp_path: Path) -> None:
    made = set(secrets(tmp_path)) - {"COMPOSE_PROJECT_NAME"}
    used = {match[1]: match[2] for match in VARIABLE.finditer(TEXT)}
    assert made == {name for name, operator in used.items() if operator == ":?"}, (
        "what is made is what is asked"
    )
    found = [
        (name, variable)
        for name, service in SERVICES.items()
        for variable, value in environment(service).items()
        if SECRET.search(variable) and "spark://" not in value and "PASSWORDS_FILE" not in variable
        and not made & {match[1] for match in VARIABLE.finditer(value)}
    ]  # fmt: skip
    assert not found


@every_service
def test_a_service_is_bounded_and_may_little(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "pids_limit"} <= service.keys()
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & service.keys()


@every_service
def test_no_service_runs_as_root(name: str) -> None:
    service = SERVICES[name]
    user = STAGES[service["build"]["target"]].user if "build" in service else service["user"]
    assert user not in (None, "root", "0")


def test_prometheus_reads_streams_with_the_token_that_airflows_server_knows() -> None:
    server, prometheus = (environment(SERVICES[name]) for name in ("api-server", "prometheus"))
    assert server["STREAMKEEPER_METRICS_TOKEN"] == prometheus["METRICS_TOKEN"]
    assert "front" in SERVICES["prometheus"]["networks"]
    [job] = [
        job
        for job in yaml.safe_load((PROJECT / "docker" / "prometheus" / "prometheus.yaml").read_text())[
            "scrape_configs"
        ]
        if job["job_name"] == "streamkeeper"
    ]
    command = next(value for name, value in reversed(STAGES["prometheus"].instructions) if name == "CMD")
    assert f"> {job['authorization']['credentials_file']}" in command
    assert job["static_configs"] == [{"targets": ["api-server:8080"]}]


def test_only_airflow_is_published_and_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api-server", "grafana"} and SERVICES["grafana"]["profiles"] == ["metrics"]
    assert all(len(ports) == 1 and ports[0].startswith("127.0.0.1:") for ports in published.values())


def test_jobs_reach_neither_airflows_records_nor_the_world_outside() -> None:
    assert [name for name, network in COMPOSE["networks"].items() if not network.get("internal")] == ["front"]
    on_database = {name for name, service in SERVICES.items() if "database" in service.get("networks", ())}
    assert on_database == AIRFLOW | {"postgres", "redis"}
    for name in ("spark-master", "spark-worker-1", "spark-worker-2", "kafka", "orders-feed"):
        assert not {"front", "database"} & set(SERVICES[name]["networks"])
    assert SERVICES["customers-feed"]["network_mode"] == "none"


def test_only_airflows_parts_know_airflows_secrets() -> None:
    knows = {
        name
        for name, service in SERVICES.items()
        if any("AIRFLOW__" in item for item in environment(service))
    }
    assert knows == AIRFLOW
    for name in (
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "kafka",
        "customers-feed",
        "orders-feed",
    ):
        assert not [item for item in environment(SERVICES[name]) if SECRET.search(item)]


def test_s3_s_login_is_known_to_airflows_parts_and_the_server_alone() -> None:
    keys = [f"${{{name}:?Make .env by make .env}}" for name in S3_LOGIN.values()]
    knows = {
        name for name, service in SERVICES.items() if set(keys) & set(map(str, environment(service).values()))
    }
    assert knows == AIRFLOW | {"s3"}
    for name in AIRFLOW:
        assert [environment(SERVICES[name])[item] for item in S3_LOGIN] == keys
        assert set(SERVICES[name].get("networks")) & set(SERVICES["s3"]["networks"]) or name == "housekeeping"


def test_a_stage_and_a_health_check_name_what_there_is() -> None:
    from tools.healthy import PARTS

    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets <= STAGES.keys()
    tests = [service["healthcheck"]["test"] for service in LASTING.values()]
    assert {test[4] for test in tests if "tools.healthy" in test} == set(PARTS)


INSTRUCTIONS = {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "LABEL", "RUN", "USER", "WORKDIR"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_could_be_built(name: str) -> None:
    """Docker knows its instructions, what it copies is of an earlier stage, and a shell can read the rest."""
    stage, earlier = STAGES[name], [*STAGES][: [*STAGES].index(name)]
    assert stage.parent in (*earlier, "${BASE_IMAGE}")
    for instruction, value in stage.instructions:
        assert instruction in INSTRUCTIONS, value
        if value.startswith("--from="):
            assert value.split()[0].removeprefix("--from=") in earlier
        if instruction in ("CMD", "ENTRYPOINT"):
            command = json.loads(value)
            script = command[2] if command[:2] == ["sh", "-c"] else ""
        else:
            script = value if instruction == "RUN" else ""
        read = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert read.returncode == 0, f"{script}: {read.stderr}"


def copied(stage: Stage) -> Iterator[tuple[int, list[str]]]:
    """Give what a stage copies of the checkout: the place of the instruction, and its arguments."""
    for at, (instruction, value) in enumerate(stage.instructions):
        if instruction == "COPY" and not value.startswith("--from="):
            yield at, value.split()


def copies() -> Iterator[tuple[str, str]]:
    for name, stage in STAGES.items():
        for _, words in copied(stage):
            yield from ((name, source) for source in words[:-1] if not source.startswith("--"))


@pytest.mark.parametrize(("stage", "source"), list(copies()))
def test_what_the_dockerfile_copies_is_there_and_is_sent_to_the_build(stage: str, source: str) -> None:
    assert [*PROJECT.glob(source)]
    sent = [line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert any(source == item or fnmatch(source, f"{item}/*") for item in sent)


@pytest.mark.parametrize("name", [name for name, stage in STAGES.items() if stage.user not in (None, "root")])
def test_what_is_copied_can_be_read_whatever_the_umask_of_the_checkout(name: str) -> None:
    stage = STAGES[name]
    opened = {
        (at, Path(place))
        for at, (instruction, value) in enumerate(stage.instructions)
        if instruction == "RUN"
        for places in re.findall(r"chmod (?:-R )?a\+rX ([^&]*)", value)
        for place in places.split()
    }
    for copied_at, words in copied(stage):
        *sources, target = (word for word in words if not word.startswith("--"))
        places = [
            Path(target) / Path(source).name if target.endswith("/") else Path(target) for source in sources
        ]
        missing = [
            place
            for place in places
            if not any(at > copied_at and {place, *place.parents} & {over} for at, over in opened)
        ]
        assert not missing


def test_pipelines_are_mounted_and_are_in_the_image_of_pods_alone() -> None:
    having = {stage for stage, source in copies() if source.startswith("spark_jobs/pipelines")}
    assert having == {"pod"} and STAGES["pod"].parent == "streamkeeper"
    assert not {stage for stage, source in copies() if source == "spark_jobs"}
    assert [words[0] for _, words in copied(STAGES["pod"])] == ["--chown=streamkeeper:streamkeeper"]
    for name in (*AIRFLOW, "spark-worker-1", "spark-worker-2", "story"):
        assert volumes(SERVICES[name])["/opt/streamkeeper/spark_jobs/pipelines"] == "./spark_jobs/pipelines"


def test_the_image_holds_the_versions_that_the_tests_run_with() -> None:
    def versions(file: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in (PROJECT / file).read_text().splitlines():
            if match := re.match(r"([\w.-]+)==([^\s;]+)(.*)", line):
                found.setdefault(match[1], set()).add(match[2])
        return found

    locked, image = versions("requirements.txt"), versions("requirements-cluster.txt")
    assert not {name: found for name, found in image.items() if not found <= locked.get(name, found)}
    assert {"pyspark", "delta-spark", "apache-airflow", "apache-airflow-providers-celery"} <= image.keys()
    assert not {"pytest", "moto", "mypy"} & image.keys()
    assert all(version.startswith("5.6.") for version in image["celery"] | image["kombu"])
    needed = {source for stage, source in copies() if stage == "build"}
    assert {"requirements-cluster.txt", "jars.lock", "tools/kafka_broker.lock", "tools/s3.lock"} <= needed


def flow_slots() -> int:
    [found] = re.findall(r"pools set streaming_flows (\d+)", SERVICES["init"]["command"][-1])
    return int(found)


def test_flows_that_fill_the_pool_leave_cores_for_the_steps_of_two_recoveries() -> None:
    defaults = dict(
        line.split(maxsplit=1)
        for line in (PROJECT / "docker" / "spark" / "spark-defaults.conf").read_text().splitlines()
        if not line.startswith("#")
    )
    workers = [SERVICES[name]["command"][-1] for name in ("spark-worker-1", "spark-worker-2")]
    cores = sum(
        int(match[3]) for text in workers for match in VARIABLE.finditer(text)
        if match[1] == "SPARK_WORKER_CORES"
    )  # fmt: skip
    assert cores == 8 and (flow_slots() + 2) * int(defaults["spark.cores.max"]) <= cores


@pytest.mark.parametrize("there", [True, False])
def test_a_pool_that_is_there_stays_as_it_was_made(there: bool, tmp_path: Path) -> None:
    program, said = tmp_path / "airflow", tmp_path / "said"
    program.write_text(f'#!/bin/sh\necho "$@" >> {said}\n[ "$2" != get ] || exit {int(not there)}\n')
    program.chmod(0o755)
    subprocess.run(SERVICES["init"]["command"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert ("pools set" in said.read_text()) is not there
    assert said.read_text().startswith("db migrate")


INITDB = """#!/bin/sh
mkdir "$2/base" "$2/pg_wal"
touch "$2/base/1" "$2/pg_hba.conf"
echo 15 > "$2/PG_VERSION"
"""


@pytest.mark.parametrize("moved", [[], ["base"], ["base", "pg_wal", "pg_hba.conf"]], ids=len)
def test_a_database_whose_making_was_cut_off_is_made_anew(moved: list[str], tmp_path: Path) -> None:
    programs, data = tmp_path / "bin", tmp_path / "data"
    programs.mkdir()
    (data / "new" / "base").mkdir(parents=True)
    for name, text in {"initdb": INITDB, "postgres": '#!/bin/sh\necho "$@"\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in moved:
        (data / name).mkdir()
        (data / name / "of the first").touch()
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "PGDATA": str(data), "POSTGRES_PASSWORD": "secret"}
    done = subprocess.run(
        ["sh", PROJECT / "docker" / "postgres.sh"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "listen_addresses" in done.stdout
    assert sorted(path.name for path in data.iterdir()) == ["PG_VERSION", "base", "pg_hba.conf", "pg_wal"]
    assert [path.name for path in (data / "base").iterdir()] == ["1"]
