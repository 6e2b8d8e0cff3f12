"""Secrets in failures and in what a step found: neither Airflow's log nor what is handed on has them."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from streamkeeper_airflow.recovery.tasks import RecoveryStep

from streamkeeper.errors import StorageError
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.plans import kind as recovery_kind
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.requests.form import Request
from streamkeeper.storage import LocalStorage
from tests.airflow.recovery.conftest import Run, alerts_of, approved
from tests.worlds.small_world import World

SECRET = "hunter2-hunter2"
FLOW = "events.clean_events"


def chain(error: BaseException | None) -> str:
    """Give all that a log of an error would show: its text, and those of the errors behind it."""
    return "" if error is None else f"{error}{chain(error.__cause__ or error.__context__)}"


@pytest.mark.parametrize(
    "values",
    [
        {"flow": f"password={SECRET}"},
        {"flow": FLOW, "predicate": f"token = '{SECRET}'"},
        {"flow": FLOW, "read": "files", "path": f"x password={SECRET}"},
        {"flow": FLOW, "chunk": f"secret={SECRET}"},
        {"flow": FLOW, "from_offsets": {"raw": {"password": SECRET}}, f"token={SECRET}": 1},
    ],
    ids=lambda values: list(values)[-1][:10],
)
def test_a_value_that_does_not_fit_is_told_without_the_secret_in_it(
    values: dict[str, Any], world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowSkipException) as failed:
        Run("backfill", **values).plan()
    assert SECRET not in chain(failed.value) + caplog.text


def test_a_step_that_fails_is_told_without_secrets(
    stands: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise StorageError(f"the store said no to fs.azure.account.key.lake.dfs.core.windows.net={SECRET}")

    run = approved("reset_checkpoint", "hold", "plan_again", "decide", "verify_tables", flow=FLOW)
    monkeypatch.setattr(LocalStorage, "remove", away)
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as failed:
        run.execute(run.step("release"), tries=(3, 2))
    [alert] = alerts_of(run)
    assert "the store said no" in alert.text
    assert SECRET not in chain(failed.value) + caplog.text + alert.text


def test_what_a_step_found_is_logged_and_handed_on_without_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(_work: Work) -> dict[str, Any]:
        return {
            "options": {"kafka.sasl.jaas.config": SECRET},
            "path": f"https://ada:{SECRET}@host/x",
            "rows": 3,
        }

    def plan(*_: object) -> Plan:
        flow = FlowPlan(FLOW, "events", 1, 2, 1, "f", StartAt("earliest"), "rebuilt")
        recovery = engine.recovery_id("look", "manual__1")
        return Plan("look", recovery, "events", ("events",), {"by": "ada"}, (flow,), ("look",), "now")

    of = Kind("look", "Looks.", Request, plan, (StepKind("look", "look", look),))
    monkeypatch.setitem(recovery_kind.KINDS, "look", "kinds_of_this_test:KIND")
    monkeypatch.setitem(sys.modules, "kinds_of_this_test", SimpleNamespace(KIND=of))
    run = Run("look")
    engine.propose(world.settings, plan())
    engine.approve(world.settings, "events", run.recovery, "ada")
    run.handed_on["plan"] = {
        "kind": "look", "recovery": run.recovery, "pipeline": "events", "flow": FLOW, "subject": "x",
    }  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        found = run.execute(RecoveryStep(kind_name="look", task_id="look"))
    assert found == {
        "options": {"kafka.sasl.jaas.config": "***"},
        "path": "https://ada:***@host/x",
        "rows": 3,
    }
    assert SECRET not in caplog.text
