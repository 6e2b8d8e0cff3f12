"""``abandon_recovery``: gives up a recovery that is not over, says who and why, and refuses any other id."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from streamkeeper_airflow.operate.abandon_task import AbandonRecovery

from streamkeeper.flows import holds, ledger
from streamkeeper.flows.files import open_home
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import reset_checkpoint
from streamkeeper.recover.plans.plan import Plan, to_json
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

pytestmark = pytest.mark.usefixtures("project")
STEPS = tuple(step.name for step in reset_checkpoint.KIND.steps)


def abandon(recovery: str, reason: str = "") -> str:
    run = SimpleNamespace(
        conf={"recovery": recovery, "reason": reason}, triggering_user_name="ada", run_type="manual"
    )
    values: dict[str, Any] = {"params": {}, "dag_run": run, "ti": None}
    return AbandonRecovery(task_id="abandon").execute(cast("Context", values))


def test_a_recovery_that_stopped_is_given_up_once_with_its_hold_and_who_asked() -> None:
    settings = Settings.from_environment()
    recovery = engine.recovery_id("reset_checkpoint", "a run")
    plan = Plan("reset_checkpoint", recovery, "first", (), {"by": "ada"}, (), STEPS, "then")
    book = ledger.open(open_storage(settings.state), "first", recovery)
    book.record(ledger.PLANNED, to_json(plan))
    book.record(f"{STEPS[0]}.started", {})
    with pytest.raises(
        AirflowFailException, match=rf"'another'. Those that are not over: {recovery}. Nothing"
    ):
        abandon("another")
    assert book.end() is None
    assert abandon(recovery, "another way was found") == recovery
    end = book.end()
    assert end is not None
    assert (end.event, end.evidence) == (ledger.GIVEN_UP, {"why": "abandoned by ada: another way was found"})
    assert holds.all_of(open_home(settings, "first.first_flow")) == []
    with pytest.raises(AirflowFailException, match="It is over already, the recovery"):
        abandon(recovery)
