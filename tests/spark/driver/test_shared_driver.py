"""The flows of a pipeline with a shared driver: queries of one application that begin and end together."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.drivers import submit
from streamkeeper.errors import DeclarationError
from streamkeeper.exit_codes import PRECEDENCE, Outcome, of_all
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import read_manifest
from tests.oracle import first_per
from tests.worlds.drivers import SLOW, batch_of
from tests.worlds.flow_world import DEDUPE, SCHEMA, Driver, Flowbed, heartbeat, running_driver, wait_until

Make = Callable[..., Flowbed]
LEFT, RIGHT = "events.left", "events.right"
BOTH = [LEFT, RIGHT]

FLOW = """
dp.create_source("{name}_raw", format="json", path="{{data}}/{name}", schema="{schema}", \
options={{"maxFilesPerTrigger": 1}})

@dp.append_flow(name="{name}", target="{target}", sources=["{name}_raw"], trigger="200 milliseconds", \
spark_conf={conf})
def {name}(raw):
    return raw{view}
"""


def flow(name: str, target: str | None = None, view: str = "", conf: dict[str, object] | None = None) -> str:
    """Write one flow of the shared pipeline."""
    return FLOW.format(name=name, target=target or f"{name}s", view=view, conf=conf or {}, schema=SCHEMA)


def shared(*flows: str, tables: tuple[str, ...] = ("lefts", "rights"), shared_driver: bool = True) -> str:
    """Write the pipeline file ``events.py``."""
    made = "".join(f"dp.create_streaming_table({table!r})\n" for table in tables)
    head = "from pyspark.sql import functions as F\nfrom streamkeeper import pipelines as dp\n"
    return f"{head}dp.configure_pipeline(shared_driver={shared_driver})\n{made}{''.join(flows)}"


PLAIN = shared(flow("left"), flow("right"))


def of(bed: Flowbed, name: str) -> Flowbed:
    """One of the bed's flows."""
    return replace(bed, name=name)


def home(bed: Flowbed, name: str) -> FlowHome:
    return of(bed, name).home


@contextmanager
def driver(bed: Flowbed) -> Iterator[Driver]:
    """Run the shared driver as a real process of spark-submit, in a process group of its own, which ends with
    the block.
    """
    flows = [read_manifest(bed.settings).find(name) for name in BOTH]
    log = bed.root / f"driver-{len(list(bed.root.glob('driver-*')))}.log"
    with running_driver(bed.settings, submit.driver(bed.settings, flows).command(), log) as started:
        yield started


def batch(bed: Flowbed, name: str) -> int:
    found = batch_of(of(bed, name))
    return -1 if found is None else found


def runs(bed: Flowbed, name: str) -> bool:
    """Say whether the flow runs in the present driver, whatever it has read yet."""
    lease, found = leases.current(home(bed, name)), heartbeat(of(bed, name))
    alive = lease is not None and leases.life(home(bed, name), lease) is Life.ALIVE
    return alive and found is not None and found.phase == "running"


def arrive(bed: Flowbed, name: str, *numbers: int) -> list[dict[str, Any]]:
    before = len(bed.events)
    bed.arrive(*numbers, folder=name)
    return bed.events[before:]


def test_two_flows_fill_two_tables_in_one_application(make_bed: Make) -> None:
    bed = make_bed(PLAIN)
    left, right = arrive(bed, "left", 1, 2), arrive(bed, "right", 1, 3)
    assert bed.run(*BOTH) is Outcome.STOPPED
    left += arrive(bed, "left", 2, 4)
    assert bed.run(*BOTH) is Outcome.STOPPED
    replace(bed, target="lefts").holds(left)
    replace(bed, target="rights").holds(right)
    applications = {(found := heartbeat(of(bed, name))) and found.application_id for name in BOTH}
    assert len(applications) == 1
    assert [home(bed, name).epochs() for name in BOTH] == [[1, 2], [1, 2]]


@pytest.mark.long
def test_two_flows_append_to_one_table_that_neither_finds_there(make_bed: Make) -> None:
    bed = make_bed(shared(flow("left", "events"), flow("right", "events"), tables=("events",)))
    for number in range(1, 4):
        arrive(bed, "left", number, 10 + number)
        arrive(bed, "right", 100 + number)
    assert bed.run(*BOTH) is Outcome.STOPPED
    bed.holds(bed.events)


def test_a_hold_on_one_flow_ends_both_the_next_start_runs_the_other_and_a_release_brings_both_back(
    make_bed: Make,
) -> None:
    bed = make_bed(PLAIN)
    arrive(bed, "left", 1)
    arrive(bed, "right", 1)
    with bed.running(*BOTH) as ended:
        wait_until(lambda: all(batch(bed, name) == 0 for name in BOTH))
        holds.put(home(bed, LEFT), holds.person("ann"), "a look at the table", "ann")
        assert ended.result(120) is Outcome.STOPPED
    assert [leases.life(home(bed, name), leases.current(home(bed, name))) for name in BOTH] == [
        Life.LEFT,
        Life.LEFT,
    ]
    with bed.running(*BOTH) as ended:
        wait_until(lambda: runs(bed, RIGHT))
        assert home(bed, LEFT).epochs() == [1], "a held flow gets no lease"
        arrive(bed, "right", 2)
        arrive(bed, "left", 2)
        wait_until(lambda: batch(bed, RIGHT) == 1)
        assert not ended.done()
        holds.release(home(bed, LEFT), holds.person("ann"))
        assert ended.result(120) is Outcome.STOPPED
    assert bed.run(*BOTH) is Outcome.STOPPED
    replace(bed, target="lefts").holds([event for event in bed.events if event["n"] in (1, 2)][::2])
    assert home(bed, LEFT).epochs() == [1, 2]


def test_nothing_is_started_where_every_flow_is_held(make_bed: Make) -> None:
    bed = make_bed(PLAIN)
    for name in BOTH:
        holds.put(home(bed, name), holds.person("ann"), "not now", "ann")
    assert bed.run(*BOTH) is Outcome.HELD
    assert [home(bed, name).epochs() for name in BOTH] == [[], []]


@pytest.mark.long
def test_nothing_is_started_beside_another_driver_of_one_of_the_flows(
    make_bed: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = make_bed(PLAIN)
    held = leases.acquire(home(bed, RIGHT), 1, bed.settings.lease_term)
    assert bed.run(*BOTH) is Outcome.LEASE_HELD
    assert "events.right has a driver" in capsys.readouterr().out
    mine = leases.current(home(bed, LEFT))
    assert mine is not None
    assert leases.life(home(bed, LEFT), mine) is Life.LEFT
    leases.leave(home(bed, RIGHT), held, "the test is over")
    assert bed.run(*BOTH) is Outcome.STOPPED


def test_a_flow_that_needs_recovery_is_parked_alone_the_other_goes_on_and_a_reset_brings_it_back(
    make_bed: Make,
) -> None:
    bed = make_bed(shared(flow("left", view=DEDUPE), flow("right")))
    left, right = arrive(bed, "left", 1, 1, 2), arrive(bed, "right", 1)
    assert bed.run(*BOTH) is Outcome.STOPPED
    bed.declare(PLAIN)
    left_after = arrive(bed, "left", 2, 3)
    right += arrive(bed, "right", 2)
    with bed.running(*BOTH) as ended:
        assert ended.result(120) is Outcome.PARKED
    park = holds.parked(home(bed, LEFT))
    assert park is not None
    assert park.details["sql_state"] == "42K03"
    assert holds.parked(home(bed, RIGHT)) is None
    assert leases.life(home(bed, RIGHT), leases.current(home(bed, RIGHT))) is Life.LEFT
    with bed.running(*BOTH) as ended:
        wait_until(lambda: batch(bed, RIGHT) >= 1)
        right += arrive(bed, "right", 5)
        wait_until(lambda: batch(bed, RIGHT) >= 2)
        of(bed, LEFT).reset()
        assert ended.result(120) is Outcome.STOPPED, "the reset flow is free again"
    assert bed.run(*BOTH) is Outcome.STOPPED
    replace(bed, target="lefts").holds([*first_per(left, ["event_id"]), *left_after])
    replace(bed, target="rights").holds(right)


@pytest.mark.long
def test_a_corrected_declaration_of_a_parked_flow_and_a_new_flow_end_a_driver_that_runs_without_them(
    make_bed: Make,
) -> None:
    bed = make_bed(shared(flow("left", view='.where(F.col("no_such_column") > 1)'), flow("right")))
    arrive(bed, "left", 1)
    arrive(bed, "right", 1)
    assert bed.run(*BOTH) is Outcome.PARKED
    with bed.running(*BOTH) as ended:
        wait_until(lambda: runs(bed, RIGHT))
        bed.declare(PLAIN)
        assert ended.result(120) is Outcome.STOPPED
    with bed.running(*BOTH) as ended:
        wait_until(lambda: all(runs(bed, name) for name in BOTH))
        bed.declare(shared(flow("left"), flow("right"), flow("third", "rights")))
        assert ended.result(120) is Outcome.STOPPED


@pytest.mark.long
def test_each_flow_has_a_session_of_its_own(make_bed: Make) -> None:
    """Both keep state; their numbers of partitions are pinned by their checkpoints, and differ."""
    three, five = ({"spark.sql.shuffle.partitions": count} for count in (3, 5))
    bed = make_bed(shared(flow("left", view=DEDUPE, conf=three), flow("right", view=DEDUPE, conf=five)))
    for number in (1, 2):
        arrive(bed, "left", number)
        arrive(bed, "right", number)
        assert bed.run(*BOTH) is Outcome.STOPPED
    kept = {name: of(bed, name).checkpoint(1).operators() for name in BOTH}
    assert {name: [one.partitions for one in found] for name, found in kept.items()} == {
        LEFT: [3],
        RIGHT: [5],
    }


@pytest.mark.long
def test_kill_9_both_recover_in_fair_pools_of_their_own_and_sigterm_ends_both_in_good_order(
    make_bed: Make,
) -> None:
    logs = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    bed = make_bed()
    logged = bed.root.parent / "spark-events"
    logged.mkdir()
    conf = {**logs, "spark.eventLog.dir": f"file://{logged}"}
    bed.declare(shared(flow("left", view=SLOW, conf=conf), flow("right", view=DEDUPE, conf=conf)))
    left, right = arrive(bed, "left", 1, 2), arrive(bed, "right", 1, 1, 2)
    with driver(bed) as killed:
        killed.until(lambda: all(batch(bed, name) == 0 for name in BOTH))
        left += arrive(bed, "left", 1000)
        right += arrive(bed, "right", 2, 3)
        killed.until(lambda: batch(bed, RIGHT) == 1)
        assert batch(bed, LEFT) == 0, "the slow batch is not done"
        killed.kill()
    left += arrive(bed, "left", 4)
    with driver(bed) as second:
        second.until(lambda: batch(bed, LEFT) == 2 and runs(bed, RIGHT))
        replace(bed, target="lefts").holds(left)
        replace(bed, target="rights").holds(first_per(right, ["event_id"]))
        left += arrive(bed, "left", 1001)
        second.until(lambda: max(of(bed, LEFT).checkpoint(1).offset_batches()) == 3)
        lease = leases.current(home(bed, RIGHT))
        assert lease is not None
        os.kill(lease.process.pid, signal.SIGTERM)
        assert second.wait() == Outcome.STOPPED, second.said()
    replace(bed, target="lefts").holds(left)
    for name in BOTH:
        assert leases.life(home(bed, name), leases.current(home(bed, name))) is Life.LEFT
        kept = of(bed, name).checkpoint(1)
        assert kept.offset_batches() == kept.commit_batches(), "no batch was cut off"
    assert "received SIGTERM" in second.said()
    assert pools_of(logged) == {LEFT: {"left"}, RIGHT: {"right"}}
    assert modes_of(logged) == {"FAIR"}


def pools_of(folder: Path) -> dict[str, set[str]]:
    """Give the scheduler pools in which the jobs of each query's batches ran, by the query's name, as Spark's
    event log has them.
    """
    found: dict[str, set[str]] = {}
    for properties in (
        event.get("Properties") or {}
        for event in spark_events(folder)
        if event["Event"] == "SparkListenerJobStart"
    ):
        described = str(properties.get("spark.job.description", "")).split("\n")[0].split("<br/>")[0].strip()
        if "sql.streaming.queryId" in properties and described in BOTH:
            found.setdefault(described, set()).add(str(properties.get("spark.scheduler.pool")))
    return found


def modes_of(folder: Path) -> set[str]:
    updates = [event for event in spark_events(folder) if event["Event"] == "SparkListenerEnvironmentUpdate"]
    return {dict(event["Spark Properties"])["spark.scheduler.mode"] for event in updates}


def spark_events(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            if line.endswith("}"):  # the application that was killed may have left half a line
                yield json.loads(line)


@pytest.mark.parametrize(
    ("ended", "counts"),
    [
        ({Outcome.STOPPED}, Outcome.STOPPED),
        ({Outcome.RESTART, Outcome.STOPPED}, Outcome.RESTART),
        ({Outcome.FAILED, Outcome.RESTART}, Outcome.FAILED),
        ({Outcome.LEASE_LOST, Outcome.FAILED}, Outcome.LEASE_LOST),
        ({Outcome.RETRY_DECLARED, Outcome.LEASE_LOST}, Outcome.RETRY_DECLARED),
        ({Outcome.PARKED, Outcome.RETRY_DECLARED}, Outcome.PARKED),
    ],
    ids=lambda value: "+".join(sorted(item.name for item in value)) if isinstance(value, set) else value.name,
)
def test_how_an_application_ends_whose_flows_ended_differently(ended: set[Outcome], counts: Outcome) -> None:
    assert of_all(ended) is counts
    never = {Outcome.USAGE, Outcome.HELD, Outcome.LEASE_HELD, Outcome.CHANGE_REFUSED}
    assert set(PRECEDENCE) | never == set(Outcome), "the four never begin"


@pytest.mark.parametrize(
    ("names", "text", "said"),
    [
        (
            BOTH,
            PLAIN.replace("shared_driver=True", "shared_driver=False"),
            "does not let its flows share a driver",
        ),
        ([LEFT, "others.right"], PLAIN, "flows of several pipelines"),
        ([LEFT, LEFT], PLAIN, "names a flow twice"),
        ([LEFT, "events.middle"], PLAIN, "declares no flow 'middle'"),
    ],
    ids=["not shared", "two pipelines", "twice", "unknown"],
)
def test_flows_that_cannot_share_a_driver_are_refused_and_nothing_is_written(
    make_bed: Make, capsys: pytest.CaptureFixture[str], names: list[str], text: str, said: str
) -> None:
    bed = make_bed(text)
    (bed.settings.pipelines / "others.py").write_text(PLAIN)
    assert bed.run(*names) is Outcome.USAGE
    assert said in capsys.readouterr().err
    assert not Path(bed.settings.state).exists()


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (
            {"spark.executor.memory": "1g"},
            {"spark.executor.memory": "2g"},
            r"right has spark\.executor\.memory='2g', and the flow left",
        ),
        (
            {"spark.executor.memory": "1g"},
            {},
            r"right has no spark\.executor\.memory, and the flow left \(.*\) has .*='1g'",
        ),
        (
            {},
            {"spark.sql.extensions": "com.example.More"},
            r"right has spark\.sql\.extensions='com\.example\.More', .* left",
        ),
        ({"spark.scheduler.mode": "FIFO"}, {}, r"the flow left sets spark\.scheduler\.mode"),
    ],
    ids=["differ", "one only", "a static one", "the scheduler's mode"],
)
def test_what_only_an_application_can_have_must_be_the_same_for_all_its_flows(
    tmp_path: Path, left: dict[str, object], right: dict[str, object], said: str
) -> None:
    file = tmp_path / "events.py"
    file.write_text(shared(flow("left", conf=left), flow("right", conf=right)))
    with pytest.raises(DeclarationError, match=said):
        load_pipeline(file, "/data")
    file.write_text(shared(flow("left", conf=left), flow("right", conf=right), shared_driver=False))
    assert load_pipeline(file, "/data").flow("left") is not None


@pytest.mark.long
def test_the_application_has_what_its_flows_declare_alike_and_takes_turns(make_bed: Make) -> None:
    alike = {"spark.executor.memory": "1g", "spark.sql.ansi.enabled": "false"}
    bed = make_bed(
        shared(flow("left", conf={**alike, "spark.sql.shuffle.partitions": 3}), flow("right", conf=alike))
    )
    flows = [read_manifest(bed.settings).find(name) for name in BOTH]
    given = submit.application_settings(bed.settings, flows[0])
    assert given == submit.application_settings(bed.settings, flows[1])
    assert {name: given[name] for name in (*alike, "spark.scheduler.mode")} == {
        **alike,
        "spark.scheduler.mode": "FAIR",
    }
    assert given["spark.sql.shuffle.partitions"] == "2", "what one flow declares is its session's"
    command = submit.driver(bed.settings, flows).command()
    assert command[command.index("--name") + 1] == "events"
    assert command[-4:] == ["--flow", LEFT, "--flow", RIGHT]
    assert submit.environment(bed.settings)["PYSPARK_PIN_THREAD"] == "true", (
        "a thread's pool and session are its own"
    )
