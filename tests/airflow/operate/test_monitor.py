"""The monitor: who is told what, and when. Checkpoints and sources are real files; mails go to a real
server.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from streamkeeper_airflow.operate import monitor, notify, state_outage
from streamkeeper_airflow.operate.monitor import MonitorFlows
from streamkeeper_airflow.operate.notify import record_alert

from streamkeeper.checkpoint import CommitEntry, write_commit
from streamkeeper.declare.model import Expectation, Location
from streamkeeper.errors import StorageError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.flows.generations import Start
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.history import events, rows
from streamkeeper.history.events import Kind
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.watch import behind, progress
from streamkeeper.watch.alerts import AlertKind
from streamkeeper.watch.batch_numbers import Batch, Numbers, Totals
from streamkeeper.watch.expectations import Shares
from tests.airflow.conftest import configure
from tests.airflow.listeners import Inbox
from tests.worlds.metrics.collector import collector
from tests.worlds.small_world import write_checkpoint

FLOW = "first.first_flow"


def hook(text: str) -> str:
    """Return the declaration of a webhook that is told a text, a template."""
    notifier = "airflow.providers.http.notifications.http.HttpNotifier"
    return f'"{notifier}", http_conn_id="chat", json={{"text": "{text}"}}'


INCIDENT = "{{ alert.kind }} {{ alert.action }} {{ alert.incident }} {{ alert.text }}"
HOOK = hook("{{ alert.kind }}: {{ alert.text }}")


@dataclass
class Bed:
    """The pipeline ``first`` with one flow that committed one batch, and time that the test moves."""

    project: Path
    home: FlowHome
    inbox: Inbox
    now: float
    pushed: list[Any] = field(default_factory=list)
    try_number: int = 3
    max_tries: int = 2

    def declare(self, notifier: str, after: str = '"10 minutes"') -> None:
        configure(self.project, f"notifiers=[dp.notifier({notifier})], no_progress_after={after}")

    def add_file(self, name: str, age: float = 0.0) -> Path:
        file = self.project / "data" / "raw" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text('{"id": 1}\n')
        os.utime(file, (time.time() - age,) * 2)
        return file

    def begin(self, age: float = 0.0) -> str:
        """Let generation 1 read one file, and its driver leave."""
        flow = read_manifest(Settings.from_environment()).find(FLOW)
        decided = generations.decide(self.home, generations.first(self.home, flow.fingerprint))
        lease = leases.acquire(self.home, 1, 1.0)
        folder = self.home.checkpoint(1, lease.epoch)
        generations.begin(
            self.home, Start(1, folder, None, {}, {}, (), None, lease.epoch, "2026-11-21T10:00:00+00:00")
        )
        write_checkpoint(self.home.storage, folder, decided, [], 0)
        self.commit(folder, 0, [self.add_file("0.json", age)])
        leases.leave(self.home, lease, "test")
        return folder

    def commit(self, folder: str, batch: int, files: list[Path]) -> None:
        """Commit a batch as Spark does."""
        logged = "\n".join(
            [
                "v1",
                *(json.dumps({"path": f"file://{f}", "timestamp": _ms(f), "batchId": batch}) for f in files),
            ]
        )
        header = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        self.home.storage.overwrite(f"{folder}/sources/raw/{batch}", logged.encode())
        self.home.storage.overwrite(
            f"{folder}/offsets/{batch}", f'v2\n{header}\nraw:{{"logOffset":{batch}}}'.encode()
        )
        self.home.storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, 0)))

    def look(self, minutes: float) -> str:
        """Look after so many minutes; give the flow's state."""
        self.now += minutes * 60
        found = MonitorFlows(task_id="look").execute(cast("Context", {"ti": self}))
        return str(next(item["state"] for item in found if item["flow"] == FLOW))

    def xcom_push(self, key: str, value: Any) -> None:
        assert key == "return_value"
        self.pushed.append(value)

    def told(self) -> list[str]:
        return [body["text"] for body in self.inbox.bodies]


class Variables:
    """Variables of Airflow, which a task has by its supervisor."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, key: str, default: Any, deserialize_json: bool) -> Any:
        assert deserialize_json
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: Any, serialize_json: bool) -> None:
        assert serialize_json
        self.values[key] = json.dumps(value)

    def delete(self, key: str) -> None:
        del self.values[key]


def _ms(file: Path) -> int:
    return file.stat().st_mtime_ns // 1_000_000


@pytest.fixture
def bed(project: Path, home: FlowHome, chat: Inbox, monkeypatch: pytest.MonkeyPatch) -> Bed:
    made = Bed(project, home, chat, storage_now(home.storage))
    made.declare(HOOK)
    monkeypatch.setattr(monitor, "storage_now", lambda _storage: made.now)
    monkeypatch.setattr(state_outage, "Variable", Variables())
    return made


def test_no_progress_is_told_once_and_its_end_once(bed: Bed) -> None:
    folder = bed.begin()
    assert [bed.look(0), bed.look(1), bed.look(600)] == [
        "first look",
        "idle: nothing to read",
        "idle: nothing to read",
    ]
    new = bed.add_file("1.json")
    assert [bed.look(1), bed.look(9), bed.look(1), bed.look(1)] == [
        "input waits",
        "input waits",
        "no progress",
        "no progress",
    ]
    [said] = bed.told()
    assert said.startswith(
        f"no-progress: {FLOW} has committed nothing for 10 min, although input is waiting: a file waits in"
    )
    assert "(generation 1, batch 0); no driver: the last one, epoch 1, is gone" in said
    bed.commit(folder, 1, [new])
    assert [bed.look(1), bed.look(1)] == ["progressed since the last check", "idle: nothing to read"]
    [_, well] = bed.told()
    assert well.startswith(f"recovered: {FLOW} commits again: generation 1, batch 1.")
    bed.add_file("2.json")
    assert [bed.look(1), bed.look(10)] == ["input waits", "no progress"]
    assert len(bed.told()) == 3, "a new episode"


def test_a_parked_flow_is_not_silent_and_is_told_to_be_well_when_it_commits(bed: Bed) -> None:
    folder = bed.begin()
    bed.look(0)
    new = bed.add_file("1.json")
    holds.put(bed.home, holds.PARK, "it broke", "driver")
    assert [bed.look(1), bed.look(100)] == ["held", "held"]
    park = holds.parked(bed.home)
    assert park is not None
    holds.release(bed.home, holds.PARK)
    assert bed.look(1) == "input waits"
    bed.commit(folder, 1, [new])
    bed.look(1)
    bed.look(1)
    assert [said.split(":")[0] for said in bed.told()] == ["parked", "recovered"]


def test_what_a_driver_told_of_an_expectation_is_sent_with_the_flow_s_page(bed: Bed) -> None:
    bed.declare(hook("{{ alert.kind }} {{ alert.text }} {{ alert.link }}"), "None")
    bed.begin()
    known = Expectation("known", "user_id IS NOT NULL", "warn", Location("p.py", 1), alert_above=0.1)
    Shares(bed.home, [known], 1).add(0, {"known": (70, 30)})
    bed.look(0)
    (told,) = bed.told()
    assert told.startswith("expectation 30 of 100 rows (30.00%) fail the expectation 'known'")
    assert told.endswith(f"/dags/flow__first__first_flow/plugin/stream?flow={FLOW}")


def test_a_flow_that_is_behind_is_told_once_with_its_page_and_then_that_it_is_well(bed: Bed) -> None:
    bed.declare(
        hook(f"{INCIDENT} {{{{ alert.link }}}}"), 'None, behind_above="5 minutes", behind_for="3 minutes"'
    )
    folder = bed.begin(age=3600)
    lease = leases.acquire(bed.home, 1, 1.0)
    numbers = Numbers(Batch(0, bed.now, 2.0, 1), Totals(1, 1, 2.0)).as_details()
    leases.beat(bed.home, Heartbeat(lease.epoch, 1, "running", 1, "then", batch=0, details=numbers))
    new = bed.add_file("1.json", age=420)
    for _ in range(2):
        bed.look(1)
    assert bed.told() == []
    for _ in range(3):
        bed.look(1)
    (told,) = bed.told()
    kind, action, incident, said = told.split(" ", 3)
    assert (kind, action) == ("behind", "trigger")
    assert f"{FLOW} has been more than 5 min behind for" in said
    assert "the oldest input that waits is 7 min old, 1 file. " in said
    assert said.endswith(f"/dags/flow__first__first_flow/plugin/stream?flow={FLOW}")
    holds.put(bed.home, holds.person("ada"), "maintenance", "ada", seconds=3600)
    assert [bed.look(1), bed.look(30)] == ["held", "held"]
    assert len(bed.told()) == 1
    bed.commit(folder, 1, [new])
    assert bed.look(60) != "held", "it ended by itself"
    bed.look(1)
    [_, well] = bed.told()
    assert well.startswith(f"relieved resolve {incident} {FLOW} is 0 s behind; 5 min are allowed. The")
    bed.look(60)
    assert len(bed.told()) == 2, "a quiet flow is never behind"


def test_a_state_folder_that_fails_is_told_once_without_it_and_then_that_it_works(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.declare(hook(INCIDENT))
    bed.begin()
    bed.look(0)

    def full(_storage: Any) -> float:
        raise StorageError("No space left on device")

    def look(try_number: int) -> None:
        bed.try_number = try_number
        with pytest.raises(StorageError, match="No space"), monkeypatch.context() as patched:
            patched.setattr(monitor, "storage_now", full)
            patched.setattr("streamkeeper.storage.local.LocalStorage.overwrite", full)
            bed.look(1)

    look(1)
    assert bed.told() == [], "the next try may find it well"
    bed.inbox.refuse = True
    look(3)
    bed.inbox.refuse = False
    look(3)
    look(3)
    (told,) = bed.told()
    kind, action, incident, said = told.split(" ", 3)
    assert (kind, action) == ("state-fails", "trigger")
    assert said.startswith("No flow can use the state folder: No space left on device\n")
    bed.inbox.refuse = True
    bed.look(1)
    bed.inbox.refuse = False
    bed.look(1)
    bed.look(1)
    (_, well) = bed.told()
    assert well.startswith(f"relieved resolve {incident} The state folder works again. ")


def test_where_nobody_wants_to_know_nobody_is_told(bed: Bed) -> None:
    bed.declare(HOOK, "None")
    bed.begin()
    bed.look(0)
    bed.add_file("1.json")
    assert [bed.look(1), bed.look(10_000)] == ["input waits", "input waits"]
    assert bed.told() == []


def test_an_alert_that_nobody_could_be_told_is_told_by_the_monitor_later(bed: Bed) -> None:
    bed.begin()
    bed.inbox.refuse = True
    record_alert(Settings.from_environment(), AlertKind.CHANGE_WAITS, FLOW, "it waits", "change 1")
    bed.look(1)
    bed.inbox.refuse = False
    bed.look(61)
    bed.look(61)
    assert bed.told() == ["change-waits: it waits"]


def test_a_wrong_notifier_fails_the_task_with_its_pipeline_and_all_flows_are_looked_at(bed: Bed) -> None:
    bed.declare('"no.such.Notifier"')
    bed.begin()
    with pytest.raises(
        AirflowFailException, match=r"Pipeline first \(first\.py\): there is no notifier 'no\.such\.Notifier'"
    ):
        bed.look(1)
    assert [item["flow"] for item in bed.pushed[0]] == [FLOW, "second.second_flow"]


def test_a_flow_that_cannot_be_looked_at_costs_no_other_and_its_park_is_told(bed: Bed) -> None:
    bed.begin()
    bed.home.storage.overwrite(bed.home.progress, b'{"mood": "good"}')
    holds.put(bed.home, holds.PARK, "it broke", "driver")
    with pytest.raises(
        AirflowFailException,
        match=rf"{FLOW} could not be inspected: .*progress\.json is not a monitor's note",
    ):
        bed.look(1)
    assert [item["flow"] for item in bed.pushed[0]] == ["second.second_flow"]
    assert [text.split(":")[0] for text in bed.told()] == ["parked"]


def test_each_look_is_a_row_of_the_flow_s_history_and_a_torn_file_is_a_fault(bed: Bed) -> None:
    bed.begin()
    assert [bed.look(0), bed.look(1)] == ["first look", "idle: nothing to read"]
    first, second = rows.minutes(bed.home)
    assert (first.epoch, first.drivers, second.seconds, second.generation) == (1, 1, 60.0, 1)
    holds.put(bed.home, holds.person("ada"), "a look", "ada")
    assert [event.kind for event in events.read(bed.home.storage, "first")] == [
        "generation",
        "started",
        "stopped",
        "held",
    ]
    for name in bed.home.storage.names(bed.home.history("minutes")):
        bed.home.storage.overwrite(bed.home.history(f"minutes/{name}"), b'{"samples": 3}')
    with pytest.raises(AirflowFailException, match=rf"{FLOW} .* is no part of a flow's history.*Remove it"):
        bed.look(1)


def test_the_monitor_folds_events(bed: Bed) -> None:
    for number in range(events.FOLD):
        events.note(bed.home, Kind.RETRIED, "again", number)
    bed.look(0)
    assert bed.home.storage.names("ledger/events/first/new") == []
    assert len(events.read(bed.home.storage, "first")) == events.FOLD


def test_a_source_that_became_another_kind_under_its_old_name_is_input_that_waits(bed: Bed) -> None:
    folder = bed.begin()
    bed.home.storage.overwrite(
        f"{folder}/offsets/0", b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\nraw:{"0":{"0":7}}'
    )
    assert [bed.look(0), bed.look(1), bed.look(10)] == ["first look", "input waits", "no progress"]
    [said] = bed.told()
    assert "the source raw was another kind of source at the last commit" in said
    assert "is an offset of a kafka source" in said


def test_a_fault_in_the_look_at_one_flow_costs_no_other(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.begin()
    real = progress.look

    def faulty(home: FlowHome, *arguments: Any) -> Any:
        return real(home, *arguments) if home.full_name != FLOW else {}["reservoirVersion"]

    monkeypatch.setattr(progress, "look", faulty)
    with pytest.raises(
        AirflowFailException, match=rf"{FLOW} could not be inspected: KeyError: 'reservoirVersion'"
    ):
        bed.look(1)
    assert [item["flow"] for item in bed.pushed[0]] == ["second.second_flow"]


def test_a_held_flow_is_measured_and_what_cannot_be_measured_fails_no_look(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.begin()
    holds.put(bed.home, holds.PARK, "it broke", "driver")
    file = bed.add_file("1.json")
    assert bed.look(1) == "held"
    found = behind.read(bed.home)
    assert found is not None and (found.files, found.bytes) == (1, file.stat().st_size)
    assert found.seconds == pytest.approx(0, abs=60)

    def refused(*_: Any) -> None:
        raise StorageError("the storage is gone")

    monkeypatch.setattr(behind, "measure_all", refused)
    assert bed.look(1) == "held"


def test_what_is_found_is_json(bed: Bed) -> None:
    bed.begin()
    found = MonitorFlows(task_id="look").execute(cast("Context", {"ti": bed}))
    assert json.loads(json.dumps(found)) == found
    assert notify.page("monitor_flows", "run 1").endswith("/dags/monitor_flows/runs/run%201")


def test_each_look_pushes_metrics_over_otlp_and_a_collector_that_is_away_stops_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.begin()
    bed.look(1)
    with collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        for _ in range(2):
            bed.look(1)
    assert len(receiver.requests) == 2
    came = receiver.metrics()
    [looked] = came["streamkeeper.monitor.last_look.timestamp"].gauge.data_points
    assert looked.as_double == bed.now
    assert came["streamkeeper.flow.last_batch"].gauge.data_points[0].as_double == 0
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    capsys.readouterr()
    assert bed.look(1) == "idle: nothing to read"
    assert "No metrics were pushed over OTLP" in capsys.readouterr().out
