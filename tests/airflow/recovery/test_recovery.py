"""The tasks of a recovery's DAG, where they decide something themselves; what they carry out is tested with
the core.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
)
from streamkeeper_airflow.operate.notify import page
from streamkeeper_airflow.recovery import alerts, tasks
from streamkeeper_airflow.recovery.approvals import PlanApproval, WorseImpactApproval
from streamkeeper_airflow.recovery.tasks import (
    GiveUp,
    Go,
    OnceFlows,
    PlanRecovery,
    RecoveryStep,
    SparkStep,
    UnaskedStep,
)

from streamkeeper.amounts import DATA_LOSS
from streamkeeper.drivers.alerts import AlertKind
from streamkeeper.errors import PlanRefused, RecoveryError, StorageError, StreamkeeperError, TableLocked
from streamkeeper.flows import ledger
from streamkeeper.flows.generations import StartAt
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import FlowPlan, Plan, Refusal
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

PLAN = {
    "kind": "reset_checkpoint",
    "recovery": "r1",
    "pipeline": "first",
    "flow": "first.first_flow",
    "subject": "first.first_flow",
    "asks": "the reset of first.first_flow",
    "approval": True,
    "dry_run": False,
    "markdown": "…",
    "once_dags": [],
}
RESET, F = "reset_checkpoint", "first.first_flow"


def context(conf: dict[str, Any] | None = None, **xcoms: Any) -> Context:
    """Make what these tasks read of their context, with what earlier ones handed on, by task id."""
    named = {"dag_id": RESET, "run_id": "manual__1", "run_type": "manual", "triggering_user_name": "ada"}
    run = SimpleNamespace(**named, conf=conf or {})
    form = ResetRequest.form(read_manifest(Settings.from_environment()))

    def xcom_pull(task_ids: str) -> Any:
        return xcoms.get(task_ids)

    defaults = {field.name: field.default for field in form}
    return cast("Context", {"dag_run": run, "params": defaults, "ti": SimpleNamespace(xcom_pull=xcom_pull)})


def a_plan(refusal: Refusal) -> Plan:
    """Make the plan of a reset, with something that must be accepted."""
    flow = FlowPlan(F, "first", 1, 2, 1, "f", StartAt("earliest"), "rebuilt")
    given = (RESET, "r1", "first", ("first",), {"by": "ada"}, (flow,), ("hold",), "now")
    return Plan(*given, refusals=(refusal,))


Told = list[tuple[AlertKind, str, str]]
"""Kinds, texts and occasions of alerts."""


@pytest.fixture
def told(project: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The alerts of the recovery, each of its flow and with its run."""
    kept: Told = []

    def alert(_: Settings, kind: AlertKind, flow: str, text: str, occasion: str, *, link: str) -> bool:
        assert (flow, link) == (F, page(RESET, "manual__1"))
        kept.append((kind, text, occasion))
        return True

    monkeypatch.setattr(alerts, "record_alert", alert)
    return kept


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes that runs get; no API is asked."""
    kept: list[str] = []
    monkeypatch.setattr(alerts, "set_run_note", lambda _dag, _run, note: kept.append(note))
    return kept


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        pytest.param({"flow": "nobody"}, ["There is no flow 'nobody'"], id="unknown flow"),
        pytest.param({}, ["flow is None"], id="no flow"),
        pytest.param({"flow": "first.first_flow", "colour": 1}, ["Unknown: 'colour'"], id="unknown key"),
        pytest.param(
            {"flow": "nobody", "colour": 1, "start": "timestamp", "timestamp": "9999-01-01T00:00:00Z"},
            ["There is no flow", "Unknown", "lies in the future"],
            id="everything at once",
        ),
        pytest.param({"flow": "first.first_flow"}, ["first.first_flow"], id="a flow that never ran"),
    ],
)
def test_what_cannot_be_planned_is_answered_in_the_run_s_note_with_all_that_is_wrong_and_writes_nothing(
    conf: dict[str, Any], words: list[str], project: Path, notes: list[str]
) -> None:
    with pytest.raises(AirflowSkipException) as refused:
        PlanRecovery(task_id="plan", kind_name=RESET).execute(context(conf))
    [note] = notes
    for word in words:
        assert word in str(refused.value)
        assert word in note
    assert note.startswith("Refused: ")
    assert any(word in note.splitlines()[0] for word in words), "the list of runs shows the first line only"
    assert not (project / "state" / "first").exists()


def test_a_plan_that_breaks_is_no_answer_and_stays_red(
    project: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> Plan:
        raise RecoveryError("the plan that was kept has no steps")

    monkeypatch.setattr(engine, "plan", breaks)
    with pytest.raises(AirflowFailException, match="has no steps"):
        PlanRecovery(task_id="plan", kind_name=RESET).execute(context({"flow": F}))
    assert notes == []


@pytest.mark.parametrize(
    ("run_type", "more", "end", "tellings"),
    [
        pytest.param("manual", {}, AirflowSkipException, 0, id="a person"),
        pytest.param("operator_triggered", {}, AirflowFailException, 1, id="a schedule"),
        pytest.param("operator_triggered", {"rehearsal": "r9"}, AirflowFailException, 0, id="who said go"),
    ],
)
def test_a_locked_table_is_an_answer_to_a_person_and_a_failure_of_a_schedule_that_is_told(
    *,
    run_type: str,
    more: dict[str, str],
    end: type[Exception],
    tellings: int,
    project: Path,
    notes: list[str],
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(*_: object) -> Plan:
        raise TableLocked("The recovery r0 works on the table first_clean. Wait for it.")

    monkeypatch.setattr(engine, "plan", locked)
    asked = context({"flow": F, **more})
    asked["dag_run"].run_type = run_type  # type: ignore[assignment]  # the enum is Airflow's own, and a text
    with pytest.raises(end, match="r0 works on the table"):
        PlanRecovery(task_id="plan", kind_name=RESET).execute(asked)
    [note] = notes
    assert note.startswith("Refused: The recovery r0 works on the table first_clean. Wait for it.")
    assert ["did not start: The recovery r0" in text for _, text, _ in told] == [True] * tellings


def test_a_plan_that_is_refused_under_the_hold_is_an_answer_too_and_is_told(
    told: Told, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> dict[str, Any]:
        raise PlanRefused("Things have changed:\n- The topic was recreated.")

    monkeypatch.setattr(engine, "carry_out", refuses)
    with pytest.raises(AirflowSkipException, match="recreated"):
        RecoveryStep(kind_name=RESET, task_id="plan_again").execute(context(plan=PLAN))
    assert [kind for kind, _, _ in told] == [AlertKind.RECOVERY_FAILED]
    assert notes[0].startswith("Refused: The topic was recreated.")


def test_secrets_in_the_form_s_values_are_hidden_by_airflow_s_masker(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[str] = []
    monkeypatch.setattr(tasks, "mask_secret", hidden.append)
    with pytest.raises(AirflowSkipException):
        PlanRecovery(task_id="plan", kind_name=RESET).execute(
            context({"flow": F, "offsets": {"kafka.sasl.jaas.config": "hunter2"}})
        )
    assert hidden == ["hunter2"]


@pytest.mark.parametrize(
    ("impact", "approval", "tellings"),
    [
        pytest.param("duplicates", False, 1, id="nobody is asked"),
        pytest.param(None, True, 0, id="nothing makes it go"),
    ],
)
def test_a_impact_that_nobody_accepts_ends_it_and_is_told_where_nobody_is_asked(
    *,
    impact: str | None,
    approval: bool,
    tellings: int,
    project: Path,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = a_plan(Refusal(impact, "rows come twice"))
    monkeypatch.setattr(engine, "plan", lambda *_: planned)
    with pytest.raises(AirflowSkipException, match="rows come twice"):
        PlanRecovery(task_id="plan", kind_name=RESET).execute(context({"flow": F, "approval": approval}))
    assert [(kind, "did not start" in text, occasion) for kind, text, occasion in told] == [
        (AlertKind.RECOVERY_FAILED, True, "r1")
    ] * tellings
    assert not (project / "state" / "first" / "ledger").exists()


def test_a_table_that_no_flow_writes_any_more_is_backed_up_all_the_same(told: Told) -> None:
    planned = Plan("backup_table", "r1", "first", ("retired",), {"by": "ada"}, (), ("pin",), "now")
    found = tasks._named(planned, kind("backup_table"), read_manifest(Settings.from_environment()))
    assert found["flow"] == F, "people are told through another flow of the pipeline"
    nobody = tasks._named(planned, kind("backup_table"), Manifest("", (), {}, {}))
    assert nobody["flow"] is None
    alerts.tell_undone(nobody, context(), "was given up.")
    assert told == []


@pytest.fixture
def stamping(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The spark-submits of a step that needs Spark; none is started."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    submitted: list[list[str]] = []

    def submit(task: SparkStep, _context: object) -> None:
        submitted.append(list(task.application_args or ()))
        if len(submitted) == 1:
            raise AirflowException("Cannot execute: spark-submit … Error code is: 1.")

    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    return submitted


@pytest.mark.parametrize(
    ("why", "raised", "final"),
    [
        pytest.param(
            "RecoveryError: the copy is not whole",
            AirflowFailException,
            True,
            id="another try would meet the same",
        ),
        pytest.param("RequestError: no such thing", AirflowFailException, True, id="wrong usage"),
        pytest.param("StorageError: the disk is away", RecoveryError, False, id="another try may go better"),
        pytest.param(None, AirflowException, False, id="the job died without a word"),
    ],
)
def test_a_step_in_spark_fails_with_what_the_ledger_says(
    *,
    why: str | None,
    raised: type[Exception],
    final: bool,
    stamping: list[list[str]],
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "without_spark", lambda *_: None)
    monkeypatch.setattr(engine, "why_failed", lambda *_: why)
    asked = context(plan=PLAN)
    asked["ti"].try_number, asked["ti"].max_tries = 1, 2
    with pytest.raises(raised, match=(why or "Error code is: 1").rpartition(": ")[2]):
        SparkStep(kind_name=RESET, task_id="hold").execute(asked)
    assert stamping == [["--pipeline", "first", "--recovery", "r1", "--step", "hold"]]
    assert len(told) == int(final)


def test_a_step_in_spark_that_has_nothing_to_do_starts_no_spark(
    stamping: list[list[str]], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "without_spark", lambda *_: {"note": "the target is kept as it is"})
    found = SparkStep(kind_name="rewind", task_id="put_back").execute(context(plan=PLAN))
    assert (found["note"], stamping, told) == ("the target is kept as it is", [], [])


def test_a_step_in_spark_that_is_done_already_starts_no_spark(
    stamping: list[list[str]], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "evidence_of", lambda *_: {"rows": 7})
    assert SparkStep(kind_name=RESET, task_id="decide").execute(context(plan=PLAN)) == {"rows": 7}
    assert stamping == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_ends_after_what_is_tried_before_anybody_is_asked(
    dry_run: bool, stamping: list[list[str]], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "evidence_of", lambda *_: {"operators": ["dedupe"]})
    with DAG("adopt"):
        task = UnaskedStep(task_id="rehearse", kind_name="adopt")
        task >> RecoveryStep(task_id="hold", kind_name="adopt")
    asked = context(plan={**PLAN, "kind": "adopt", "dry_run": dry_run})
    pushed: dict[str, Any] = {}
    asked["ti"].map_index, asked["ti"].xcom_push = -1, lambda key, value: pushed.update({key: value})
    if dry_run:
        with pytest.raises(DownstreamTasksSkipped) as skipped:
            task.execute(asked)
        assert list(skipped.value.tasks) == ["hold"]
        assert pushed["return_value"] == {"operators": ["dedupe"]}
    else:
        assert task.execute(asked) == {"operators": ["dedupe"]}
    assert stamping == []


def test_a_dry_run_whose_trial_failed_tells_nobody_and_is_over(
    stamping: list[list[str]], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[Any, ...]] = []
    monkeypatch.setattr(engine, "without_spark", lambda *_: None)
    monkeypatch.setattr(engine, "why_failed", lambda *_: "RecoveryError: it does not fit")
    monkeypatch.setattr(engine, "end_dry_run", lambda _settings, *named: ended.append(named))
    asked = context(plan={**PLAN, "kind": "adopt", "dry_run": True})
    asked["ti"].try_number, asked["ti"].max_tries = 1, 2
    with pytest.raises(AirflowFailException, match="it does not fit"):
        UnaskedStep(task_id="rehearse", kind_name="adopt").execute(asked)
    with pytest.raises(AirflowSkipException, match="It was a dry run"):
        GiveUp(task_id="give_up", after="decide").execute(asked)
    assert (told, ended) == ([], [("first", "r1")])


def test_nobody_is_asked_again_where_the_impact_is_the_approved_one(project: Path) -> None:
    assert (
        WorseImpactApproval(task_id="approve_again").execute(context(plan=PLAN, plan_again={"worse": False}))
        is None
    )


def test_whoever_approves_accepts_the_impacts_that_the_answer_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[list[str]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda *, options, **_: asked_for.append(options))
    settings = Settings.from_environment()
    planned = a_plan(Refusal("data-loss", "rows go", F))
    engine.propose(settings, planned)
    asked = context(plan={**PLAN, "consent": "Approve, and lose 12 rows", "impacts": ["data-loss"]})
    with pytest.raises(TaskAwaitingInput):
        PlanApproval(task_id="approve").execute(
            cast("Context", {**asked, "task_instance": SimpleNamespace(id="1")})
        )
    assert asked_for == [["Approve, and lose 12 rows", "Reject"]]
    answer = {
        "params_input": {},
        "responded_at": datetime.now(timezone.utc),
        "responded_by_user": {"id": "1", "name": "grace"},
    }
    PlanApproval(task_id="approve").execute_complete(
        asked, {**answer, "chosen_options": ["Approve, and lose 12 rows"]}
    )
    book = ledger.open(open_storage(settings.state), "first", "r1")
    [approved] = [event for event in book.events() if event.event == "approved"]
    assert approved.evidence == {"by": "grace", "accepted": ["data-loss"]}
    shared_steps.check_go(Work(settings, planned, book, "decide"))


def test_a_worse_impact_ends_a_recovery_that_nobody_can_be_asked_about(project: Path) -> None:
    asked = context(plan={**PLAN, "approval": False}, plan_again={"worse": True})
    with pytest.raises(AirflowFailException, match=r"The impact got worse.*It changed nothing"):
        WorseImpactApproval(task_id="approve_again").execute(asked)


def test_flows_that_run_once_are_handed_on_to_be_triggered(project: Path) -> None:
    asked = context(plan={**PLAN, "once_dags": ["flow__first__first_flow"]})
    assert OnceFlows(task_id="once_flows").execute(asked) == ["flow__first__first_flow"]


@pytest.mark.parametrize(
    "xcoms",
    [
        pytest.param({}, id="the plan failed"),
        pytest.param({"plan": {**PLAN, "dry_run": True}}, id="a dry run"),
        pytest.param({"plan": PLAN, "decide": {"number": 2}}, id="decided"),
    ],
)
def test_there_is_nothing_to_give_up(xcoms: dict[str, Any], project: Path) -> None:
    with pytest.raises(AirflowSkipException, match="nothing to give up"):
        GiveUp(task_id="give_up", after="decide").execute(context(**xcoms))


@pytest.mark.parametrize("changed", [False, True], ids=["before it changes anything", "half-way"])
@pytest.mark.parametrize("step", ["hold", "decide", "release"])
def test_a_recovery_that_fails_after_a_change_says_how_it_goes_on(
    step: str, changed: bool, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, Any]:
        raise RecoveryError("The table is at version 3; it was at 5.")

    monkeypatch.setattr(engine, "carry_out", fails)
    monkeypatch.setattr(engine, "is_past_return", lambda *_: changed)
    with pytest.raises(AirflowFailException, match="it was at 5") as failed:
        RecoveryStep(kind_name=RESET, task_id=step).execute(context(plan=PLAN))
    goes_on = "clear this task" in str(failed.value) and "streamkeeper abandon r1" in str(failed.value)
    assert goes_on == changed
    assert ("Nothing was changed: the recovery is given up" in told[0][1]) == (not changed)


@pytest.mark.parametrize(
    ("step", "error", "tries", "occasion"),
    [
        pytest.param("hold", RecoveryError("no"), (1, 2), "r1", id="before the decision"),
        pytest.param("release", RecoveryError("no"), (1, 2), "r1 release", id="after the decision"),
        pytest.param(
            "verify_progress", RecoveryError("no"), (1, 2), None, id="not yet, and it is tried again"
        ),
        pytest.param(
            "verify_progress",
            RecoveryError("no"),
            (3, 2),
            "r1 verify_progress",
            id="not yet, and that was the last try",
        ),
        pytest.param(
            "release", StorageError("no"), (2, 2), None, id="the storage failed, and it is tried again"
        ),
        pytest.param(
            "release", StorageError("no"), (3, 2), "r1 release", id="the storage failed at the last try"
        ),
    ],
)
def test_a_recovery_s_failure_is_told_when_nothing_is_tried_any_more(
    *,
    step: str,
    error: Exception,
    tries: tuple[int, int],
    occasion: str | None,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(engine, "carry_out", fails)
    monkeypatch.setattr(engine, "is_past_return", lambda *_: step != "hold")
    asked = context(plan=PLAN)
    asked["ti"].try_number, asked["ti"].max_tries = tries
    with pytest.raises((AirflowFailException, StreamkeeperError), match="no"):
        RecoveryStep(kind_name=RESET, task_id=step, patient=step == "verify_progress").execute(asked)
    assert [(kind, when) for kind, _, when in told] == (
        [(AlertKind.RECOVERY_FAILED, occasion)] if occasion else []
    )


@pytest.mark.parametrize(
    ("step", "found", "said"),
    [
        pytest.param("verify_progress", {"batch": 0}, "is done: its new generation runs", id="it works"),
        pytest.param(
            "verify_progress",
            {"held_by": ["person-ada"]},
            "but the flow first.first_flow is held by person-ada",
            id="it is held",
        ),
        pytest.param(
            "verify_progress",
            {"superseded_by": 3},
            "generation 3 has replaced it already",
            id="another came after it",
        ),
        pytest.param("release", {"park_lifted": True}, None, id="a step before the last"),
    ],
)
def test_a_recovery_that_is_done_is_told_with_what_it_found(
    step: str, found: dict[str, Any], said: str | None, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "carry_out", lambda *_: {"flows": {F: found}})
    RecoveryStep(kind_name=RESET, task_id=step).execute(context(plan=PLAN))
    assert [kind for kind, _, _ in told] == ([AlertKind.RECOVERY_FINISHED] if said else [])
    assert all(said is not None and said in text for _, text, _ in told)


def test_a_recovery_that_is_given_up_is_told_as_one_occasion_with_the_step_that_failed(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "give_up", lambda *_: True)
    GiveUp(task_id="give_up", after="decide").execute(context(plan=PLAN))
    [(kind, text, occasion)] = told
    assert (kind, occasion) == (AlertKind.RECOVERY_FAILED, "r1")
    assert "nothing else was changed" in text


REHEARSED = {
    **PLAN,
    "kind": "rehearse",
    "go": {"dag": "rewind", "conf": {"flow": F, "batch": "1", "rehearsal": "r1", "approval": False}},
}


def test_go_starts_the_recovery_that_was_rehearsed_under_the_rehearsals_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, Any, str]] = []
    monkeypatch.setattr(
        tasks.TriggerDagRunOperator,
        "execute",
        lambda self, _context: asked.append((self.trigger_dag_id, self.conf, self.trigger_run_id)),
    )
    go = Go(task_id="go", trigger_dag_id="rewind", conf=REHEARSED["go"]["conf"], trigger_run_id="r1")
    go.execute(context(plan=REHEARSED))
    assert asked == [("rewind", REHEARSED["go"]["conf"], "r1")]
    with pytest.raises(
        AirflowSkipException, match="Approval was switched off, so the rehearsed recovery is not started"
    ):
        go.execute(context(plan={**REHEARSED, "approval": False}))
    with pytest.raises(AirflowSkipException, match="The declaration was rehearsed successfully"):
        Go(task_id="go", trigger_dag_id="").execute(context(plan={**REHEARSED, "go": None}))


def test_what_go_starts_names_the_rehearsal_and_accepts_what_its_answer_names(project: Path) -> None:
    tried = {
        "recovery": "full_refresh",
        "request": {"table": "first.first"},
        "pipelines": "",
        "minutes": 10.0,
        "files": None,
    }
    request = {
        "flow": F,
        "recovery": "full_refresh",
        "request": {"infer_schemas": True},
        "reason": "",
        "by": "ada",
    }
    refusals = (Refusal(DATA_LOSS, "rows are lost"), Refusal(DATA_LOSS, "more are lost"))
    planned = Plan("rehearse", "r1", "first", ("first",), request, (), ("rehearse",), "now", details=tried)
    found = tasks._go(replace(planned, refusals=refusals))
    assert found == {
        "dag": "full_refresh",
        "conf": {
            "table": "first.first",
            "infer_schemas": True,
            "rehearsal": "r1",
            "reason": "go, as rehearsed by r1",
            "accept": [DATA_LOSS],
            "approval": False,
        },
    }
    assert tasks._go(replace(planned, details={**tried, "recovery": None})) is None
    assert tasks._go(replace(planned, recovery=RESET)) is None
