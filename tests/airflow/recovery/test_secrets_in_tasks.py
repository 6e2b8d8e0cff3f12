"""Secrets in failures and in what a step found: neither Airflow's log nor what is handed on has them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from streamkeeper_airflow.recovery import tasks
from streamkeeper_airflow.recovery.tasks import PlanRecovery, RecoveryStep

from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.plans import kind as recovery_kind
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.requests.form import Request
from streamkeeper.settings import Settings

SECRET = "hunter2-hunter2"
HANDED_ON = {
    "kind": "reset_checkpoint",
    "recovery": "r1",
    "pipeline": "first",
    "flow": "first.first_flow",
    "subject": "x",
    "asks": "x",
    "dry_run": False,
}


def context(conf: dict[str, Any] | None = None) -> Context:
    run = SimpleNamespace(
        dag_id="backfill", run_id="manual__1", conf=conf or {}, run_type="manual", triggering_user_name="ada"
    )
    task = SimpleNamespace(xcom_pull=lambda task_ids: HANDED_ON, try_number=1, max_tries=2)
    return cast("Context", {"dag_run": run, "params": {}, "ti": task})


def chain(error: BaseException | None) -> str:
    """Give all that a log of an error would show: its text, and those of the errors behind it."""
    return "" if error is None else f"{error}{chain(error.__cause__ or error.__context__)}"


@pytest.mark.parametrize(
    "values",
    [
        {"flow": f"password={SECRET}"},
        {"flow": "first.first_flow", "predicate": f"token = '{SECRET}'"},
        {"flow": "first.first_flow", "read": "files", "path": f"x password={SECRET}"},
        {"flow": "first.first_flow", "chunk": f"secret={SECRET}"},
        {"flow": "first.first_flow", "from_offsets": {"raw": {"password": SECRET}}, f"token={SECRET}": 1},
    ],
    ids=lambda values: list(values)[-1][:10],
)
def test_a_value_that_does_not_fit_is_told_without_the_secret_in_it(
    values: dict[str, Any], project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowSkipException) as failed:
        PlanRecovery(task_id="plan", kind_name="backfill").execute(context(values))
    assert project.is_dir() and SECRET not in chain(failed.value) + caplog.text


def test_a_step_that_fails_is_told_without_secrets(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fails(*_: object) -> dict[str, Any]:
        raise RecoveryError(f"the store said no to fs.azure.account.key.lake.dfs.core.windows.net={SECRET}")

    monkeypatch.setattr(engine, "carry_out", fails)
    monkeypatch.setattr(
        tasks,
        "tell_failed",
        lambda _plan, _context, step, error, way_on: told.append(f"{step} {error} {way_on}"),
    )
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowFailException) as failed:
        RecoveryStep(kind_name="reset_checkpoint", task_id="hold").execute(context())
    assert project.is_dir() and told
    assert SECRET not in chain(failed.value) + caplog.text + "".join(told)


def test_what_a_step_found_is_logged_and_handed_on_without_secrets(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(_work: Work) -> dict[str, Any]:
        return {
            "options": {"kafka.sasl.jaas.config": SECRET},
            "path": f"https://ada:{SECRET}@host/x",
            "rows": 3,
        }

    def nothing(*_: object) -> Any:
        raise AssertionError("it is not planned here")

    of = Kind("look", "Looks.", Request, nothing, (StepKind("look", "look", look),))
    monkeypatch.setitem(recovery_kind.KINDS, "look", "kinds_of_this_test:KIND")
    monkeypatch.setitem(sys.modules, "kinds_of_this_test", SimpleNamespace(KIND=of))
    settings = Settings.from_environment()
    flow = FlowPlan("first.first_flow", "first_clean", 1, 2, 1, "f", StartAt("earliest"), "rebuilt")
    engine.propose(
        settings, Plan("look", "r1", "first", ("first_clean",), {"by": "ada"}, (flow,), ("look",), "now")
    )
    engine.approve(settings, "first", "r1", "ada")
    monkeypatch.setattr(tasks, "tell_finished", lambda *_: None)
    monkeypatch.setitem(HANDED_ON, "kind", "look")
    with caplog.at_level(logging.DEBUG):
        found = RecoveryStep(kind_name="look", task_id="look").execute(context())
    assert found == {
        "options": {"kafka.sasl.jaas.config": "***"},
        "path": "https://ada:***@host/x",
        "rows": 3,
    }
    assert project.is_dir() and SECRET not in caplog.text
