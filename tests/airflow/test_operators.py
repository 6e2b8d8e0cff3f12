"""What a flow's task makes of how its driver ended, and of holds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from streamkeeper_airflow.flow import supervise
from streamkeeper_airflow.flow.gate import HoldTrigger, blocking
from streamkeeper_airflow.flow.retries import DriverFailed
from streamkeeper_airflow.flow.supervise import FlowOperator
from streamkeeper_airflow.operate.park_message import describe_park

from streamkeeper.drivers import failures
from streamkeeper.drivers.causes import Cause
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.health.flows import look_now
from streamkeeper.history import events
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.supervise import changes
from streamkeeper.supervise.attached import Ending
from streamkeeper.watch import crash_loops
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.conftest import a_try

FLOW = "first.first_flow"
BROKEN = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
RUN = a_try()


@pytest.fixture
def operator() -> FlowOperator:
    return FlowOperator(task_id="run", flow=FLOW)


def park(home: FlowHome, fingerprint: str) -> holds.Hold:
    failure = failures.classify([Cause("StreamingQueryException", BROKEN, "42K03", "does not match")])
    details = {
        **asdict(failure),
        "classed": failure.classed.value,
        "fingerprint": fingerprint,
        "generation": 1,
    }
    return holds.put(home, holds.PARK, failure.meaning, "driver", details)


def test_a_driver_that_stopped_in_good_order_is_a_success(operator: FlowOperator, home: FlowHome) -> None:
    operator._conclude(home, ending=Ending(Outcome.STOPPED, "exit code 0"), context=RUN)
    assert (home.owners(), crash_loops.read(home)) == ([], None), "neither parked nor counted as a failure"


def test_a_driver_that_found_a_hold_is_skipped_and_not_a_failure(
    operator: FlowOperator, home: FlowHome
) -> None:
    with pytest.raises(AirflowSkipException, match="was held before its driver began"):
        operator._conclude(home, ending=Ending(Outcome.HELD, "exit code 10"), context=RUN)


@pytest.fixture
def once() -> FlowOperator:
    return FlowOperator(task_id="run", flow=FLOW, once=True)


def decide(home: FlowHome, number: int) -> None:
    generations.decide(home, generations.with_number(generations.first(home, "fingerprint"), home, number))


def test_a_once_flow_that_is_done_ends_at_once_in_success_and_says_so(
    once: FlowOperator, home: FlowHome, capsys: pytest.CaptureFixture[str]
) -> None:
    decide(home, 1)
    generations.finish(home, 1, 4)
    once.execute(RUN)
    assert f"{FLOW} is done, in generation 1" in capsys.readouterr().out


def test_a_reset_makes_a_once_flow_run_again(once: FlowOperator, home: FlowHome) -> None:
    decide(home, 1)
    generations.finish(home, 1, 4)
    decide(home, 2)
    assert not once._is_done()


JVM_WITHOUT_MEMORY = 3
"""The exit code of a JVM with ``-XX:+ExitOnOutOfMemoryError``."""


@pytest.mark.parametrize("code", [Outcome.STOPPED, Outcome.HELD, Outcome.DONE])
def test_a_once_flow_whose_driver_stopped_in_good_order_is_looked_at_again(
    code: Outcome, once: FlowOperator, home: FlowHome
) -> None:
    assert once._conclude(home, ending=Ending(code, "…"), context=RUN)


def test_a_once_flow_that_is_held_waits_without_a_slot_since_no_next_run_would(
    once: FlowOperator, home: FlowHome
) -> None:
    holds.put(home, holds.person("ann"), "the disk is changed", "ann")
    with pytest.raises(TaskDeferred) as deferred:
        once._skip_if_held(Settings.from_environment())
    assert (deferred.value.method_name, deferred.value.trigger.flow) == ("freed", FLOW)


@pytest.mark.parametrize(
    "code", [Outcome.FAILED, Outcome.RESTART, Outcome.USAGE, Outcome.LEASE_LOST, -9, 143, JVM_WITHOUT_MEMORY]
)
def test_any_other_ending_is_tried_again(code: int, operator: FlowOperator, home: FlowHome) -> None:
    with pytest.raises(DriverFailed, match=r"The driver of first\.first_flow ended: killed"):
        operator._conclude(home, ending=Ending(code, "killed"), context=RUN)


def test_a_parked_flow_fails_for_good_and_says_what_broke_even_where_no_note_can_be_set(
    operator: FlowOperator,
    home: FlowHome,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    park(home, "as it failed")
    with pytest.raises(AirflowFailException, match="is parked"):
        operator._conclude(home, ending=Ending(Outcome.PARKED, "exit code 20"), context=RUN)
    assert "SQLSTATE 42K03" in capsys.readouterr().out
    assert "There is no connection 'streamkeeper_airflow'" in caplog.text


def test_a_park_is_told_with_the_recovery_that_fits_and_its_form_in_the_first_line_and_with_its_sqlstate(
    home: FlowHome,
) -> None:
    first, _, *others = describe_park(FLOW, park(home, "x")).splitlines()
    assert first.startswith("Recovery: reset_checkpoint, at ")
    assert first.endswith(f"/dags/reset_checkpoint (button Trigger, flow {FLOW})")
    assert others[0].startswith(
        f"The flow {FLOW} stopped: a stateful operation (dropDuplicates, an aggregation, a join) was removed"
    )
    assert f"{BROKEN} (SQLSTATE 42K03)" in others[1]


def test_a_park_that_no_recovery_mends_names_the_correction_in_its_first_line(home: FlowHome) -> None:
    failure = failures.classify(
        [Cause("AnalysisException", "DELTA_METADATA_MISMATCH", "42KDG", "a column is missing")]
    )
    hold = holds.put(
        home, holds.PARK, failure.meaning, "driver", {**asdict(failure), "classed": failure.classed.value}
    )
    said = describe_park(FLOW, hold).splitlines()
    assert said[0] == "To be corrected: the columns of the flow do not match those of its table"
    assert said[2].startswith(f"The flow {FLOW} stopped")


def test_a_park_without_a_classed_failure_has_its_reason_only(home: FlowHome) -> None:
    hold = replace(park(home, "x"), reason="someone did it by hand", details={})
    assert describe_park(FLOW, hold) == f"The flow {FLOW} is parked: someone did it by hand"


def test_a_park_holds_the_declaration_that_failed_and_no_other(home: FlowHome) -> None:
    settings = Settings.from_environment()
    park(home, read_manifest(settings).find(FLOW).fingerprint)
    assert [hold.owner for hold in blocking(settings, FLOW)] == ["park"]
    park(home, "another declaration")
    assert blocking(settings, FLOW) == []
    holds.put(home, holds.person("tester"), "wait", "tester")
    assert len(blocking(settings, FLOW)) == 2


def test_a_park_stays_while_the_pipeline_file_raises_since_no_newer_fingerprint_is_known(
    home: FlowHome, project: Path
) -> None:
    settings = Settings.from_environment()
    read_manifest(settings)
    park(home, "unreadable")
    assert blocking(settings, FLOW) == [], (
        "another declaration than the one that failed: the new declaration is tried once"
    )
    file = project / "pipelines" / "first.py"
    sound = file.read_text()
    file.write_text(sound + "\nraise ValueError('half written')\n")
    assert [hold.owner for hold in blocking(settings, FLOW)] == ["park"]
    (project / "pipelines" / "second.py").write_text(
        "from streamkeeper import pipelines as dp\nraise ValueError('another file')\n"
    )
    file.write_text(sound)
    assert blocking(settings, FLOW) == [], "another pipeline's file holds nobody"


def test_a_driver_that_is_ended_by_force_under_a_hold_is_skipped_and_not_a_failure(
    operator: FlowOperator, home: FlowHome
) -> None:
    holds.put(home, holds.person("ada"), "now", "ada")
    with pytest.raises(AirflowSkipException, match="person-ada, by ada"):
        operator._conclude(home, ending=Ending(-9, "ended by SIGKILL"), context=RUN)
    assert crash_loops.read(home) is None


ALERTS = [
    pytest.param(
        Outcome.RETRY_DECLARED,
        (AlertKind.RETRIED_AS_DECLARED, "is retried, as declared"),
        id="retried as declared",
    ),
    pytest.param(
        Outcome.USAGE,
        (AlertKind.SETTINGS, "settings or its command line cannot be used"),
        id="wrong settings",
    ),
]


@pytest.mark.parametrize(("code", "told"), ALERTS)
def test_people_are_told_of_what_is_retried_though_it_will_hardly_mend(
    code: Outcome,
    told: tuple[AlertKind, str],
    operator: FlowOperator,
    home: FlowHome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        with pytest.raises(DriverFailed):
            operator._conclude(home, ending=Ending(code, f"exit code {code.value}"), context=RUN)
    kind, words = told
    [record] = [record for record in caplog.records if record.getMessage().startswith("Alert:")]
    assert words in record.getMessage()
    assert (
        len([name for name in home.storage.names(f"{home.root}/alerts") if name.startswith(kind.value)]) == 1
    )


def test_what_ended_a_driver_that_is_tried_again_stands_in_log_note_page_and_events(
    operator: FlowOperator, home: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid = "[CAST_INVALID_INPUT] The value 'abc' is malformed.\n== SQL (line 1) ==\nCAST(n AS INT)\n^^^^\n"
    failure = failures.classify(
        [Cause("x.SparkNumberFormatException", "CAST_INVALID_INPUT", "22018", invalid)]
    )
    lease = leases.acquire(home, 1, 30.0)
    details = {**asdict(failure), "classed": failure.classed.value, "generation": 1}
    leases.note_failure(home, lease, details)
    leases.leave(home, lease, "failed")
    notes: list[str] = []
    monkeypatch.setattr(supervise, "set_run_note", lambda dag, run, note: notes.append(note))
    with pytest.raises(DriverFailed) as raised:
        operator._conclude(home, ending=Ending(Outcome.FAILED, "exit code 1"), context=RUN)
    settings = Settings.from_environment()
    _, rows = look_now(settings)
    page = next(row.detail for row in rows if row.flow == FLOW)
    retried = [
        one.text for one in events.read(home.storage, home.pipeline) if one.kind == events.Kind.RETRIED
    ]
    for text in (str(raised.value), *notes, page, *retried):
        assert "CAST_INVALID_INPUT (SQLSTATE 22018): The value 'abc' is malformed." in text
        assert "The expression: CAST(n AS INT)" in text
    assert (len(notes), len(retried)) == (1, 1)


async def fire(trigger: HoldTrigger) -> dict[str, str]:
    async for event in trigger.run():
        return cast("dict[str, str]", event.payload)
    raise AssertionError("the trigger ended without an event")


def test_the_trigger_waits_while_a_hold_is_there_and_fires_when_it_is_gone(
    home: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setenv("STREAMKEEPER_HEARTBEAT_INTERVAL", "0.05")
    holds.put(home, holds.person("tester"), "a look at the table", "tester")

    async def scenario() -> dict[str, str]:
        waiting = asyncio.create_task(fire(HoldTrigger(FLOW)))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        holds.release(home, holds.person("tester"))
        return await asyncio.wait_for(waiting, 30)

    assert asyncio.run(scenario()) == {"flow": FLOW}


def test_the_gates_of_many_parked_flows_read_the_manifest_once(
    home: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setenv("STREAMKEEPER_HEARTBEAT_INTERVAL", "0.05")
    manifest = read_manifest(Settings.from_environment())
    park(home, manifest.find(FLOW).fingerprint)
    reads: list[Settings] = []
    monkeypatch.setattr(changes, "read_manifest", lambda settings: reads.append(settings) or manifest)

    async def scenario() -> None:
        waiting = [asyncio.create_task(fire(HoldTrigger(FLOW))) for _ in range(20)]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done
        holds.release(home, holds.PARK)
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert len(reads) == 1
