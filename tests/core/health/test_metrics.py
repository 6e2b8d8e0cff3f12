"""Metrics: the same numbers in Prometheus' text format and over OTLP."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamkeeper import __version__
from streamkeeper.cli.commands import app
from streamkeeper.errors import SettingsError, StreamkeeperError
from streamkeeper.flows import ledger
from streamkeeper.health import metrics, otlp
from streamkeeper.health.flows import FlowHealth
from streamkeeper.health.metrics import Metric, Sample, Snapshot
from streamkeeper.health.otlp import PushFailed
from streamkeeper.health.recoveries import Recoveries
from streamkeeper.health.troubles import TROUBLES
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import declared
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch import crash_loops, progress
from streamkeeper.watch.batch_numbers import Batch, Numbers
from streamkeeper.watch.behind import Behind
from tests.worlds.metrics import rules
from tests.worlds.metrics.collector import Collector, collector
from tests.worlds.metrics.driven import HERE, drive
from tests.worlds.metrics.otelcol import otelcol
from tests.worlds.small_world import World
from tools.waiting import wait_until

STATES = {"0 dedupe": [40, 4096], "1 stateStoreSave": [2, 1024]}
BATCH = Batch(7, 1767225610.5, 2.5, 1000, None, 42, 5120, 3, 1767225600.0, {}, {"is_known": [9, 1]}, STATES)
LABELS = 'pipeline="events",flow="clean_events"'
Samples = dict[str, dict[str, float]]


def samples(text: str) -> Samples:
    """Return the samples of metrics, checked line by line: name, then labels, then value."""
    found: Samples = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge") and (kind == "counter") == name.endswith("_total"), line
            assert name not in typed, "a metric's lines stand together"
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line)
            assert match is not None and match[1] in typed, line
            found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return found


def seen_in(world: World) -> Snapshot:
    return metrics.see(world.home.storage, declared(world.settings))


@pytest.fixture
def driven(world: World) -> World:
    """A flow with a driver that read some batches, a failure before it, a recovery that is open and two that
    are over, and a monitor that looked.
    """
    drive(world, HERE, Numbers(BATCH, Totals(4, 4000, 9.25, 3).plus(BATCH.as_totals())))
    crash_loops.note(world.home, 100.0)
    for recovery, events in {
        "reset_checkpoint-a-1": ("planned", "hold.started", "hold.done", "ended"),
        "rewind-b-2": ("planned", "given_up"),
        "rewind-c-3": ("planned", "approved", "hold.started", "hold.failed"),
    }.items():
        book = ledger.open(world.home.storage, "events", recovery)
        for event in events:
            book.record(event, {})
    progress.note_look(world.home.storage, 1767225700.25)
    return world


def lagging(seen: Snapshot) -> Snapshot:
    """The same, with a flow that is behind in two sources, and one whose files are torn."""
    behind = Behind(1.0, {"raw": Lag(7, 2, 900, None, 61.5), "theirs": Lag(versions=3)})
    torn = FlowHealth('a."b', "a", "t", "d", "1 second", "unreadable", "torn")
    return replace(seen, rows=(replace(seen.rows[0], lag=behind), torn))


def test_metrics_are_those_of_the_rows_in_base_units_with_all_digits(driven: World) -> None:
    text = metrics.text(metrics.measure(lagging(seen_in(driven))))
    found = samples(text)
    assert found["streamkeeper_flow_input_rows_total"] == {LABELS: 5000}
    assert found["streamkeeper_flow_batch_seconds_total"] == {LABELS: 11.75}
    assert found["streamkeeper_flow_state_memory_bytes"] == {
        f'{LABELS},operator="0 dedupe"': 4096,
        f'{LABELS},operator="1 stateStoreSave"': 1024,
    }
    assert f"streamkeeper_flow_watermark_timestamp_seconds{{{LABELS}}} 1767225600\n" in text
    assert found["streamkeeper_flow_state"][f'{LABELS},state="running"'] == 1
    assert sum(found["streamkeeper_flow_state"].values()) == 2, "one state a flow"
    assert found["streamkeeper_flow_unreadable"] == {LABELS: 0, 'pipeline="a",flow="\\"b"': 1}
    assert "streamkeeper_flow_input_waiting_since_timestamp_seconds" not in found, "nothing waits"
    assert abs(found["streamkeeper_last_look_timestamp_seconds"][""] - time.time()) < 60
    assert found["streamkeeper_monitor_last_look_timestamp_seconds"] == {"": 1767225700.25}
    assert found["streamkeeper_flow_failures_since_commit"] == {LABELS: 1}
    assert found["streamkeeper_flow_expectation_rows_total"] == {
        f'{LABELS},expectation="is_known",result="passed"': 9,
        f'{LABELS},expectation="is_known",result="failed"': 1,
    }
    assert found["streamkeeper_flow_lag_seconds"] == {f'{LABELS},source="raw"': 61.5}
    assert found["streamkeeper_flow_lag_versions"] == {f'{LABELS},source="theirs"': 3}
    assert found["streamkeeper_flow_lag_bytes"] == {f'{LABELS},source="raw"': 900}


def test_recoveries_are_counted_by_kind_open_ones_by_their_step(driven: World) -> None:
    for _ in range(2):  # from the ledger, and from what this process knows of it
        found = samples(metrics.text(metrics.measure(seen_in(driven))))
        assert found["streamkeeper_recoveries_total"] == {
            'pipeline="events",recovery="reset_checkpoint",outcome="ended"': 1,
            'pipeline="events",recovery="rewind",outcome="given_up"': 1,
        }
        assert found["streamkeeper_recovery_steps"] == {'pipeline="events",recovery="rewind",step="hold"': 1}
    ledger.open(driven.home.storage, "events", "rewind-c-3").record("ended", {})
    later = samples(metrics.text(metrics.measure(seen_in(driven))))
    assert later["streamkeeper_recoveries_total"]['pipeline="events",recovery="rewind",outcome="ended"'] == 1
    assert "streamkeeper_recovery_steps" not in later


def test_failures_before_the_last_commit_do_not_count(world: World) -> None:
    start = world.processed(2, committed=1)
    crash_loops.note(world.home, 100.0)
    crash_loops.note(world.home, 101.0)
    failures = crash_loops.since_commit(Observed(world.home))
    assert failures is not None
    assert len(failures.times) == 2
    world.home.storage.overwrite(f"{start.checkpoint}/commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    assert crash_loops.since_commit(Observed(world.home)) is None


def test_the_shipped_rules_are_those_of_the_table_of_troubles() -> None:
    assert rules.RULES.read_text() == rules.rules(), "run python -m tests.worlds.metrics.rules"


def test_the_rules_ask_for_metrics_that_there_are(driven: World) -> None:
    names = {metric.prometheus for metric in metrics.measure(full(driven))}
    queried = {name for trouble in TROUBLES for name in re.findall(r"streamkeeper_\w+", trouble.expr)}
    assert len(queried) > 8
    assert queried - names == set()


def full(world: World) -> Snapshot:
    """What gives every metric a value."""
    seen = lagging(seen_in(world))
    totals = replace(seen.rows[0].totals, rows_out=900)
    row = replace(seen.rows[0], waiting_since=1767225600.0, age=12.5, batch=7, totals=totals)
    found = replace(seen, rows=(row, *seen.rows[1:]))
    assert len(metrics.measure(found)) == len(metrics._DEFINITIONS)
    return found


def in_prometheus(name: str, unit: str, counter: bool) -> str:
    """Name a metric as OpenTelemetry's specification maps it ("Prometheus and OpenMetrics Compatibility")."""
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", name) if word]
    bare = re.sub(r"\{.*\}", "", unit)
    suffix = {"s": "seconds", "By": "bytes", "1": "" if counter else "ratio", "": ""}[bare]
    words += [suffix] if suffix and suffix not in words else []
    return "_".join([*(word for word in words if word != "total"), *(["total"] if counter else [])])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def test_over_otlp_come_the_same_numbers_and_their_names_map_to_those_of_prometheus(
    driven: World, receiver: Collector
) -> None:
    seen = full(driven)
    found = metrics.measure(seen)
    threads = threading.active_count()
    otlp.push(found, seen.at)
    only = "none is left but the receiver's own"
    wait_until(lambda: threading.active_count() <= threads + 1 or None, 30, only)
    came: Samples = {}
    for metric in receiver.metrics().values():
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        if kind == "sum":
            assert data.is_monotonic and data.aggregation_temporality == 2, "cumulative"
        name = in_prometheus(metric.name, metric.unit, kind == "sum")
        for point in data.data_points:
            assert point.time_unix_nano == pytest.approx(seen.at * 1e9, abs=1e3)
            labels = ",".join(f'{one.key}="{escaped(one.value.string_value)}"' for one in point.attributes)
            came.setdefault(name, {})[labels] = point.as_double
    assert came == samples(metrics.text(found))
    units = {name.removeprefix("streamkeeper."): one.unit for name, one in receiver.metrics().items()}
    assert (units["flow.input.rows"], units["flow.lag.seconds"], units["flow.state.memory"]) == (
        "{row}",
        "s",
        "By",
    )
    assert receiver.resource() == {"service.name": "streamkeeper", "service.version": __version__}


def escaped(text: str) -> str:
    return text.replace('"', r"\"")


def test_counters_of_a_driver_begin_with_it(driven: World, receiver: Collector) -> None:
    seen = seen_in(driven)
    otlp.push(metrics.measure(seen), seen.at)
    came = receiver.metrics()
    [rows] = came["streamkeeper.flow.input.rows"].sum.data_points
    assert rows.start_time_unix_nano == 1767225600 * 10**9, "when its driver took the lease"
    assert came["streamkeeper.flow.drivers"].sum.data_points[0].start_time_unix_nano == 0, "unknown"


def test_the_standard_variables_are_heeded(receiver: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/v1/metrics")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "streams")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=stage")
    otlp.push([ONE], time.time())
    assert receiver.headers[0]["x-tenant"] == "ours"
    assert receiver.resource() == {
        "service.name": "streams",
        "service.version": __version__,
        "deployment.environment.name": "stage",
    }


ONE = Metric("streamkeeper.flow.generation", "gauge", "", "Generation.", (Sample({"flow": "f"}, 1.0),))


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, True),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_metrics_are_pushed_where_the_standard_variables_say_so(
    environment: dict[str, str], wanted: bool
) -> None:
    assert otlp.is_wanted(environment) is wanted


def test_the_monitor_pushes_once_an_interval() -> None:
    def runs(interval: str) -> list[int]:
        told = {"OTEL_METRIC_EXPORT_INTERVAL": interval}
        return [minute for minute in range(6) if otlp.is_due(minute * 60 + 4.2, told)]

    assert [minute for minute in range(6) if otlp.is_due(minute * 60 + 4.2, {})] == [0, 1, 2, 3, 4, 5]
    assert runs("10000") == [0, 1, 2, 3, 4, 5], "it looks no oftener than once a minute"
    assert runs("180000") == [0, 3]
    for wrong in ("soon", "0", "-5"):
        with pytest.raises(SettingsError, match="give milliseconds, such as 60000"):
            runs(wrong)


@pytest.mark.parametrize(
    ("environment", "kind", "said"),
    [
        ({"OTEL_METRICS_EXPORTER": "none"}, SettingsError, "Set OTEL_EXPORTER_OTLP_ENDPOINT, such as"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, SettingsError, "asks for grpc. Set OTEL_EXPORTER_OTLP_MET"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, PushFailed, "No metrics were pushed"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"}, PushFailed, "No metrics were pushed"),
    ],
)
def test_what_keeps_metrics_from_being_pushed_is_said(
    environment: dict[str, str],
    kind: type[StreamkeeperError],
    said: str,
    receiver: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5", **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=re.escape(said)):
        otlp.push([ONE], time.time())
    assert receiver.requests == []


@pytest.mark.parametrize("status", [0, 400, 503])
def test_a_collector_that_refuses_or_does_not_answer_costs_a_bounded_time(
    status: int, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "TIMEOUT", 0.5)
    receiver.status = status
    if not status:
        receiver.answers.clear()
    begun = time.monotonic()
    with pytest.raises(PushFailed, match="No metrics were pushed"):
        otlp.push([ONE], time.time())
    assert time.monotonic() - begun < 20, "far less than a monitor's run may take"


def test_a_missing_package_is_said_with_what_to_install(
    receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(PushFailed, match=r"Install streamkeeper-airflow\[otlp\]"):
        otlp.push([ONE], time.time())


def test_the_command_line_prints_metrics_or_pushes_them(
    driven: World, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.enter(monkeypatch)
    printed = CliRunner().invoke(app, ["metrics"])
    pushed = CliRunner().invoke(app, ["metrics", "--otlp"])
    assert (printed.exit_code, pushed.exit_code, pushed.stdout) == (0, 0, "")
    came = {in_prometheus(name, one.unit, one.HasField("sum")) for name, one in receiver.metrics().items()}
    assert came == samples(printed.stdout).keys()


def test_no_metric_of_recoveries_is_there_without_one() -> None:
    found = metrics.measure(Snapshot((), Recoveries({}, {}), None, 1.5))
    assert metrics.text(found).endswith("streamkeeper_last_look_timestamp_seconds 1.5\n")
    names = [metric.name for metric in found]
    assert names == ["streamkeeper.build.info", "streamkeeper.last_look.timestamp"]


@pytest.mark.long
def test_a_real_collector_takes_every_metric(
    driven: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = full(driven)
    found = metrics.measure(seen)
    with otelcol(tmp_path) as (url, said):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        otlp.push(found, seen.at)
        whole = f'"metrics": {len(found)}, "data points": {sum(len(one.samples) for one in found)}'
        wait_until(lambda: whole in said.read_text() or None, 30, f"it took {whole}")
        text = wait_until(
            lambda: read if (read := said.read_text()).count("-> Name: ") == len(found) else None, 30, "all"
        )
    assert set(re.findall("-> Name: (.*)", text)) == {metric.name for metric in found}
    rows = text.partition("-> Name: streamkeeper.flow.input.rows\n")[2].partition("Metric #")[0]
    for line in (
        "-> Unit: {row}",
        "-> DataType: Sum",
        "-> IsMonotonic: true",
        "-> AggregationTemporality: Cumulative",
        "StartTimestamp: 2026-01-01 00:00:00 +0000 UTC",
        "Value: 5000",
    ):
        assert line in rows
