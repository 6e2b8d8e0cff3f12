"""The command line: as a process, for exit codes, streams and the JVM that nobody may start; through typer's
runner for the rest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamkeeper import __version__
from streamkeeper.cli import listing, recovery_session, running
from streamkeeper.cli.commands import app
from streamkeeper.cli.output import Grid, lines_of
from streamkeeper.drivers import failures, submit
from streamkeeper.drivers.causes import Cause
from streamkeeper.errors import PlanRefused, StreamkeeperError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.history.rows import Totals
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import full_refresh
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.sources.base.format import Lag
from streamkeeper.storage import to_json
from streamkeeper.watch import batch_numbers, behind
from streamkeeper.watch.batch_numbers import Batch, Machinery, Numbers
from streamkeeper.watch.behind import Measured
from tests.killing import HEEDING_CTRL_C
from tests.recorder import Recorder
from tests.worlds.recover.recoveries import Submits, approve, carry_out, drive, plan_reset
from tests.worlds.small_world import EVENTS, World

FLOW = "events.clean_events"
RECORDED = Path(__file__).parents[1] / "checkpoint" / "recorded" / "files_aggregation"


@pytest.fixture
def command(world: World) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``streamkeeper`` in a process that could not start a JVM if it wanted to."""
    nothing = world.root / "empty"
    nothing.mkdir()

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        plain = {
            "PATH": str(nothing),
            "JAVA_HOME": "/no/such/java",
            "HOME": str(world.root),
            "USER": "ada",
            "LOGNAME": "ada",
        }
        env = {**plain, **world.environment, **environment}
        return subprocess.run(
            [sys.executable, "-m", "streamkeeper", *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


Command = Callable[..., "subprocess.CompletedProcess[str]"]


# --- exit 0, with and without --json, without a JVM


def test_check_lists_the_flows_and_writes_the_manifest_only_if_told_to(
    command: Command, world: World
) -> None:
    before = world.tree()
    assert command("check").stdout.startswith("events.clean_events → events  ")
    value = json.loads(command("check", "--json").stdout)
    assert ([flow["flow"] for flow in value["flows"]], value["errors"]) == ([FLOW], {})
    assert world.tree() == before
    assert json.loads(command("check", "--write", "--json").stdout) == value
    assert (world.root / "state" / "manifests" / f"{value['manifest']}.json").is_file()


def test_a_branch_is_checked_beside_the_state_that_runs_and_changes_nothing(
    command: Command, stands: World, tmp_path: Path
) -> None:
    branch = tmp_path / "branch"
    branch.mkdir()
    (branch / "events.py").write_text(
        EVENTS.replace('name="clean_events"', 'name="other", trigger="7 seconds"')
    )
    (branch / "second.py").write_text(EVENTS)
    before = stands.tree()
    checked = command("check", "--pipelines", str(branch), "--json")
    value = json.loads(checked.stdout)
    assert [flow["flow"] for flow in value["flows"]] == ["events.other"]
    assert checked.returncode == 1
    assert "events" in value["errors"]["second"]
    both = command("check", "--pipelines", str(branch), "--write")
    assert (both.returncode, "give --write or --pipelines" in both.stderr) == (2, True)
    assert stands.tree() == before


def test_a_pipeline_that_prints_does_not_spoil_the_json(command: Command, world: World) -> None:
    world.declare("print('hello')\n" + EVENTS)
    done = command("check", "--json")
    assert json.loads(done.stdout)["flows"]
    assert "hello" in done.stderr


def test_flows_shows_state_generation_batch_and_age(command: Command, stands: World) -> None:
    text = command("flows")
    heading, line = text.stdout.splitlines()
    numbers = ["state", "since", "generation", "last batch", "behind", "rows/s", "batch took", "detail"]
    assert re.split("  +", heading) == ["flow", *numbers]
    assert re.fullmatch(rf"{FLOW} +declared +– +1 +2, \d+ s ago +– .*never started", line)
    (value,) = json.loads(command("flows", "--json").stdout)
    assert (value["flow"], value["generation"], value["batch"]) == (FLOW, 1, 2)
    assert (text.returncode, text.stderr) == (0, "")


@pytest.mark.parametrize("width", [60, 80, 150])
def test_a_terminal_shows_whole_columns_whatever_the_texts(
    stands: World, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    name = "a_name_that_a_template_made_" * 3
    stands.declare(EVENTS.replace("events", "orders").replace("clean_orders", name), "orders.py")
    home = stands.home.beside("orders", name)
    holds.put(home, holds.person("ada"), "word " * 100 + "x" * 300, "ada")
    stands.enter(monkeypatch)
    heading, *lines = listing.as_text(listing.ALL, width).splitlines()[2:]
    [line] = [line for line in lines if line.startswith("orders.a_name")]
    assert line[heading.index("state") : heading.index("since")].strip() == "held"
    assert all(len(line) <= width for line in lines) and len(lines) < 14
    assert ("generation" in heading) is (width == 150)


def test_advise_says_what_to_declare_and_what_it_could_not_judge(command: Command, stands: World) -> None:
    before = command("advise", FLOW)
    assert (before.returncode, "has no recent batch to judge" in before.stderr) == (2, True)
    batches = [Batch(number, 0.0, 10.0, 5_000, phases={"addBatch": 9.0}) for number in range(6)]
    keys = {"numRowsTotal": 3_000_000, "commitTimeMs": 10, "numShufflePartitions": 4, "customMetrics": {}}
    batch_numbers.keep(stands.home, batches, Machinery(5, 4, 2, operators=[keys]))
    value = json.loads(command("advise", FLOW, "--json").stdout)
    assert [advice["about"] for advice in value["advice"]] == ["state store"]
    text = command("advise", FLOW).stdout
    assert "3,000,000 rows of state on 2 executors" in text
    assert 'Declare: state_store="rocksdb"' in text
    assert value["not_judged"] == ["The table has no readable summary, so its files are not judged."]


def test_a_watched_list_begins_with_the_flow_furthest_behind_and_a_list_can_be_filtered(
    command: Command, stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands.declare(EVENTS.replace("events", "orders"), "orders.py")
    other = stands.home.beside("orders", "clean_orders")
    for home, waits in ((stands.home, 30.0), (other, 90.0)):
        behind.keep(home, Measured({"raw": Lag(records=5, seconds=waits)}), 1_790_000_000.0)
    stands.enter(monkeypatch)
    lines = listing.as_text(listing.ALL, 300).splitlines()
    assert "90 s, 5 records" in lines[3] and "30 s, 5 records" in lines[4]
    gone = {"raw": Lag(0, 0, 0, 0, 0.0), "other": Lag(reason="no broker answers")}
    behind.keep(stands.home, Measured(gone), 1_790_000_060.0)
    assert "partly unknown" in command("flows").stdout.splitlines()[1], "it is not said that nothing waits"
    only = command("flows", "--pipeline", "events", "--state", "declared", "--json")
    assert [row["flow"] for row in json.loads(only.stdout)] == [FLOW]
    wrong = command("flows", "--state", "ill")
    assert (wrong.returncode, "There is no state 'ill'. Allowed are declared" in wrong.stderr) == (2, True)
    piped = command("flows", "--watch", "1")
    assert (piped.returncode, "refreshes a terminal" in piped.stderr) == (2, True)


def log_of(stands: World, name: str) -> Path:
    """Return where a driver's log is."""
    folder = stands.root / "logs" / "drivers" / FLOW
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def test_a_flow_is_shown_whole_in_the_terminal_and_as_json(command: Command, stands: World) -> None:
    holds.put(stands.home, holds.person("ada"), "the disk is changed", "ada")
    cause = Cause("X", "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "42K06", "the key is another")
    failure = failures.classify([cause])
    details = {**asdict(failure), "classed": failure.classed.value}
    holds.put(stands.home, holds.PARK, failure.meaning, "driver", details)
    behind.keep(stands.home, Measured({"events_raw": Lag(reason="no such folder")}), 1_790_000_000.0)
    batch_numbers.keep(stands.home, [Batch(2, 0.0, 2.5, 1_000, state_rows=7)])
    log = log_of(stands, "driver")
    log.write_text("one\ntoken=very-secret-1234\nthree\n")
    process = leases.Process.current()
    lease = leases.Lease(1, process, 1, "2026-01-01T00:00:00+00:00", log=str(log))
    stands.home.storage.create(stands.home.lease(1), to_json(asdict(lease)))
    passed = Numbers(totals=Totals(skipped_commits=2, skipped_rows=1_200, ties=1)).as_details()
    leases.beat(stands.home, leases.Heartbeat(1, 1, "running", 1, "then", details=passed))
    text = command("flow", FLOW).stdout
    for said in (
        f"{FLOW}: stopping",
        "skipped: 2 commits, with at most 1,200 rows added or changed in them",
        "ties: 1 upsert that the sequence does not order",
        "person-ada, by ada",
        "the disk is changed",
        "2: 1,000 rows in 2.5 s, 7 rows of state",
        "Spark says STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE (SQLSTATE 42K06): the key is another",
        "Recover this flow with reset_checkpoint.",
        "events_raw (files): ",
        "; what waits is unknown: no such folder",
        " held: the disk is changed, by ada",
        "not written yet",
        "  three",
    ):
        assert said in text, said
    assert "very-secret-1234" not in text
    value = json.loads(command("flow", FLOW, "--json").stdout)
    assert (value["row"]["state"], value["generations"][0]["number"]) == ("stopping", 1)
    assert value["declaration"]["flow"]["name"] == "clean_events"
    assert value["declaration"]["sources"][0]["name"] == "events_raw"
    assert (value["table"]["version"], value["backups"], value["spark"]["ui"]) == (None, [], None)


def test_what_a_driver_needs_is_shown_and_that_packages_are_downloaded_is_noted(
    command: Command, stands: World
) -> None:
    needs = 'dp.driver(driver_memory="2g", packages=["org.example:udfs:1.2.0", "org.example:more:1.0"])'
    stands.declare(EVENTS.replace('name="clean_events",', f'name="clean_events", driver={needs},'))
    said = command("check").stdout
    assert "note: events.py, line " in said
    assert "needs packages of Maven (org.example:udfs:1.2.0,org.example:more:1.0)" in said
    text = command("flow", FLOW).stdout
    shown = "  driver_memory = 2g\n  packages = org.example:udfs:1.2.0, org.example:more:1.0\n"
    assert f"What its driver needs\n{shown}" in text
    declared = json.loads(command("flow", FLOW, "--json").stdout)["declaration"]
    assert declared["driver"]["driver_memory"] == "2g"
    assert "spark_conf" not in declared["flow"], "it is shown once"


def test_a_hold_for_two_hours_says_until_when(command: Command, stands: World) -> None:
    assert command("hold", FLOW, "--for", "2h", "--reason", "disks").returncode == 0
    (hold,) = holds.all_of(stands.home)
    assert (hold.details, hold.reason.startswith("disks (until ")) == ({"seconds": 7200.0}, True)
    wrong = command("hold", FLOW, "--for", "soon")
    assert (wrong.returncode, "--for is 'soon'. Allowed is a number" in wrong.stderr) == (2, True)


def test_the_log_of_a_driver_is_shown_and_followed_to_the_next_one(stands: World) -> None:
    def driver(epoch: int, text: str) -> Path:
        log = log_of(stands, str(epoch))
        log.write_text(text)
        lease = leases.Lease(epoch, leases.Process.current(), 1, "2026-01-01T00:00:00+00:00", log=str(log))
        stands.home.storage.create(stands.home.lease(epoch), to_json(asdict(lease)))
        return log

    first = driver(1, "a\nb\nc\n")
    environment = {**os.environ, **stands.environment}
    command = [sys.executable, "-m", "streamkeeper", "logs", FLOW, "--lines", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "b\nc\n"
    with subprocess.Popen(
        [*HEEDING_CTRL_C, *command[3:], "--follow"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as following:
        assert following.stdout is not None
        assert [following.stdout.readline() for _ in range(2)] == ["b\n", "c\n"]
        with first.open("a") as log:
            log.write("d\n")
        assert following.stdout.readline() == "d\n"
        driver(2, "e\n")
        assert following.stdout.readline() == f"--- driver 2 of {FLOW}, generation 1 ---\n"
        assert following.stdout.readline() == "e\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0


def test_a_log_that_is_not_here_is_named_with_its_host(command: Command, stands: World) -> None:
    none = command("logs", FLOW)
    assert (none.returncode, "has had no driver. There are: none." in none.stderr) == (2, True)
    elsewhere = replace(leases.Process.current(), host="worker-7")
    lease = leases.Lease(1, elsewhere, 1, "2026-01-01T00:00:00+00:00", log="/logs/1.log")
    stands.home.storage.create(stands.home.lease(1), to_json(asdict(lease)))
    found = command("logs", FLOW)
    assert (found.returncode, "/logs/1.log, on worker-7, and cannot be read here" in found.stderr) == (
        2,
        True,
    )


def test_flows_says_which_pipeline_file_cannot_be_read_and_shows_the_rest(
    command: Command, stands: World
) -> None:
    stands.declare("from streamkeeper import pipelines\n1 / 0", "late.py")
    done = command("flows")
    assert (done.returncode, FLOW in done.stdout, "late.py, line 2" in done.stderr) == (0, True, True)


def test_flows_shows_the_others_where_one_cannot_be_looked_at(command: Command, stands: World) -> None:
    stands.declare(EVENTS.replace("events", "orders"), "orders.py")
    stands.home.storage.overwrite(stands.home.hold(holds.PARK), b"{")
    done = command("flows", "--json")
    assert [item["flow"] for item in json.loads(done.stdout)] == ["orders.clean_orders"]
    assert (done.returncode, "holds/park.json" in done.stderr) == (1, True)


def test_inspect_shows_where_a_flow_stands(command: Command, stands: World) -> None:
    text = command("inspect", FLOW).stdout
    for part in (
        "generation      1",
        "events_raw (files): files log 2",
        "goes back to    batches 0 to 2; generations 1 (rewind)",
        "last batch      2",
        "first start of the flow",
        "problems        none found",
    ):
        assert part in text, part
    value = json.loads(command("inspect", FLOW, "--json", "--files").stdout)
    assert (value["flow"], value["generation"], value["last_commit"]) == (FLOW, 1, 2)
    assert value["sources"][0]["files"] == 3
    assert value["start"]["checkpoint"].endswith("checkpoints/000001-000001")


def test_inspect_says_a_watermark_as_a_time_and_each_position_once(command: Command) -> None:
    text = command("inspect", str(RECORDED)).stdout
    assert "watermark       2025-12-31T23:50:00.000+00:00" in text
    assert ("files log 1" in text, "logOffset" in text) == (True, False)
    value = json.loads(command("inspect", str(RECORDED), "--json").stdout)
    assert (value["watermark_ms"], value["sources"][0]["offset"]) == (1_767_225_000_000, {"logOffset": 1})


def test_inspect_shows_inferred_schemas_and_what_is_in_flight(command: Command, world: World) -> None:
    world.declare(EVENTS.replace('schema="event_id STRING", ', ""))
    world.add_files(2)
    start = world.begin([[world.files[0]], [world.files[1]]], 1, 1)
    name = world.home.start(1)
    content = json.loads(world.home.storage.read(name) or b"")
    world.home.storage.overwrite(
        name, json.dumps({**content, "schemas": {"events_raw": "event_id STRING"}}).encode()
    )
    text = command("inspect", FLOW).stdout
    assert "schema          events_raw: event_id STRING (inferred)" in text
    assert "in flight       batch 1: planned, not committed" in text
    value = json.loads(command("inspect", FLOW, "--json").stdout)
    assert (value["inferred"], value["schemas"]) == (["events_raw"], {"events_raw": "event_id STRING"})
    assert start.number == 1


def test_inspect_shows_a_generation_that_is_decided_and_not_begun(command: Command, stands: World) -> None:
    approve(stands, plan_reset(stands))
    carry_out(stands, *KIND.step_names[:3])
    assert (
        "next            generation 2 is decided (reset_checkpoint after-last, by ada)"
        in command("inspect", FLOW).stdout
    )


def test_inspect_reads_any_checkpoint_by_its_path_without_settings(command: Command) -> None:
    broken = {"STREAMKEEPER_LEASE_TERM": "nonsense", "STREAMKEEPER_PIPELINES": "/no/such"}
    done = command("inspect", str(RECORDED), **broken)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stateStoreSave" in done.stdout
    assert json.loads(command("inspect", str(RECORDED), "--json", **broken).stdout)["last_commit"] == 1


def test_inspect_of_a_path_imports_neither_typer_nor_rich_nor_fsspec() -> None:
    said = (
        "import sys; sys.argv[:1] = ['x', 'inspect']; from streamkeeper.cli import main; main();"
        " print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", said, str(RECORDED)], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in eval(done.stdout.splitlines()[-1])}
    assert not loaded & {"typer", "rich", "click", "pydantic", "fsspec", "deltalake", "subprocess"}


@pytest.mark.parametrize(
    "start",
    ["after-last", 'offsets:{"events_raw": {"logOffset": 0}}'],
)
def test_plan_shows_what_a_reset_would_do_and_touches_nothing(
    start: str, command: Command, stands: World
) -> None:
    before = stands.tree()
    text, value = command("plan", "reset_checkpoint", "--flow", FLOW, "--start", start), None
    value = json.loads(command("plan", "reset_checkpoint", "--flow", FLOW, "--start", start, "--json").stdout)
    head, first, *_ = text.stdout.splitlines()
    assert f"generation 1 → 2, start {start.partition(':')[0]}" in head
    is_refused = start != "after-last"
    assert (text.returncode, text.stderr) == (1 if is_refused else 0, "")
    assert first.startswith("  refused: ") is is_refused, "what is refused is said first"
    assert text.stdout.count("refused: ") == len(value["refusals"])
    assert (value["flows"][0]["flow"], value["flows"][0]["next_generation"]) == (FLOW, 2)
    assert stands.tree() == before


def test_hold_and_release_are_each_owners_own(command: Command, stands: World) -> None:
    assert json.loads(command("hold", FLOW, "--json").stdout) == {FLOW: "person-ada"}
    assert (
        command("hold", "clean_events", "--by", "grace", "--reason", "disk").stdout
        == f"{FLOW}: held by person-grace\n"
    )
    assert json.loads(command("release", "all", "--json").stdout) == {
        FLOW: {"released": True, "left": ["person-grace"]}
    }
    assert "still held by person-grace" in command("release", FLOW).stdout
    assert command("release", FLOW, "--owner", "grace").stdout == f"{FLOW}: released; free to run\n"
    stands.park()
    assert json.loads(command("release", FLOW, "--park", "--json").stdout)[FLOW] == {
        "released": True,
        "left": [],
    }


def test_hold_waits_for_the_drivers_where_it_is_told_to(command: Command, stands: World) -> None:
    assert (
        command("hold", "--pipeline", "events", "--wait").stdout
        == f"{FLOW}: held by person-ada; it had no driver\n"
    )
    done = command("hold", "--all", "--by", "grace", "--deadline", "5", "--json")
    assert json.loads(done.stdout) == {FLOW: {"held_by": "person-grace", "driver": "absence", "epoch": None}}
    stands.park()
    released = command("release", "--all", "--any-person").stdout
    assert released == f"{FLOW}: released from person-ada, person-grace; still held by park\n"


# --- exit 1 for a failure, 2 for wrong usage; messages on standard error, nothing on standard output


FAILURES: dict[str, tuple[list[str], int, str]] = {
    "no checkpoint at a path": (["inspect", "/no/such/place"], 1, "There is nothing at /no/such/place"),
    "a refused plan": (
        ["recover", "reset_checkpoint", "--flow", FLOW, "--start", "earliest", "--yes"],
        1,
        "accept `duplicates`",
    ),
    "no command": (["frobnicate"], 2, "No such command 'frobnicate'"),
    "inspect of nothing": (["inspect", ""], 2, "neither a flow nor a path"),
    "plan from bad JSON": (
        ["plan", "reset_checkpoint", "--flow", FLOW, "--start", "offsets:{"],
        2,
        "is not JSON",
    ),
    "plan with an object that is none": (
        ["plan", "reset_checkpoint", "--flow", FLOW, "--start", "offsets", "--offsets", "{"],
        2,
        "--offsets '{' is not JSON",
    ),
    "plan with another kind's option": (
        ["plan", "full_refresh", "--flow", FLOW],
        2,
        "No such option: --flow",
    ),
    "hold of nothing": (["hold"], 2, "Given are none of flows, pipeline and all. Give exactly one of them."),
    "resume of an unknown recovery": (
        ["recover", "reset_checkpoint", "--flow", FLOW, "--resume", "r0"],
        2,
        "There is no recovery 'r0'",
    ),
    "run of an unknown flow": (["run", "nope"], 2, "There is no flow 'nope'"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_what_cannot_be_done_says_why_exits_so_and_changes_nothing(
    arguments: list[str], code: int, message: str, command: Command, stands: World
) -> None:
    before = stands.tree()
    done = command(*arguments, COLUMNS="300")
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    if arguments[0] != "recover":
        assert done.stdout == ""
    assert stands.tree() == before


def test_check_fails_where_a_pipeline_file_cannot_be_read_and_still_writes_the_rest(
    command: Command, world: World
) -> None:
    world.declare("from streamkeeper import pipelines\n1 / 0", "late.py")
    done = command("check", "--json")
    value = json.loads(done.stdout)
    assert done.returncode == 1
    assert "late.py, line 2" in value["errors"]["late"]
    assert [flow["flow"] for flow in value["flows"]] == [FLOW]


def test_rename_keeps_what_a_flow_has_and_says_what_it_did(command: Command, stands: World) -> None:
    (stands.settings.pipelines / "events.py").rename(stands.settings.pipelines / "visits.py")
    assert "streamkeeper rename events visits" in command("check").stdout
    done = command("rename", "events", "visits")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "events is named visits now.",
        "visits.clean_events continues in generation 1.",
    ]
    assert "visits.clean_events" in command("flows").stdout
    again = json.loads(command("rename", "events", "visits", "--json").stdout)
    assert (again["done_before"], again["flows"]) == (True, {})
    planned = json.loads(
        command("plan", "reset_checkpoint", "--flow", "visits.clean_events", "--json").stdout
    )
    assert [flow["flow"] for flow in planned["flows"]] == ["visits.clean_events"]


def test_a_rename_that_does_not_fit_is_wrong_usage(command: Command, stands: World) -> None:
    done = command("rename", "visits", "events")
    assert (done.returncode, "There is no state of 'visits'" in done.stderr) == (2, True)


def test_a_bad_setting_is_wrong_usage(command: Command) -> None:
    done = command("flows", STREAMKEEPER_LEASE_TERM="soon")
    assert (done.returncode, "STREAMKEEPER_LEASE_TERM is 'soon'" in done.stderr) == (2, True)


def test_a_state_folder_that_cannot_be_written_is_a_failure_that_says_what_to_do(
    command: Command, world: World
) -> None:
    (world.root / "state").write_text("a file")
    done = command("check", "--write")
    assert (done.returncode, "set STREAMKEEPER_STATE to another folder" in done.stderr) == (1, True)
    assert command("hold", FLOW).returncode == 1
    assert (world.root / "state").read_text() == "a file"


# --- recover and run, with a driver that records instead of a JVM


@dataclass
class Driver:
    """Stands in for ``spark-submit`` of a driver: does what a driver does to the state folder, and ends with
    a code.
    """

    world: World
    code: int = Outcome.STOPPED
    calls: int = 0

    def __call__(self, *_: object) -> int:
        self.calls += 1
        assert not self.world.home.owners(), "the flow is free to run when its driver starts"
        if self.code == Outcome.STOPPED:
            drive(self.world.home)
        return self.code


@pytest.fixture
def driver(stands: World, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(stands)
    monkeypatch.setattr(running, "drive", made)
    return made


@pytest.fixture
def runner(stands: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    stands.enter(monkeypatch)
    return lambda *arguments, said="": CliRunner().invoke(
        app, ["recover", "reset_checkpoint", "--flow", FLOW, *arguments], input=said
    )


def test_recover_shows_the_plan_asks_and_carries_out_the_same_steps(
    runner: Callable[..., Any], stands: World, driver: Driver
) -> None:
    done = runner(said="y\n")
    assert (done.exit_code, driver.calls) == (0, 1), done.output
    for part in (
        "generation 1 → 2",
        "Carry this out?",
        "continue with: streamkeeper recover",
        "hold: done",
        "verify_progress: done",
        "runs on generation 2",
    ):
        assert part in done.output, part
    (recovery,) = ledger.recoveries(stands.home.storage, "events")
    assert not engine.is_open(stands.settings, "events", recovery)
    assert (stands.home.owners(), stands.home.generations()) == ([], [1, 2])


@pytest.mark.usefixtures("driver")
def test_recover_in_json_keeps_standard_output_for_the_result(runner: Callable[..., Any]) -> None:
    done = runner("--yes", "--json")
    value = json.loads(done.stdout)
    assert set(value["evidence"]) == set(KIND.step_names)
    assert "generation 1 → 2" in done.stderr


@pytest.mark.parametrize("said", ["n\n", "", "\n"], ids=["no", "end of input", "just enter"])
def test_recover_that_is_not_approved_touches_nothing(
    said: str, runner: Callable[..., Any], stands: World
) -> None:
    before = stands.tree()
    done = runner(said=said)
    assert done.exit_code == 1
    assert stands.tree() == before


def test_recover_that_was_interrupted_goes_on(
    runner: Callable[..., Any], stands: World, driver: Driver
) -> None:
    driver.code = Outcome.FAILED
    failed = runner("--yes")
    assert isinstance(failed.exception, StreamkeeperError)
    assert "ended with exit code 1: failed." in str(failed.exception)
    (recovery,) = ledger.recoveries(stands.home.storage, "events")
    assert recovery in str(failed.exception)
    driver.code = Outcome.STOPPED
    assert runner("--resume", recovery).exit_code == 0
    assert not engine.is_open(stands.settings, "events", recovery)
    assert (runner("--resume", recovery).exit_code, driver.calls) == (0, 2), "what is done is not done again"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("STREAMKEEPER_APPROVERS", "grace,linus", "STREAMKEEPER_APPROVERS names grace, linus"),
        ("STREAMKEEPER_APPROVER_DIFFERS", "true", "demands another person"),
        ("STREAMKEEPER_APPROVAL_ALWAYS", "true", "without --yes"),
    ],
)
def test_recover_by_whom_the_settings_forbid_it_writes_nothing(
    *,
    setting: str,
    value: str,
    words: str,
    runner: Callable[..., Any],
    stands: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(setting, value)
    before = stands.tree()
    refused = runner("--yes")
    assert isinstance(refused.exception, PlanRefused) and words in str(refused.exception)
    assert stands.tree() == before


@pytest.mark.usefixtures("driver")
def test_recover_goes_on_with_what_the_approval_accepted_elsewhere(
    runner: Callable[..., Any], stands: World
) -> None:
    asked = engine.propose(stands.settings, plan_reset(stands, generations.LATEST))
    assert [item.impact for item in asked.refusals] == ["data-loss"]
    refused = runner("--resume", "r1", "--yes")
    assert "impact that was not accepted" in str(refused.exception)
    engine.approve(stands.settings, "events", "r1", "ada", accepted=["data-loss"])  # as Airflow's button does
    done = runner("--resume", "r1")
    assert done.exit_code == 0, done.exception
    assert not engine.is_open(stands.settings, "events", "r1")


@pytest.mark.usefixtures("runner", "driver")
def test_recover_carries_out_the_steps_in_spark_by_spark_submit_and_says_what_the_ledger_has_of_a_failure(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    submits = Submits(stands, {"tables": []}, failures=1, why="the table takes appends only")
    monkeypatch.setattr(recovery_session.subprocess, "run", submits)
    refresh = ["recover", "full_refresh", "--table", "events"]
    failed = CliRunner().invoke(app, [*refresh, "--yes"])
    (recovery,) = ledger.recoveries(stands.home.storage, "events")
    assert "ended with exit code 1: RecoveryError: the table takes appends only. Fix that" in str(
        failed.exception
    )
    assert f"continue with streamkeeper recover full_refresh --resume {recovery}" in str(failed.exception)
    wrong = CliRunner().invoke(app, ["recover", "reset_checkpoint", "--resume", recovery])
    assert "is a full_refresh, no reset_checkpoint" in str(wrong.exception)
    done = CliRunner().invoke(app, ["recover", "full_refresh", "--resume", recovery, "--json"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["evidence"]) == list(full_refresh.KIND.step_names)
    assert submits.acts == ["streamkeeper_jobs.recover.full_refresh:empty_tables"] * 2
    assert [str(submit.RECOVERY_JOB) in command for command in submits.commands] == [True, True]
    assert (stands.home.generations(), stands.home.owners()) == ([1, 2], [])


FAR = "spark://there:7077"


@pytest.fixture
def recorder(stands: World, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A program in place of ``spark-submit``, which fails; the flow declares settings of Spark's, and
    Airflow's secrets are about.
    """
    made = Recorder(stands.root / "spark-submit", code=3)
    monkeypatch.setattr(submit, "spark_submit", lambda: str(made.program))
    stands.declare(
        EVENTS.replace(
            'name="clean_events",', 'name="clean_events", spark_conf={"spark.executor.memory": "3g"},'
        )
    )
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "s3cr3t")
    return made


@pytest.mark.parametrize("master", [FAR, "yarn", "local[3]", None])
@pytest.mark.parametrize(
    ("asked", "job"),
    [
        (["run", FLOW], submit.JOB),
        (["recover", "full_refresh", "--table", "events", "--yes"], submit.RECOVERY_JOB),
    ],
    ids=["run", "recover"],
)
def test_each_command_that_needs_spark_takes_its_master_and_submits_as_the_flow_is(
    *,
    asked: list[str],
    job: Path,
    master: str | None,
    runner: Callable[..., Any],
    recorder: Recorder,
    stands: World,
) -> None:
    failed = CliRunner().invoke(app, [*asked, *(["--master", master] if master else [])])
    [call] = recorder.calls
    assert call.option("--master") == master or (master is None and call.option("--master") == "local[2]")
    assert str(job) in call.arguments
    assert call.conf["spark.executor.memory"] == "3g", "as the flow declares"
    on_one_machine = {
        "spark.driver.host",
        "spark.sql.shuffle.partitions",
        "spark.driver.extraClassPath",
    } & set(call.conf)
    assert len(on_one_machine) == (3 if master in (None, "local[3]") else 0)
    assert "s3cr3t" not in call.environment.values()
    if asked[0] == "recover":
        (recovery,) = ledger.recoveries(stands.home.storage, "events")
        way_on = f"recover full_refresh --resume {recovery}" + (f" --master '{master}'" if master else "")
        assert str(failed.exception).endswith(way_on), "what continues, continues there"


def test_the_drivers_that_a_recovery_starts_run_on_its_master(
    runner: Callable[..., Any], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = runner("--yes", "--master", FAR)
    assert "ended with exit code 3" in str(failed.exception)
    [call] = recorder.calls
    assert (call.option("--master"), str(submit.JOB) in call.arguments) == (FAR, True)


@contextmanager
def running_on(world: World) -> Iterator[None]:
    """Let a driver be at work that ends with the hold of a recovery, after one more file came."""
    lease = leases.acquire(world.home, 1, 1.0)

    def obey() -> None:
        while not any(owner.startswith("recovery-") for owner in world.home.owners()):
            threading.Event().wait(0.01)
        world.add_files(1)
        leases.leave(world.home, lease, "held")

    thread = threading.Thread(target=obey)
    thread.start()
    yield
    thread.join()


@pytest.mark.usefixtures("driver")
def test_recover_asks_again_where_the_impact_got_worse_and_releases_the_flow_on_no(
    runner: Callable[..., Any], stands: World
) -> None:
    from_now = ("--start", "latest", "--accept", "data-loss")
    with running_on(stands):
        refused = runner(*from_now, said="y\nn\n")
    assert "Continue anyway?" in refused.output
    assert (stands.home.owners(), stands.home.generations()) == ([], [1])
    with running_on(stands):
        assert runner(*from_now, said="y\ny\n").exit_code == 0
    assert stands.home.generations() == [1, 2]
    with running_on(stands):
        unattended = runner(*from_now, "--yes")
    assert "not approved again" in str(unattended.exception)
    assert stands.home.generations() == [1, 2]


def test_abandon_takes_an_interrupted_recoverys_hold_and_lock_away(command: Command, stands: World) -> None:
    approve(stands, plan_reset(stands))
    carry_out(stands, "hold")
    assert json.loads(command("abandon", "r1", "--json").stdout) == {"abandoned": "r1"}
    assert stands.home.owners() == []
    assert plan_reset(stands, recovery="r2").flows, "the table is free"


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Outcome.STOPPED, 0, "stopped"),
        (Outcome.PARKED, 1, "parked"),
        (Outcome.LEASE_HELD, 1, "lease held"),
        (137, 1, "failed"),
        (Outcome.USAGE, 2, "usage"),
    ],
)
def test_run_gives_the_drivers_end_as_its_own(
    outcome: int, code: int, words: str, stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands.enter(monkeypatch)
    monkeypatch.setattr(running, "drive", lambda *arguments: int(outcome))
    done = CliRunner().invoke(app, ["run", FLOW, "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout) == {"flow": FLOW, "exit_code": int(outcome), "outcome": words}


def test_drive_sends_the_drivers_output_where_it_is_told(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stands.root / "spark-submit"
    program.write_text("#!/bin/sh\necho from the driver\nexit 20\n")
    program.chmod(0o755)
    monkeypatch.setattr(submit, "spark_submit", lambda: str(program))
    with (stands.root / "out").open("w") as file:
        assert running.drive(stands.settings, stands.flow, True, output=file) == Outcome.PARKED
    assert (stands.root / "out").read_text() == "from the driver\n"


def test_the_version_is_told(command: Command) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"streamkeeper {__version__}\n", "")


def into(world: World, redirect: str, arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``streamkeeper`` in a shell that does something to its standard output."""
    line = f"set -o pipefail; {shlex.quote(sys.executable)} -m streamkeeper {arguments} {redirect}"
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(world.root),
        "USER": "ada",
        **world.environment,
        **environment,
    }
    return subprocess.run(
        ["bash", "-c", line], env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("redirect", "code", "said"),
    [
        pytest.param("| true", 0, "", id="a reader that went away"),
        pytest.param(">&-", 0, "", id="closed"),
        pytest.param(
            ">/dev/full", 1, "could not be printed: .*No space left on device.*Free some space", id="full"
        ),
    ],
)
@pytest.mark.parametrize("arguments", ["flows", "flows --json", f"hold {FLOW}", f"inspect {RECORDED}"])
def test_what_was_done_is_done_though_nobody_can_be_told(
    arguments: str, redirect: str, code: int, said: str, stands: World
) -> None:
    done = into(stands, redirect, arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert re.search(said, done.stderr)
    assert bool(stands.home.owners()) == arguments.startswith("hold")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_letters_gets_them_in_signs_that_it_has(encoding: str, stands: World) -> None:
    narrow = {"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0"}
    for arguments in (
        "check",
        "flows",
        f"inspect {FLOW}",
        f"plan reset_checkpoint --flow {FLOW}",
        "inspect ä/→",
    ):
        done = into(stands, "", arguments, **narrow)
        assert "Traceback" not in done.stderr, done.stderr
    refused = into(stands, "", f"hold {FLOW} --reason 'Straße → 😀' --json", **narrow)
    assert (refused.returncode, stands.home.owners()) == (2, [])
    assert (
        "that the locale of this terminal cannot read" in refused.stderr
        and "LC_ALL=C.UTF-8" in refused.stderr
    )
    holds.put(stands.home, holds.person("ada"), "Straße → 😀", "ada")
    assert json.loads(into(stands, "", "flows --json", **narrow).stdout)[0]["detail"] == "by ada: Straße → 😀"


def test_a_reason_that_would_speak_to_a_terminal_is_shown_without_what_it_says(
    command: Command, stands: World
) -> None:
    holds.put(stands.home, holds.person("mallory"), "\x1b]52;c;Y3VybA==\x07\u202eno reason\x9b2J", "mallory")
    done = command("flows")
    assert "by mallory: ]52;c;Y3VybA==no reason2J" in done.stdout
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    reason = "\x9b2J\u202e\u200fa"
    holds.put(stands.home, holds.person("mallory"), reason, "mallory")
    plain = command("flows", "--json").stdout
    assert json.loads(plain)[0]["detail"].endswith(reason), "JSON says the same, in escapes"
    assert not {"\x9b", "\u202e", "\u200f"} & set(plain)
    world_says = "print('\\x1b]0;title\\x07 \\u2067said')\n"
    stands.declare(world_says + EVENTS)
    assert "]0;title said" in command("check").stderr


TABLE = Grid(
    ("flow", "state", "detail"),
    [("customers.customers_incremental_flow", "running", "pid 17 on ada-laptop, since 10 o'clock, " * 3)],
)


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_a_table_fits_into_its_terminal_and_its_words_stay_whole(width: int) -> None:
    lines = list(lines_of(TABLE, width))
    assert max(len(line.rstrip()) for line in lines) <= max(width, 45), (
        "the flow's name and its state are never cut"
    )
    said = " ".join(" ".join(lines).split())
    assert "customers.customers_incremental_flow running pid 17 on ada-laptop" in said


def test_a_table_in_a_file_has_a_line_a_row_however_long() -> None:
    assert len(list(lines_of(TABLE, None))) == 2


def commands_of(
    group: Any, context: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every command of the program, and how it is called."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        yield (*path, name), found
        if hasattr(found, "list_commands"):
            yield from commands_of(found, type(context)(found, info_name=name, parent=context), (*path, name))


def test_the_help_of_every_command_has_an_example_that_it_would_take() -> None:
    program = typer.main.get_command(app)
    seen = dict(commands_of(program, program.make_context("streamkeeper", ["flows"])))
    assert {("hold",), ("plan", "rewind"), ("recover", "clean_up")} <= set(seen)
    for path, found in seen.items():
        called, *arguments = shlex.split(found.epilog.removeprefix("Example: "))
        assert (called, arguments[: len(path)]) == ("streamkeeper", list(path))
        rest = arguments[len(path) :]
        if hasattr(found, "list_commands"):
            assert rest[0] in found.list_commands(None)
        else:
            found.make_context(path[-1], rest)


def test_help_marks_what_is_required_and_writes_whole_numbers_as_such() -> None:
    rewind, tidy = (
        CliRunner().invoke(app, ["plan", name, "--help"]).stdout for name in ("rewind", "clean_up")
    )
    assert "Required. The flow to rewind." in " ".join(rewind.replace("│", " ").split())
    assert "Default: 30." in " ".join(tidy.replace("│", " ").split()) and "30.0" not in tidy


def test_a_whole_number_is_told_as_one(command: Command) -> None:
    said = command(
        "plan", "backup_table", "--table", "events.events", "--keep-last", "0", "--kept-days", "-1"
    ).stderr
    assert "keep_last is 0;" in said and "kept_days is -1;" in said and ".0" not in said


def test_what_stands_oddly_in_the_state_folder_is_shown_and_no_traceback(
    command: Command, stands: World
) -> None:
    """Written by hand, or by another release."""
    storage, home = stands.home.storage, stands.home
    process = asdict(leases.Process.current())
    lease = {
        "epoch": 1,
        "process": {**process, "pid": 10**30},
        "generation": 1,
        "at": "2026-11-21T10:00:00+00:00",
        "colour": "red",
    }
    storage.create(home.lease(1), to_json(lease))
    done = command("flows")
    assert done.returncode == 1
    assert "lease/000001.json holds" in done.stderr and "has more than 64 bits" in done.stderr
    storage.overwrite(home.lease(1), to_json({**lease, "process": {**process, "pid": -1}}))
    assert "is not a lease: its process has the id -1" in command("flows").stderr
    storage.overwrite(
        home.lease(1),
        to_json({**lease, "process": {**process, "started": process["started"] - 1, "shape": "round"}}),
    )
    storage.overwrite(
        home.heartbeat(1),
        to_json({"epoch": 1, "count": 1, "phase": "running", "generation": 1, "at": "then", "mood": "good"}),
    )
    assert "down" in command("flows").stdout, "fields that a newer release added are left out"
    for number, odd in enumerate(
        ({"reason": ""}, {"reason": 7}, {"reason": None, "details": None}, {"by": 3})
    ):
        hold = {"owner": f"person-p{number}", "reason": "r", "by": "p", "at": "then", "details": {}, **odd}
        storage.overwrite(home.hold(f"person-p{number}"), to_json(hold))
    storage.overwrite(
        home.hold("park"),
        to_json({"owner": "park", "reason": "", "by": "driver", "at": "then", "details": None}),
    )
    done = command("flows")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no reason is given; by p: no reason is given; by p: 7; by p: None; by 3: r" in done.stdout


def test_a_stray_file_beside_the_ledgers_is_no_recovery(command: Command, stands: World) -> None:
    (stands.root / "state" / "events" / "ledger").mkdir(parents=True, exist_ok=True)
    (stands.root / "state" / "events" / "ledger" / "junk").write_text("?")
    done = command("abandon", "junk")
    assert (done.returncode, done.stderr) == (
        2,
        "streamkeeper: There is no recovery 'junk'. Those that are not over: none. Nothing was changed.\n",
    )
