"""An adoption of many jobs: one plan and one approval for flows of several pipelines; a job that cannot be
adopted is named, and then none is.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.recover.steps import submission
from streamkeeper.tables import recovery_lock
from tests.worlds.recover import recoveries
from tests.worlds.recover.old_checkpoints import OLD_ID, old_job
from tests.worlds.recover.recoveries import FLOW, approve, drive, planned, refused
from tests.worlds.small_world import EVENTS, World

RATES = "rates.clean_rates"
RATES_ID = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def rates(world: World) -> World:
    """A flow of another pipeline; neither has run."""
    world.declare()
    own = 'sources=["rates_raw"], driver=dp.driver(executor_memory="3g")'
    world.declare(EVENTS.replace("events", "rates").replace('sources=["rates_raw"]', own), "rates.py")
    (world.root / "data" / "rates").mkdir()
    names = {"name": "clean_rates", "table": "rates", "source": "rates_raw", "folder": "rates"}
    return replace(world, pipeline="rates", files=[], **names)


def jobs(world: World, rates: World) -> dict[str, str]:
    """Leave a job for each flow, and give where their checkpoints are."""
    old_job(world, place="jobs/clean_events")
    old_job(rates, batches=2, place="jobs/clean_rates", query_id=RATES_ID)
    return {"*": f"{world.root}/jobs/{{flow}}"}


def plan(world: World, checkpoints: dict[str, str], **values: Any) -> Plan:
    given = {"checkpoints": checkpoints, "old_job_is_stopped": True, **values}
    return planned(world, "adopt", "r1", **given)


def carry_out(world: World, *steps: str) -> dict[str, Any]:
    return recoveries.carry_out(world, *steps, in_spark=lambda act, work: {"rehearsed": act})


def test_an_adoption_of_many_jobs_is_one_plan_that_goes_on_where_it_was_killed(
    world: World, rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = approve(world, plan(world, jobs(world, rates)))
    assert [(flow.flow, flow.position["batch"]) for flow in made.flows] == [(FLOW, 2), (RATES, 1)]
    assert (made.pipelines, refused(made)) == (("events", "rates"), [])
    text = explain.as_text(made)
    assert "2 flows together: data loss nothing; duplicates nothing" in text
    assert "2 checkpoints together: 17 files" in text
    assert f"the checkpoint of {RATES}: 7 files" in text
    assert "generation none yet → 1, start adopted after batch 1" in text
    trial = submission.recovery_step(world.settings, "events", "r1", "rehearse", "spark://there:7077")
    assert trial.conf["spark.executor.memory"] == "3g", "one job tries the flows of all pipelines"
    batches = {f"{world.root}/jobs/clean_events": 2, f"{world.root}/jobs/clean_rates": 1}
    assert carry_out(world, "rehearse", "hold", "plan_again", "see_still") == {"batches": batches}
    locks = [recovery_lock.holder(world.home.storage, name, name) for name in ("events", "rates")]
    assert (locks, rates.home.owners()) == (["r1", "r1"], ["recovery-r1"])

    decide = generations.decide

    def dies(home: FlowHome, generation: Generation) -> Generation:
        if home.full_name == RATES:
            raise KeyboardInterrupt
        return decide(home, generation)

    with monkeypatch.context() as patch:
        patch.setattr(shared_steps.generations, "decide", dies)
        with pytest.raises(KeyboardInterrupt):
            carry_out(world, "decide")
    assert (world.home.generations(), rates.home.generations()) == ([1], [])
    carry_out(world, "decide", "verify_tables", "release")
    for one, query in ((world, OLD_ID), (rates, RATES_ID)):
        decided = generations.latest(one.home)
        assert decided is not None
        assert (decided.number, decided.start.query_id, one.home.owners()) == (1, query, [])
        drive(one.home)
    carry_out(world, "verify_progress")
    assert ledger.open_recoveries(world.home.storage) == {}


def test_one_job_of_many_that_goes_on_stops_the_adoption_of_all(world: World, rates: World) -> None:
    approve(world, plan(world, jobs(world, rates)))
    carry_out(world, "rehearse")
    shutil.rmtree(world.root / "jobs" / "clean_rates")
    old_job(rates, batches=4, place="jobs/clean_rates", query_id=RATES_ID)
    with pytest.raises(RecoveryError, match=r"jobs/clean_rates went from batch 1 .* the old job still runs"):
        carry_out(world, "hold", "plan_again", "see_still")
    assert (world.home.generations(), rates.home.generations()) == ([], [])


def test_each_job_that_cannot_be_adopted_is_named_and_none_is(world: World, rates: World) -> None:
    checkpoints = jobs(world, rates)
    shutil.rmtree(world.root / "jobs" / "clean_rates")
    generations.decide(world.home, generations.first(world.home, "f"))
    generations.begin(
        world.home, generations.Start(1, "c", 2, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00")
    )
    with pytest.raises(RequestError) as error:  # and no file was changed
        plan(world, checkpoints)
    assert str(error.value).startswith("The adoption was not planned, and nothing was changed:")
    assert f"- {FLOW}: {FLOW} has run already: it is on generation 1" in str(error.value)
    assert f"- {RATES}: There is nothing at {world.root}/jobs/clean_rates" in str(error.value)


def test_what_refuses_one_flow_of_many_names_it(world: World, rates: World) -> None:
    checkpoints = jobs(world, rates)
    (world.root / "jobs" / "clean_rates" / "sources" / "0" / "_schema_log_1").mkdir()
    made = plan(world, checkpoints)
    assert [(item.flow, item.impact) for item in made.refusals] == [(RATES, None)]
    assert "a log of a Delta source's schemas cannot be adopted" in made.refusals[0].message


def test_two_flows_of_a_plan_do_not_continue_one_query(world: World, rates: World) -> None:
    same = EVENTS.replace("events", "rates").replace("{data}/rates", "{data}/events")
    world.declare(same, "rates.py")
    folder = old_job(world)
    with pytest.raises(
        RequestError, match=rf"{FLOW} and {RATES} would continue the same query {OLD_ID}.*Give each flow"
    ):
        plan(world, {"*": str(folder)})


def test_a_full_name_goes_before_a_pattern(world: World, rates: World) -> None:
    checkpoints = {"*": "/jobs/{pipeline}/{flow}", FLOW: "s3a://lake/events/"}
    sources = {FLOW: {"0": "events_raw"}}
    request = recoveries.asked(world, "adopt", checkpoints=checkpoints, sources=sources)
    assert request.checkpoints == {FLOW: "s3://lake/events", RATES: "/jobs/rates/clean_rates"}
    assert request.sources == sources


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"checkpoints": {"nobody": "/x"}}, "checkpoints: There is no flow 'nobody'"),
        ({"checkpoints": {"late*": "/x"}}, r"checkpoints: No flow fits the pattern 'late\*'"),
        (
            {"checkpoints": {"*": "x/{flow}"}},
            f"checkpoint of {RATES} is 'x/{{flow}}'. Allowed is an absolute",
        ),
        ({"checkpoints": {"*": 5}}, f"checkpoint of {FLOW} is 5. Allowed is an absolute path, or a URL"),
        (
            {"checkpoints": {"*": "/x/{flow}"}, "flow": FLOW},
            "flow or checkpoint is given, and checkpoints too",
        ),
        (
            {"checkpoints": {"*": "/x/{flow}"}, "sources": {"0": "events_raw"}},
            "sources have '0': 'events_raw'. Give them by the flows whose checkpoints are given",
        ),
        (
            {"checkpoints": {"*": "/x/{flow}"}, "sources": {RATES: {"0": "rats"}}},
            f"sources give the names rats. Each source of {RATES} must be named once: rates_raw",
        ),
    ],
)
def test_what_is_wrong_with_the_checkpoints_of_many_flows_is_told(
    values: dict[str, Any], said: str, world: World, rates: World
) -> None:
    with pytest.raises(RequestError, match=said):
        recoveries.asked(world, "adopt", **values)
