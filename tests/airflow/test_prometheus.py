"""A real Prometheus reads the metrics of a real state folder from the API server's app: the rules fire for
the flows that are ill, and every panel of the dashboard has data.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from streamkeeper_airflow.page import app as page
from streamkeeper_airflow.page.app import TOKEN, create_app

from streamkeeper.checkpoint import CommitEntry, write_commit
from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import Start
from streamkeeper.flows.leases import Heartbeat, Lease
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch import behind, crash_loops, progress
from streamkeeper.watch.batch_numbers import Batch, Numbers
from streamkeeper.watch.behind import Measured
from tests.airflow.conftest import lay_out
from tests.worlds.metrics.rules import RULES
from tests.worlds.small_world import write_checkpoint
from tools import prometheus
from tools.waiting import NotYet, wait_until

pytestmark = pytest.mark.long

CONFIG = PROJECT / "docker" / "prometheus" / "prometheus.yaml"
DASHBOARD = json.loads((PROJECT / "docker" / "grafana" / "dashboards" / "streams.json").read_text())
RUNNING, PARKED, LAGGING, QUIET = FLOWS = ("running", "parked", "lagging", "quiet")
ROWS_A_SECOND = 200.0


def promtool(*arguments: str | Path, given: str | None = None) -> str:
    """Run promtool and return what it says; a complaint fails the test."""
    command = [prometheus.program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=given, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


# Rules, by Prometheus' own tests of rules: a sample a minute, from minute 0.
SERIES = {
    '{flow="a", state="parked"}': ("flow_state", "1x400"),
    '{flow="b", state="parked"}': ("flow_state", "0x400"),
    '{flow="flaps", state="retrying"}': ("flow_state", "1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 0x400"),
    '{flow="flaps", state="starting"}': ("flow_state", "0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0x400"),
    '{flow="begins", state="starting"}': ("flow_state", "1x8 0x400"),
    '{flow="torn", state="unreadable"}': ("flow_state", "1x400"),
    '{flow="slow", state="slow"}': ("flow_state", "1x400"),
    '{flow="held", state="held"}': ("flow_state", "1x400"),
    '{flow="quiet", state="idle"}': ("flow_state", "1x400"),
    '{flow="grows", source="s"}': ("flow_lag_seconds", "600+60x400"),
    '{flow="shrinks", source="s"}': ("flow_lag_seconds", "90000-60x400"),
    '{flow="held", source="s"}': ("flow_lag_seconds", "600+60x400"),
    '{flow="a", source="s"}': ("flow_lag_seconds", "600+60x400"),
    '{flow="quiet", source="s"}': ("flow_lag_seconds", "0x400"),
    '{flow="quiet", x=""}': ("flow_last_commit_timestamp_seconds", "0x400"),
    '{flow="waits"}': ("flow_input_waiting_since_timestamp_seconds", "0x400"),
    '{flow="restarts"}': ("flow_drivers_total", "1 2 3 4 5 6 6x400"),
    '{flow="quiet"}': ("flow_drivers_total", "7x400"),
    '{flow="balloons"}': ("flow_state_memory_bytes", "2000000000+20000000x400"),
    '{flow="steady"}': ("flow_state_memory_bytes", "20000000000x400"),
    '{flow="late"}': ("flow_late_rows_total", "5x9 8x400"),
    '{flow="late", x=""}': ("flow_input_rows_total", "0+1x400"),
    '{flow="few"}': ("flow_late_rows_total", "5x9 8x400"),
    '{flow="few", x=""}': ("flow_input_rows_total", "0+100x400"),
    '{recovery="rewind", step="hold"}': ("recovery_steps", "1x400"),
    '{recovery="reset", step="planned"}': ("recovery_steps", "1x400"),
    '{note="m"}': ("monitor_last_look_timestamp_seconds", "0+60x60 3600x400"),
    '{note="l"}': ("last_look_timestamp_seconds", "0+60x60 3600x400"),
    '{job="streamkeeper"}': ("up", "1x60 0x400"),
}
FIRING: dict[int, set[tuple[str, str]]] = {
    5: {("StreamParked", "a"), ("StreamRestarts", "restarts")},
    12: {
        ("StreamParked", "a"),
        ("StreamDown", "flaps"),
        ("StreamDown", "torn"),
        ("StreamDropsLateRows", "late"),
        ("StreamRestarts", "restarts"),
    },
    50: {
        ("StreamParked", "a"),
        ("StreamDown", "torn"),
        ("StreamBehind", "grows"),
        ("StreamWaits", "waits"),
        ("StreamSlow", "slow"),
        ("StreamDropsLateRows", "late"),
        ("StreamRestarts", "restarts"),
    },
    300: {
        ("StreamParked", "a"),
        ("StreamDown", "torn"),
        ("StreamBehind", "grows"),
        ("StreamWaits", "waits"),
        ("StreamSlow", "slow"),
        ("StreamStateGrows", "balloons"),
        ("RecoveryStands", ""),
        ("MonitorStands", ""),
        ("StateFolderHangs", ""),
        ("MetricsMissing", ""),
    },
}
"""Which rule fires for which flow, by minute."""


def test_each_rule_fires_for_what_is_ill_after_its_time_and_for_nothing_else(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {name for found in FIRING.values() for name, _ in found}
    assert all(rule["annotations"]["summary"].endswith(".") and rule["labels"]["severity"] for rule in rules)
    assert "SUCCESS" in promtool("check", "rules", RULES)
    series = [
        {"series": f"{name if name == 'up' else f'streamkeeper_{name}'}{labels}", "values": values}
        for labels, (name, values) in SERIES.items()
    ]
    expected = [
        {
            "expr": 'count by (alertname, flow) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": _labels(name, flow), "value": 1} for name, flow in sorted(found)],
        }
        for minute, found in FIRING.items()
    ]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    file = tmp_path / "test.yaml"
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    file.write_text(yaml.safe_dump(whole, width=1000))
    assert "SUCCESS" in promtool("test", "rules", file)


def _labels(name: str, flow: str) -> str:
    return f'{{alertname="{name}"{f", flow={json.dumps(flow)}" if flow else ""}}}'


def begin(home: FlowHome, fingerprint: str) -> Lease:
    """Let a flow have committed a batch, and this process be its driver, whose lease is returned."""
    decided = generations.decide(home, generations.first(home, fingerprint))
    lease = leases.acquire(home, 1, 1.0)
    folder = home.checkpoint(1, lease.epoch)
    generations.begin(
        home, Start(1, folder, None, {}, {}, (), None, lease.epoch, "2026-11-21T10:00:00+00:00")
    )
    write_checkpoint(home.storage, folder, decided, [[]], 0)
    home.storage.overwrite(f"{folder}/commits/0", write_commit(CommitEntry(0, 1, 0)))
    return lease


def batch(home: FlowHome, seconds: float, idle: bool = False, late: int = 0) -> None:
    """Let the driver tell its numbers so many seconds after it began."""
    counts = {"expectations": {"known": [9, 1]}, "operators": {"0 dedupe": [42, 5120]}}
    last = Batch(0, time.time(), 0.4, 1000, 1000, 42, 5120, watermark=time.time() - 60, **counts)
    rows = int(ROWS_A_SECOND * seconds)
    totals = Totals(int(seconds), rows, seconds / 4, late, expectations={"known": [rows, int(seconds)]})
    told = Numbers(last, totals, idle).as_details()
    leases.beat(home, Heartbeat(1, int(seconds * 100), "running", 1, "now", 0, details=told))


@contextmanager
def serving() -> Iterator[str]:
    """Serve the page's app as Airflow's API server mounts it; yield its host and port."""
    outer = FastAPI()
    outer.mount("/streamkeeper", create_app())
    server = uvicorn.Server(uvicorn.Config(outer, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or None, 60, "the app serves")
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A running, a parked, a lagging and a quiet flow, whose drivers go on, behind the app."""
    lay_out(tmp_path, monkeypatch, FLOWS)
    monkeypatch.setenv(TOKEN, "open sesame")
    monkeypatch.setattr(page, "KEPT_SECONDS", 0.0)
    settings = Settings.from_environment()
    flows = {flow.pipeline.name: flow for flow in read_manifest(settings).flows()}
    homes = {name: open_home(settings, flow.full_name) for name, flow in flows.items()}
    held = {name: begin(home, flows[name].fingerprint) for name, home in homes.items()}
    leases.leave(homes[PARKED], held[PARKED], "failed")
    holds.put(homes[PARKED], holds.PARK, "a stateful operation was removed", "driver")
    crash_loops.note(homes[PARKED])
    storage = homes[RUNNING].storage
    for recovery, events in {
        "rewind-a-1": ("planned", "hold.started"),
        "rewind-b-2": ("planned", "ended"),
    }.items():
        for event in events:
            ledger.open(storage, PARKED, recovery).record(event, {})
    over, begun = threading.Event(), time.monotonic()

    def go_on() -> None:
        while not over.wait(0.2):
            seconds = time.monotonic() - begun
            batch(homes[RUNNING], seconds)
            batch(homes[LAGGING], seconds, late=int(4 * seconds))
            batch(homes[QUIET], 0.0, idle=True)
            progress.note_look(storage, time.time())
            waits = Lag(70, 7, 900, None, 2000.0 + seconds)
            behind.keep(homes[LAGGING], Measured({"raw": waits}), time.time())
            behind.keep(homes[QUIET], Measured({"raw": Lag(0, 0, 0, None, 0.0)}), time.time())

    drivers = threading.Thread(target=go_on)
    with serving() as address:
        drivers.start()
        yield address
        over.set()
        drivers.join()


@contextmanager
def scraping(served: str, folder: Path) -> Iterator[str]:
    """Run Prometheus with the shipped configuration and rules, only faster; yield where it answers."""
    rules = re.sub(r"for: \w+", "for: 0s", RULES.read_text())
    (folder / RULES.name).write_text(rules)
    (folder / "token").write_text("open sesame")
    config = yaml.safe_load(CONFIG.read_text())
    [job] = [one for one in config["scrape_configs"] if one["job_name"] == "streamkeeper"]
    job["authorization"]["credentials_file"] = str(folder / "token")
    job["static_configs"] = [{"targets": [served]}]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [job]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    promtool("check", "config", folder / "prometheus.yaml")
    port = folder / "port"
    command = [
        prometheus.program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with port.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield wait_until(lambda: _listens(process, port), 60, "Prometheus listens")
    finally:
        process.terminate()
        process.wait(30)


def _listens(process: subprocess.Popen[bytes], log: Path) -> str | None:
    text = log.read_text()
    assert process.poll() is None, text
    found = re.search(r"Listening on\"? address=(127\.0\.0\.1:\d+)", text)
    return f"http://{found[1]}/api/v1" if found else None


def ask(api: str, query: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{api}/query?{urlencode({'query': query})}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def test_a_real_prometheus_fires_for_the_ill_flows_alone_and_answers_every_panel(
    served: str, tmp_path: Path
) -> None:
    asked = urllib.request.Request(
        f"http://{served}/streamkeeper/metrics", headers={"Authorization": "Bearer open sesame"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text = answer.read().decode()
    said = promtool("check", "metrics", given=text)
    assert said.strip() == "", said
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with scraping(served, folder) as api:
        # A rate needs some samples, and its window is a minute.
        wait_until(lambda: _scraped(api), 120, "Prometheus has scraped some times")
        firing = wait_until(lambda: _firing(api), 60, "the rules were judged")
        assert firing == {
            ("StreamParked", PARKED),
            ("RecoveryStands", PARKED),
            ("StreamBehind", LAGGING),
            ("StreamDropsLateRows", LAGGING),
        }, "nothing of the running and of the quiet one"
        [rate] = ask(api, f'rate(streamkeeper_flow_input_rows_total{{pipeline="{RUNNING}"}}[10s])')
        assert float(rate["value"][1]) == pytest.approx(ROWS_A_SECOND, rel=0.2)
        empty = {
            f"{panel['title']}: {target['expr']}"
            for panel in DASHBOARD["panels"]
            for target in panel["targets"]
            if not ask(api, filled(target["expr"]))
        }
        assert empty == set()
        for item in DASHBOARD["templating"]["list"]:
            if item["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", item["definition"]).groups()  # type: ignore[union-attr]
                assert len(ask(api, f"count by ({label}) ({filled(series)})")) == len(FLOWS)


def filled(expression: str) -> str:
    """Return an expression of the dashboard as Grafana asks it, with all flows chosen."""
    found = expression.replace("$pipeline", ".*").replace("$flow", ".*").replace("$__rate_interval", "20s")
    assert "$" not in found, "every variable is known"
    return found


def _scraped(api: str) -> bool | None:
    found = ask(api, 'count_over_time(up{job="streamkeeper"}[10m])')
    return (found and float(found[0]["value"][1]) >= 15) or None


def _firing(api: str) -> set[tuple[str, str]]:
    found = {
        (one["metric"]["alertname"], one["metric"].get("pipeline", ""))
        for one in ask(api, 'ALERTS{alertstate="firing"}')
    }
    if ("StreamBehind", LAGGING) not in found:
        raise NotYet(str(found))
    return found
