"""Health of one part of docker-compose.yaml, asked inside its own container: python -m tools.healthy PART.

Airflow's own commands for this load all of Airflow, which costs seconds of a core at each look. These cost a
tenth of one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

SILENT = 90.0
"""Seconds without a heartbeat, or without a new file, after which a part counts as ill."""
ANSWER = 10.0


class Ill(Exception):
    """The part does not do what it is there for; the message says what was seen."""


def main(arguments: list[str]) -> int:
    """Return 0 if the part is healthy, else 1 after saying what was seen."""
    part, *part_arguments = arguments
    try:
        PARTS[part](*part_arguments)
    except Exception as error:  # noqa: BLE001 - whatever keeps a look from its answer is an answer
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


def api_server() -> None:
    """Check that Airflow's API answers."""
    _get("http://127.0.0.1:8080/api/v2/version")


def scheduler() -> None:
    """Check that the scheduler's job had a heartbeat lately, as it says by its answer's status alone."""
    with urlopen("http://127.0.0.1:8974/health", timeout=ANSWER):
        pass


def job(kind: str) -> None:
    """Check that the Airflow job of this container had a heartbeat lately, by Airflow's records."""
    import psycopg2

    address = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
    connection = psycopg2.connect(address, connect_timeout=int(ANSWER))
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM now() - max(latest_heartbeat)) FROM job"
                " WHERE job_type = %s AND state = 'running' AND hostname IN (%s, %s)",
                (kind, socket.gethostname(), socket.getfqdn()),
            )
            ((age,),) = cursor.fetchall()
    finally:
        connection.close()
    if age is None or float(age) > SILENT:
        raise Ill(f"the last heartbeat of {kind} here is {age} s old; at most {SILENT:g} is allowed")


def worker() -> None:
    """Check that the Celery worker of this container answers by its broker."""
    from celery import Celery  # type: ignore[import-not-found,import-untyped,unused-ignore]

    name = f"celery@{socket.gethostname()}"
    app = Celery(broker=os.environ["AIRFLOW__CELERY__BROKER_URL"])
    if not app.control.ping(destination=[name], timeout=ANSWER):
        raise Ill(f"{name} did not answer within {ANSWER:g} s")


def spark_master() -> None:
    """Check that the Spark master leads."""
    status = _get("http://127.0.0.1:8080/json/")["status"]
    if status != "ALIVE":
        raise Ill(f"the master is {status}")


def spark_worker() -> None:
    """Check that the master knows the Spark worker of this container."""
    workers = _get("http://spark-master:8080/json/")["workers"]
    here = [item["state"] for item in workers if item["host"] == socket.gethostname()]
    if "ALIVE" not in here:
        raise Ill(f"the master knows the worker of {socket.gethostname()} as {here or 'nothing'}")


def kafka(brokers: str, topic: str | None = None) -> None:
    """Check that the broker answers, and has a topic if one is named."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": brokers, "log_level": 0}).list_topics(timeout=ANSWER)
    if topic is not None and topic not in metadata.topics:
        raise Ill(f"{brokers} has no topic {topic}")


def newest(folder: str, seconds: float | str = SILENT) -> None:
    """Check that a file came into a folder lately."""
    newest = max((path.stat().st_mtime for path in Path(folder).glob("*.json")), default=0.0)
    if time.time() - newest > float(seconds):
        raise Ill(f"no file came into {folder} for {float(seconds):g} s")


def _get(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=ANSWER) as answer:
        content: dict[str, Any] = json.load(answer)
        return content


PARTS: dict[str, Callable[..., None]] = {
    "api-server": api_server,
    "scheduler": scheduler,
    "job": job,
    "worker": worker,
    "spark-master": spark_master,
    "spark-worker": spark_worker,
    "kafka": kafka,
    "newest": newest,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
