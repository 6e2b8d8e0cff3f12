"""The tasks of a recovery's DAG, with the engine on a small world: what becomes of a plan, of a step and of a
failure in Airflow, and who is told.
"""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
)
from streamkeeper_airflow.recovery import alerts, tasks
from streamkeeper_airflow.recovery.approvals import PlanApproval, WorseImpactApproval
from streamkeeper_airflow.recovery.tasks import (
    GiveUp,
    Go,
    OnceFlows,
    RecoveryStep,
    UnaskedStep,
)

from streamkeeper.errors import ApprovalRefused, RecoveryError, RequestError, StorageError, StreamkeeperError
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import LocalStorage
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.recovery.conftest import Cluster, Run, alerts_of, approved
from tests.worlds.recover.recoveries import drive
from tests.worlds.small_world import CHANGES, EVENTS, World

RESET, F = KIND.name, "events.clean_events"
UNTIL_RELEASED = KIND.step_names[:-1]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes that runs get; no API is asked."""
    texts: list[str] = []
    monkeypatch.setattr(alerts, "set_run_note", lambda _dag, _run, note: texts.append(note))
    return texts


def give_up() -> GiveUp:
    return GiveUp(task_id="give_up", after="decide")


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        pytest.param({}, ["none of flows, pipeline and all"], id="no flow"),
        pytest.param(
            {"flow": "nobody", "colour": 1, "start": "timestamp", "timestamp": "9999-01-01T00:00:00Z"},
            ["There is no flow", "Unknown", "lies in the future"],
            id="everything at once",
        ),
        pytest.param({"flow": F}, [F], id="a flow that never ran"),
    ],
)
def test_what_cannot_be_planned_is_answered_in_the_run_s_note_with_all_that_is_wrong_and_writes_nothing(
    conf: dict[str, Any], words: list[str], world: World, notes: list[str]
) -> None:
    with pytest.raises(AirflowSkipException) as refused:
        Run(RESET, **conf).plan()
    [note] = notes
    for word in words:
        assert word in str(refused.value)
        assert word in note
    assert note.startswith("Refused: ")
    assert any(word in note.splitlines()[0] for word in words), "the list of runs shows the first line only"
    assert not (world.root / "state" / "events").exists()


def test_a_plan_that_was_given_up_is_no_answer_and_stays_red(stands: World, notes: list[str]) -> None:
    run = Run(RESET, flow=F)
    run.plan()
    engine.abandon(stands.settings, "events", run.recovery, "grace")
    with pytest.raises(AirflowFailException, match=r"was given up \(abandoned by grace\)"):
        run.plan()
    assert notes == []


@pytest.mark.parametrize(
    ("run_type", "more", "words", "alerted"),
    [
        pytest.param("manual", {}, "has locked the table events", False, id="a person"),
        pytest.param("operator_triggered", {}, "has locked the table events", True, id="a schedule"),
        pytest.param("operator_triggered", {"rehearsal": "r9"}, "no rehearsal", False, id="who said go"),
    ],
)
def test_a_refusal_is_an_answer_to_a_person_and_a_failure_of_a_schedule_that_is_told(
    *, run_type: str, more: dict[str, str], words: str, alerted: bool, stands: World, notes: list[str]
) -> None:
    approved(RESET, "hold", run_id="earlier", flow=F)
    run = Run(RESET, run_type, flow=F, **more)
    with pytest.raises(AirflowSkipException if run_type == "manual" else AirflowFailException, match=words):
        run.plan()
    [note] = notes
    assert note.startswith("Refused: ") and words in note
    assert ["did not start: " in alert.text for alert in alerts_of(run)] == [True] * alerted


def test_secrets_in_the_form_s_values_are_hidden_by_airflow_s_masker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[str] = []
    monkeypatch.setattr(tasks, "mask_secret", hidden.append)
    with pytest.raises(AirflowSkipException):
        Run(RESET, flow=F, offsets={"kafka.sasl.jaas.config": "hunter2"}).plan()
    assert hidden == ["hunter2"]


@pytest.mark.parametrize(
    ("more", "conf", "words", "alerted"),
    [
        pytest.param(
            "", {"start": "earliest", "approval": False}, "6 rows", True, id="an impact, and nobody is asked"
        ),
        pytest.param(
            'dp.configure_pipeline(rehearse=["reset_checkpoint"])\n',
            {},
            "demands that a reset_checkpoint is rehearsed",
            False,
            id="an obstacle, which no answer takes away",
        ),
    ],
)
def test_what_nobody_can_accept_ends_it_and_is_told_where_nobody_is_asked(
    *, more: str, conf: dict[str, Any], words: str, alerted: bool, stands: World, notes: list[str]
) -> None:
    stands.declare(EVENTS + more)
    run = Run(RESET, flow=F, **conf)
    with pytest.raises(AirflowSkipException, match=words):
        run.plan()
    assert [(alert.kind, "did not start" in alert.text, alert.occasion) for alert in alerts_of(run)] == [
        (AlertKind.RECOVERY_FAILED, True, run.recovery)
    ] * alerted
    assert words in notes[0]
    assert not (stands.root / "state" / "events" / "ledger").exists()


def test_a_table_that_no_flow_writes_is_backed_up_and_people_are_told_through_another_flow(
    world: World,
) -> None:
    world.declare(EVENTS + 'dp.create_streaming_table("retired")\n')
    world.table = "retired"
    world.write_table("a flow that is gone", 1)
    run = approved("backup_table", table="events.retired")
    alerts.tell_undone({**run.handed_on["plan"], "flow": None}, run.context(), "was given up.")
    assert alerts_of(run) == [], "where there is no other, nobody is told"
    run.execute(GiveUp(task_id="give_up", after="pin"))
    assert [alert.kind for alert in alerts_of(run)] == [AlertKind.RECOVERY_FAILED]


@pytest.mark.parametrize(
    ("error", "raised", "alerted"),
    [
        pytest.param(
            RecoveryError("the copy is not whole"),
            AirflowFailException,
            True,
            id="another try would meet the same",
        ),
        pytest.param(RequestError("no such thing"), AirflowFailException, True, id="wrong usage"),
        pytest.param(StorageError("the disk is away"), RecoveryError, False, id="another try may go better"),
        pytest.param(None, AirflowException, False, id="the job died without a word"),
    ],
)
def test_a_step_in_spark_fails_with_what_the_ledger_says_and_its_next_try_does_it_once(
    *,
    error: StreamkeeperError | None,
    raised: type[Exception],
    alerted: bool,
    stands: World,
    cluster: Cluster,
) -> None:
    run = approved("full_refresh", "hold", "plan_again", table="events.events")
    cluster.error, cluster.dies = error, error is None
    with pytest.raises(raised, match=str(error or "Error code is: 1")):
        run.carry_out("empty_tables")
    assert cluster.submitted == [
        ["--pipeline", "events", "--recovery", run.recovery, "--step", "empty_tables"]
    ]
    assert len(alerts_of(run)) == alerted
    cluster.error, cluster.dies, cluster.evidence = None, False, {"tables": [], "rows": 7}
    assert [run.carry_out("empty_tables")["rows"] for _ in range(2)] == [7, 7]
    assert len(cluster.submitted) == 2, "what is done starts no Spark"


def test_a_step_in_spark_that_has_nothing_to_do_starts_no_spark(stands: World, cluster: Cluster) -> None:
    run = approved("rewind", "hold", "plan_again", "decide", flow=F, batch="1", accept=["duplicates"])
    assert "target is kept" in run.carry_out("put_back")["note"]
    assert cluster.submitted == []


def test_a_recovery_of_a_pipeline_runs_by_the_connection_that_the_pipeline_names(stands: World) -> None:
    assert Run(RESET, flow=F).plan()["connection"] == "streamkeeper_spark"
    stands.declare(f'{EVENTS}dp.configure_pipeline(connection="spark_a")\n')
    assert Run(RESET, run_id="manual__2", flow=F).plan()["connection"] == "spark_a"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_ends_after_what_is_tried_before_anybody_is_asked(
    dry_run: bool, stands: World, cluster: Cluster
) -> None:
    cluster.evidence = {"markdown": "…"}
    run = Run(RESET, flow=F, rehearse=True, dry_run=dry_run)
    run.plan()
    with DAG(RESET):
        task = UnaskedStep(task_id="rehearse", kind_name=RESET)
        task >> RecoveryStep(task_id="hold", kind_name=RESET)
    if dry_run:
        with pytest.raises(DownstreamTasksSkipped) as skipped:
            run.execute(task)
        assert list(skipped.value.tasks) == ["hold"]
        assert run.handed_on["return_value"] == cluster.evidence
    else:
        assert run.execute(task) == cluster.evidence


def test_a_dry_run_whose_trial_failed_tells_nobody_and_is_over(stands: World, cluster: Cluster) -> None:
    cluster.error = RecoveryError("it does not fit")
    run = Run(RESET, flow=F, rehearse=True, dry_run=True)
    plan = run.plan()
    with pytest.raises(AirflowFailException, match="it does not fit"):
        run.execute(UnaskedStep(task_id="rehearse", kind_name=RESET))
    with pytest.raises(AirflowSkipException, match="It was a dry run"):
        run.execute(give_up())
    end = ledger.open(stands.home.storage, "events", plan["recovery"]).end()
    assert (alerts_of(run), end and end.evidence) == ([], {"why": "it was a dry run"})


def test_whoever_approves_accepts_the_impacts_that_the_answer_names(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[list[str]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda *, options, **_: asked_for.append(options))
    run = Run(RESET, flow=F, start="earliest")
    run.plan()
    context = run.context()
    with pytest.raises(TaskAwaitingInput):
        PlanApproval(task_id="approve").execute(
            cast("Context", {**context, "task_instance": SimpleNamespace(id="1")})
        )
    answer = "Approve, and duplicate 6 rows"
    assert asked_for == [[answer, "Reject"]]
    event = {
        "params_input": {},
        "responded_at": datetime.now(timezone.utc),
        "responded_by_user": {"id": "1", "name": "grace"},
        "chosen_options": [answer],
    }
    PlanApproval(task_id="approve").execute_complete(context, event)
    book = ledger.open(stands.home.storage, "events", run.recovery)
    [event] = [event.evidence for event in book.events() if event.event == "approved"]
    assert event == {"by": "grace", "accepted": ["duplicates"]}
    run.carry_out("hold", "plan_again", "decide")


def answered(run: Run, user: str) -> None:
    """Let a user press the approving button of a run."""
    event = {
        "params_input": {},
        "responded_at": datetime.now(timezone.utc),
        "responded_by_user": {"id": "7", "name": user},
        "chosen_options": ["Approve"],
    }
    PlanApproval(task_id="approve").execute_complete(run.context(), event)


@pytest.mark.parametrize(
    ("setting", "value", "no", "yes"),
    [
        pytest.param("APPROVERS", "grace,linus", "ada", "grace", id="who is not named"),
        pytest.param("APPROVER_DIFFERS", "true", "ada", "grace", id="who asked"),
    ],
)
def test_an_answer_of_who_may_not_approve_counts_for_nothing_and_the_next_one_may(
    *, setting: str, value: str, no: str, yes: str, stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"STREAMKEEPER_{setting}", value)
    run = Run(RESET, flow=F)
    run.plan()
    with pytest.raises(ApprovalRefused, match=f"STREAMKEEPER_{setting}") as refused:
        answered(run, no)
    assert not isinstance(refused.value, AirflowFailException), "the next try asks again"
    with pytest.raises(AirflowException, match="not approved"):
        run.carry_out("hold")
    answered(run, yes)
    run.carry_out("hold")


@pytest.mark.parametrize(("run_type", "refused"), [("manual", True), ("operator_triggered", False)])
def test_a_person_cannot_switch_approval_off_where_a_setting_forbids_it_and_a_schedule_can(
    *, run_type: str, refused: bool, stands: World, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_APPROVAL_ALWAYS", "true")
    run = Run(RESET, run_type, flow=F, approval=False)
    if refused:
        with pytest.raises(AirflowSkipException, match="APPROVAL_ALWAYS forbids people"):
            run.plan()
        assert "APPROVAL_ALWAYS" in notes[0]
        assert not (stands.root / "state" / "events" / "ledger").exists()
        return
    run.plan()
    run.execute(PlanApproval(task_id="approve"))
    run.carry_out("hold")


@pytest.mark.parametrize("worse", [False, True])
def test_a_worse_impact_is_asked_about_and_ends_a_recovery_that_nobody_can_be_asked_about(
    worse: bool, stands: World, notes: list[str]
) -> None:
    run = approved(RESET, "hold", flow=F, start="latest", accept=["data-loss"])
    stands.add_files(int(worse))
    run.carry_out("plan_again")
    approval = WorseImpactApproval(task_id="approve_again")
    if not worse:
        assert run.execute(approval) is None
        return
    with pytest.raises(AirflowFailException, match=r"The impact got worse.*It changed nothing"):
        run.execute(approval)
    with pytest.raises(AirflowSkipException, match="got worse"):
        run.carry_out("decide")
    assert [alert.kind for alert in alerts_of(run)] == [AlertKind.RECOVERY_FAILED]
    assert notes[0].startswith("Refused: The impact got worse")


def test_flows_that_run_once_are_handed_on_to_be_triggered(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(1)
    run = Run(RESET, flow=F)
    run.plan()
    assert run.execute(OnceFlows(task_id="once_flows")) == ["flow__events__clean_events"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        pytest.param(None, "No step was started", id="the plan failed"),
        pytest.param(UNTIL_RELEASED[:3], "The step decide is done", id="decided"),
    ],
)
def test_there_is_nothing_to_give_up(steps: tuple[str, ...] | None, why: str, stands: World) -> None:
    run = Run(RESET) if steps is None else approved(RESET, *steps, flow=F)
    with pytest.raises(AirflowSkipException, match=rf"{why}.*nothing to give up"):
        run.execute(give_up())


def test_a_decision_whose_task_ended_without_a_word_is_not_given_up(stands: World) -> None:
    run = approved(RESET, *UNTIL_RELEASED[:3], flow=F)
    del run.handed_on["decide"]
    with pytest.raises(AirflowSkipException, match="has changed something already"):
        run.execute(give_up())


@pytest.mark.parametrize(
    ("done", "step", "tries", "occasion"),
    [
        pytest.param(1, "decide", (1, 2), "", id="before the decision, out of its turn"),
        pytest.param(3, "release", (1, 2), " release", id="after the decision, out of its turn"),
        pytest.param(5, "verify_progress", (1, 2), None, id="not yet, and it is tried again"),
        pytest.param(
            5, "verify_progress", (3, 2), " verify_progress", id="not yet, and that was the last try"
        ),
        pytest.param(4, "release", (2, 2), None, id="the storage fails, and it is tried again"),
        pytest.param(4, "release", (3, 2), " release", id="the storage fails at the last try"),
    ],
)
def test_a_failure_is_told_when_nothing_is_tried_any_more_and_after_a_change_with_how_it_goes_on(
    *,
    done: int,
    step: str,
    tries: tuple[int, int],
    occasion: str | None,
    stands: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(_: LocalStorage, name: str) -> None:
        raise StorageError(f"{name} cannot be removed")

    monkeypatch.setattr(shared_steps, "PROGRESS_SECONDS", 0.1)
    run = approved(RESET, *UNTIL_RELEASED[:done], flow=F)
    monkeypatch.setattr(LocalStorage, "remove", away)
    with pytest.raises((AirflowFailException, StreamkeeperError)) as failed:
        run.execute(run.step(step), tries)
    recorded = alerts_of(run)
    assert [(alert.kind, alert.occasion) for alert in recorded] == (
        [] if occasion is None else [(AlertKind.RECOVERY_FAILED, f"{run.recovery}{occasion}")]
    )
    is_final = isinstance(failed.value, AirflowFailException)
    for text in [alert.text for alert in recorded] + [str(failed.value)] * is_final:
        goes_on = "clear this task" in text and f"streamkeeper abandon {run.recovery}" in text
        assert goes_on == (step != "decide")
    assert all(
        ("Nothing was changed: the recovery is given up" in alert.text) == (step == "decide")
        for alert in recorded
    )


@pytest.mark.parametrize("meanwhile", ["it works", "it is held", "another came after it"])
def test_a_recovery_that_is_done_is_told_with_what_it_found(meanwhile: str, stands: World) -> None:
    run = approved(RESET, *UNTIL_RELEASED, flow=F)
    assert alerts_of(run) == [], "a step before the last is not told"
    if meanwhile == "it works":
        drive(stands.home)
        words = "is done: its new generation runs"
    elif meanwhile == "it is held":
        holds.put(stands.home, holds.person("ada"), "disks", "ada")
        words = f"but the flow {F} is held by person-ada"
    else:
        first = generations.first(stands.home, stands.flow.fingerprint)
        generations.decide(stands.home, generations.with_number(first, stands.home, 3))
        words = "generation 3 has replaced it already"
    run.carry_out("verify_progress")
    [alert] = alerts_of(run)
    assert (alert.kind, words in alert.text) == (AlertKind.RECOVERY_FINISHED, True)


def test_a_recovery_that_is_given_up_is_told_as_one_occasion_with_the_step_that_failed(stands: World) -> None:
    run = approved(RESET, "hold", flow=F)
    run.execute(give_up())
    [alert] = alerts_of(run)
    assert (alert.kind, alert.occasion) == (AlertKind.RECOVERY_FAILED, run.recovery)
    assert "nothing else was changed" in alert.text
    assert stands.home.owners() == []


@pytest.fixture
def rehearsed(stands: World) -> Run:
    """The rehearsal of a refresh of a table of which the source has lost a file."""
    stands.files[0].unlink()
    return Run("rehearse", flow=F, recovery="full_refresh", request={"infer_schemas": True})


def test_go_starts_the_recovery_that_was_rehearsed_with_the_impacts_that_its_answer_names(
    rehearsed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    triggered: list[tuple[str, Any, str]] = []
    monkeypatch.setattr(
        tasks.TriggerDagRunOperator,
        "execute",
        lambda self, _context: triggered.append((self.trigger_dag_id, self.conf, self.trigger_run_id)),
    )
    started = rehearsed.plan()["go"]
    assert started == {
        "dag": "full_refresh",
        "conf": {
            "table": "events.events",
            "infer_schemas": True,
            "rehearsal": rehearsed.recovery,
            "reason": f"go, as rehearsed by {rehearsed.recovery}",
            "accept": ["data-loss"],
            "approval": False,
        },
    }
    go = Go(task_id="go", trigger_dag_id=started["dag"], conf=started["conf"], trigger_run_id="r1")
    rehearsed.execute(go)
    assert triggered == [("full_refresh", started["conf"], "r1")]


def test_nothing_follows_a_rehearsal_that_nobody_approves_or_that_was_of_the_declaration_alone(
    rehearsed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed.conf["recovery"], rehearsed.conf["request"] = "none", None
    assert rehearsed.plan()["go"] is None
    with pytest.raises(AirflowSkipException, match="The declaration was rehearsed successfully"):
        rehearsed.execute(Go(task_id="go", trigger_dag_id=""))
    rehearsed.conf["approval"] = False
    rehearsed.run_id = "another"
    rehearsed.plan()
    with pytest.raises(
        AirflowSkipException, match="Approval was switched off, so the rehearsed recovery is not started"
    ):
        rehearsed.execute(Go(task_id="go", trigger_dag_id="rewind"))


def test_an_ordinary_plan_starts_nothing_else(stands: World) -> None:
    assert Run(RESET, flow=F).plan()["go"] is None
