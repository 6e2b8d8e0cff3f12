"""Memory and threads of an API server that is asked for the page over and over: they do not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT

pytestmark = pytest.mark.long

FLOWS, LOOKS = 50, 300
SCRIPT = """
import gc, json, os, sys, threading
from pathlib import Path
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi.testclient import TestClient
from streamkeeper_airflow.page import app as page
from streamkeeper.flows import leases
from tests.worlds.flows import many_flows

flows, looks = int(sys.argv[2]), int(sys.argv[3])
world, manifest = many_flows.make(Path(sys.argv[1]), flows)
os.environ |= world.environment | {page.TOKEN: "open sesame"}
page.KEPT_SECONDS = 0.0
initdb()
known = list(manifest.flows())

def memory():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

with TestClient(create_app(apps="core")) as client:
    user = SimpleAuthManagerUser(username="ada", role="VIEWER")
    token = {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}
    addresses = [
        ("/streamkeeper/api/flows", token),
        ("/streamkeeper/metrics", {"Authorization": "Bearer open sesame"}),
    ]

    def ask(number):
        flow = known[number % flows]
        many_flows.go_on(many_flows.home_of(world.settings, flow), number)
        for path, headers in [*addresses, (f"/streamkeeper/api/dags/{flow.dag_id}", token)]:
            answer = client.get(path, headers=headers)
            assert answer.status_code == 200, (path, answer.text)

    seen = []
    for number in range(looks):
        ask(number)
        if number % (looks // 6) == looks // 6 - 1:
            seen.append((memory(), threading.active_count()))
print("RESULT", json.dumps(seen))
"""


def test_memory_and_threads_do_not_grow_with_the_looks(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'plugins'}:{PROJECT}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(FLOWS), str(LOOKS)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    sizes, threads = zip(*json.loads(told.removeprefix("RESULT ")), strict=True)
    # The first third warms up: modules that are imported late, pools, the allocator's own folds.
    assert max(sizes[2:]) <= 1.03 * sizes[1], sizes
    assert max(threads[2:]) <= threads[1], threads
