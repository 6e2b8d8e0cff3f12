"""What holds for every kind of recovery: several flows at once, killed anywhere, two recoveries of one table,
steps in Spark, secrets.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from streamkeeper.errors import PlanRefused, RecoveryError, RequestError, TableLocked
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import StartAt
from streamkeeper.flows.ledger import Ledger
from streamkeeper.flows.rename import rename
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import reset_checkpoint
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import kind as recovery_kind
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.requests.form import TABLE, Request, accepted, form_field
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.support.times import now
from streamkeeper.tables import recovery_lock
from tests.killing import Killed, Mortal, dying
from tests.worlds.pipelines import LATE, SEVERAL
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import approve, carry_out, drive, look, of, plan_reset
from tests.worlds.small_world import EVENTS, World

NAMES = ("clean_events", "more_events", "aside_events")
FLOWS = tuple(f"events.{name}" for name in NAMES)


@pytest.fixture
def several(world: World) -> World:
    """Three flows that share a source, two of them one table; each has done three batches, two files wait,
    and the first is parked.
    """
    world.declare(SEVERAL)
    world.processed(3)
    for name in NAMES[1:]:
        other = of(world, name)
        other.begin([[file] for file in world.files], 3, 3)
    world.add_files(2)
    world.park()
    return world


def homes(world: World) -> list[FlowHome]:
    return [of(world, name).home for name in NAMES]


def plan(world: World, recovery: str = "r1", flows: tuple[str, ...] = FLOWS, **asked: Any) -> Plan:
    return approve(world, plan_reset(world, recovery=recovery, flows=flows, **asked))


def end_state(world: World) -> dict[str, Any]:
    """Everything that a recovery leaves behind, but moments and how often it had to try."""
    storage = world.home.storage
    events = {event.event for event in ledger.open(storage, "events", "r1").events()}
    return {
        "generations": {home.flow: home.generations() for home in homes(world)},
        "decided": {
            home.flow: replace(generations.latest(home) or pytest.fail(), at="") for home in homes(world)
        },
        "holds": {home.flow: home.owners() for home in homes(world)},
        "locks": [recovery_lock.holder(storage, "events", table) for table in ("aside", "events")],
        "events": sorted(event for event in events if not event.endswith((".started", ".failed"))),
        "open": engine.is_open(world.settings, "events", "r1"),
    }


def to_the_end(world: World, process: Mortal | None = None) -> dict[str, Any]:
    """Carry out all steps; the flows' drivers do their part before the last one."""
    process = process or Mortal(0)
    carry_out(world, *reset_checkpoint.KIND.step_names[:-1])
    process.idle = True
    for home in homes(world):
        drive(home)
    process.idle = False
    carry_out(world, reset_checkpoint.KIND.step_names[-1])
    return end_state(world)


# --- several flows


def test_several_flows_are_held_decided_and_released_together(several: World) -> None:
    made = plan(several)
    assert (made.tables, [flow.flow for flow in made.flows]) == (("aside", "events"), list(FLOWS))
    assert all(flow.next_generation == 2 for flow in made.flows)
    held = carry_out(several, "hold")
    assert held["table_versions"] == {"aside": 3, "events": 6}
    assert all("recovery-r1" in home.owners() for home in homes(several))
    found = to_the_end(several)
    assert found["generations"] == {name: [1, 2] for name in NAMES}
    assert found["holds"] == {name: [] for name in NAMES}
    assert (found["locks"], found["open"]) == ([None, None], False)


def test_a_flow_that_was_not_named_is_left_alone(several: World) -> None:
    plan(several, flows=FLOWS[::2])
    carry_out(several, "hold")
    assert of(several, "more_events").home.owners() == []
    carry_out(several, *reset_checkpoint.KIND.step_names[1:-1])
    assert of(several, "more_events").home.generations() == [1]


def test_a_recovery_of_several_flows_killed_after_any_change_comes_to_the_same_end(
    several: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two flows, of which one is held, decided or released by then and the other is not."""
    made = plan(several)
    state = {file: file.read_bytes() for file in (several.root / "state").rglob("*") if file.is_file()}
    expected = to_the_end(several)
    for at in range(1, 1_000):
        put_back(several, state)
        with monkeypatch.context() as patch:
            process = Mortal(at)
            process.watch(patch)
            try:
                to_the_end(several, process)
                break
            except Killed:
                pass
        assert to_the_end(several) == expected, f"killed after change {at}"
    assert at > 2 * len(made.steps), "every step's start and end was among them"


def put_back(world: World, state: dict[Any, bytes]) -> None:
    for file in (world.root / "state").rglob("*"):
        if file.is_file() and file not in state:
            file.unlink()
    for file, content in state.items():
        file.write_bytes(content)


def test_a_recovery_of_several_flows_of_which_one_was_decided_cannot_be_given_up(
    several: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(several)
    carry_out(several, "hold", "plan_again")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying(generations, "decide", 2, patch, after=False)
        carry_out(several, "decide")
    assert not engine.give_up(several.settings, "events", "r1", "rejected")
    assert all("recovery-r1" in home.owners() for home in homes(several)), (
        "nobody runs while half of it is decided"
    )
    to_the_end(several)


def test_of_two_recoveries_that_share_one_table_the_second_is_refused_and_leaves_nothing(
    several: World,
) -> None:
    plan(several, "r1", FLOWS[:1])
    plan(several, "r2", FLOWS)
    carry_out(several, "hold", recovery="r1")
    with pytest.raises(
        TableLocked, match=r"The recovery r1 has locked the table events of events, so r2 cannot start"
    ):
        carry_out(several, "hold", recovery="r2")
    assert [home.owners() for home in homes(several)] == [["park", "recovery-r1"], [], []]
    assert engine.give_up(several.settings, "events", "r2", "locked out")
    locks = [recovery_lock.holder(several.home.storage, "events", table) for table in ("aside", "events")]
    assert locks == [None, "r1"]


def test_two_recoveries_of_different_tables_go_on_side_by_side(several: World) -> None:
    plan(several, "r1", FLOWS[:2])
    plan(several, "r2", FLOWS[2:])
    carry_out(several, "hold", recovery="r1")
    carry_out(several, *reset_checkpoint.KIND.step_names[:-1], recovery="r2")
    carry_out(several, *reset_checkpoint.KIND.step_names[1:-1], recovery="r1")
    assert [home.generations() for home in homes(several)] == [[1, 2]] * 3


def test_a_flow_without_a_generation_refuses_the_reset_of_all(several: World) -> None:
    several.declare(SEVERAL + LATE)
    with pytest.raises(RequestError, match=r"The flow events.late_events has no checkpoint yet"):
        plan_reset(several, "earliest", flows=("events.clean_events", "events.late_events"))


def test_a_impact_of_one_of_several_flows_is_said_with_its_name(several: World) -> None:
    made = plan(several, start="earliest")
    costs = [(refusal.flow, refusal.impact) for refusal in made.refusals]
    assert costs == [(flow, "duplicates") for flow in FLOWS]
    assert all(refusal.message.startswith(f"{refusal.flow}: ") for refusal in made.refusals)
    with pytest.raises(PlanRefused, match=r"events.aside_events: duplicates: rows that the target"):
        shared_steps.check_accepted(made)


def test_a_impact_that_got_worse_for_one_of_several_flows_names_it(several: World) -> None:
    plan(several, start="latest", accept=("data-loss",))
    several.add_files(1)
    why = carry_out(several, "hold", "plan_again")["reasons"]
    assert [item.partition(": ")[0] for item in why] == [f"flow {flow}, source events_raw" for flow in FLOWS]


def test_progress_is_waited_for_in_every_flow(several: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_steps, "PROGRESS_SECONDS", 0.1)
    plan(several)
    carry_out(several, *reset_checkpoint.KIND.step_names[:-1])
    drive(homes(several)[0])
    with pytest.raises(
        RecoveryError,
        match=r"Generation 2 of events.more_events, generation 2 of events.aside_events made no progress",
    ):
        carry_out(several, "verify_progress")


OFFSETS: dict[str, tuple[dict[str, Any], str | None]] = {
    "by flow": ({flow: {"events_raw": {"logOffset": number}} for number, flow in enumerate(FLOWS)}, None),
    "files by source, which several flows count each for itself": (
        {"events_raw": {"logOffset": 1}},
        f"offsets of events_raw count files in each flow's own checkpoint, and {', '.join(FLOWS)}",
    ),
    "one flow left out": (
        {FLOWS[0]: {"events_raw": {"logOffset": 1}}},
        "offsets of events.more_events leave out events_raw",
    ),
    "a flow that is not named": (
        {"events.other": {"events_raw": 1}},
        "offsets name events.other, which the flows does not read",
    ),
    "a flow with no positions": (
        {FLOWS[0]: 7, **{flow: {"events_raw": {"logOffset": 1}} for flow in FLOWS[1:]}},
        "offsets of events.clean_events are 7. Give a position for each of its sources",
    ),
}


@pytest.mark.parametrize(("offsets", "message"), OFFSETS.values(), ids=OFFSETS.keys())
def test_explicit_offsets_of_several_flows_are_given_by_flow(
    offsets: dict[str, Any], message: str | None, several: World
) -> None:
    values = {"flows": list(FLOWS), "start": "offsets", "offsets": offsets}
    if message is not None:
        with pytest.raises(RequestError, match=message):
            recoveries.asked(several, "reset_checkpoint", **values)
        return
    made = recoveries.planned(several, "reset_checkpoint", **values)
    found = [flow.start.offsets for flow in made.flows]
    assert found == [{"events_raw": {"logOffset": number}} for number in range(3)]
    request = recoveries.asked(several, "reset_checkpoint", **values)
    assert reset_checkpoint.KIND.read_request(made.request) == request


# --- flows of several pipelines, in one recovery


@pytest.fixture
def rates(several: World) -> World:
    """A flow of another pipeline, which has done two batches."""
    several.declare(EVENTS.replace("events", "rates"), "rates.py")
    names = {"name": "clean_rates", "table": "rates", "source": "rates_raw", "folder": "rates"}
    made = replace(several, pipeline="rates", files=[], **names)
    (several.root / "data" / "rates").mkdir()
    made.processed(2)
    return made


def test_a_recovery_of_all_flows_is_one_plan_which_each_pipeline_is_locked_by(
    several: World, rates: World
) -> None:
    values = {"all": True, "start": "earliest", "accept": ["duplicates"]}
    made = approve(several, recoveries.planned(several, "reset_checkpoint", **values))
    assert [flow.flow for flow in made.flows] == [*FLOWS, "rates.clean_rates"]
    text = explain.as_text(made)
    assert "  4 flows together: data loss nothing; duplicates 11 files" in text
    carry_out(several, "hold")
    storage = several.home.storage
    locks = [recovery_lock.holder(storage, *table) for table in (("events", "aside"), ("rates", "rates"))]
    assert (locks, rates.home.owners()) == (["r1", "r1"], ["recovery-r1"])
    with pytest.raises(RecoveryError, match=r"The recovery r1 of rates is not over"):
        rename(several.settings, "rates", "kurse", "ada")
    carry_out(several, *reset_checkpoint.KIND.step_names[1:-1])
    for home in (*homes(several), rates.home):
        assert (home.generations(), home.owners()) == ([1, 2], [])
        drive(home)
    carry_out(several, "verify_progress")
    assert ledger.open_recoveries(storage) == {}


def test_a_flow_that_cannot_be_planned_is_named_before_anything_is_touched(
    several: World, rates: World
) -> None:
    several.declare(SEVERAL + LATE)
    rates.declare(EVENTS.replace("events", "late"), "late.py")
    with pytest.raises(RequestError) as error:  # and no file was changed
        recoveries.planned(several, "reset_checkpoint", all=True)
    for name in ("events.late_events", "late.clean_late"):
        assert f"- {name}: The flow {name} has no checkpoint yet" in str(error.value)
    assert str(error.value).startswith("The reset was not planned, and nothing was changed:")


def test_a_rehearsal_is_of_one_pipeline(several: World, rates: World) -> None:
    with pytest.raises(RequestError, match=r"of several pipelines: events, rates\. A rehearsal is of one"):
        recoveries.asked(several, "reset_checkpoint", all=True, rehearse=True)
    assert recoveries.asked(several, "reset_checkpoint", pipeline="rates", rehearse=True).flows == (
        "rates.clean_rates",
    )


# --- ledgers of the release before


# --- a kind of its own: steps here and in Spark, progress, giving up


@dataclass(frozen=True)
class StampRequest(Request):
    """Asks for a stamp on a table."""

    refused = "The stamp was not planned"

    table: str = form_field("string", "Table", "Which.", names=TABLE)
    accept: tuple[str, ...] = accepted()


def stamp_plan(_: Settings, manifest: Manifest, request: StampRequest, recovery_id: str) -> Plan:
    mark, table = manifest.find(FLOWS[0]).fingerprint, request.table
    held = FlowPlan(FLOWS[0], table, 1, None, 1, mark, StartAt("earliest"), "rebuilt")
    return Plan("stamp", recovery_id, "events", (table,), asdict(request), (held,), STAMP.step_names, now())


def chunks(work: Work) -> dict[str, Any]:
    last = work.book.find(f"{work.step}.progress")
    done = last.evidence["chunk"] if last is not None else 0
    for number in range(done + 1, 4):
        work.check_stop()
        work.progress(chunk=number, of=3)
    return {"chunks": 3, "from": done}


STAMP = Kind(
    name="stamp",
    description="Stamps a table.",
    request=StampRequest,
    plan=stamp_plan,
    steps=(
        shared_steps.HOLD,
        shared_steps.PLAN_AGAIN,
        StepKind("chunks", "copy in chunks", chunks),
        StepKind("stamp", "stamp it", "streamkeeper_jobs.stamps:stamp", changes=True),
        shared_steps.DECIDE,
        shared_steps.VERIFY_TABLES,
        shared_steps.RELEASE,
        shared_steps.VERIFY_PROGRESS,
    ),
)


@pytest.fixture
def stamping(several: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The kind ``stamp`` is known, and a recovery of it approved."""
    monkeypatch.setitem(recovery_kind.KINDS, "stamp", f"{__name__}:STAMP")
    approve(several, look(several, STAMP, StampRequest("events", by="ada")))
    return several


def in_spark(act: str, work: Work) -> dict[str, Any]:
    assert (act, work.step) == ("streamkeeper_jobs.stamps:stamp", "stamp")
    return {"stamped": work.plan.tables}


def test_a_step_that_needs_spark_says_so_where_there_is_none_and_changes_nothing(stamping: World) -> None:
    carry_out(stamping, "hold", "plan_again", "chunks")
    with pytest.raises(
        RecoveryError, match=r"The step stamp needs Spark.*streamkeeper recover stamp --resume r1"
    ):
        carry_out(stamping, "stamp")
    why = engine.why_failed(stamping.settings, "events", "r1", "stamp")
    assert (why or "").startswith("RecoveryError: The step stamp needs")
    assert carry_out(stamping, "stamp", in_spark=in_spark) == {"stamped": ["events"]}
    assert engine.why_failed(stamping.settings, "events", "r1", "stamp") is None
    assert carry_out(stamping, "stamp") == {"stamped": ["events"]}, "what is done needs no Spark any more"


def test_a_flow_that_gets_no_generation_is_only_held(stamping: World) -> None:
    carry_out(stamping, "hold", "plan_again", "chunks")
    carry_out(stamping, "stamp", in_spark=in_spark)
    assert carry_out(stamping, "decide") == {"generations": {}}
    carry_out(stamping, "verify_tables", "release")
    assert carry_out(stamping, "verify_progress") == {"flows": {}}
    assert (stamping.home.generations(), stamping.home.owners()) == ([1], ["park"])


def test_long_steps_write_their_progress_and_go_on_from_it(
    stamping: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(stamping, "hold", "plan_again")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying(Ledger, "record", 3, patch, after=True)  # started, chunk 1, chunk 2
        carry_out(stamping, "chunks")
    assert carry_out(stamping, "chunks") == {"chunks": 3, "from": 2}
    events = ledger.open(stamping.home.storage, "events", "r1").events()
    told = [event.evidence for event in events if event.event == "chunks.progress"]
    assert told == [{"chunk": number, "of": 3} for number in (1, 2, 3)]


def test_a_long_step_ends_when_its_recovery_is_abandoned(
    stamping: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(stamping, "hold", "plan_again")
    progress = Work.progress

    def abandoned(self: Work, **numbers: Any) -> None:
        progress(self, **numbers)
        engine.abandon(self.settings, "events", "r1", "grace")

    monkeypatch.setattr(Work, "progress", abandoned)
    with pytest.raises(RecoveryError, match=r"The recovery r1 was given up \(abandoned by grace\)"):
        carry_out(stamping, "chunks")


def test_what_changed_something_cannot_be_given_up_and_what_did_not_can(stamping: World) -> None:
    carry_out(stamping, "hold", "plan_again", "chunks")

    def fails(_act: str, _work: Work) -> dict[str, Any]:
        raise RecoveryError("half of it is stamped")

    with pytest.raises(RecoveryError, match="half of it"):
        carry_out(stamping, "stamp", in_spark=fails)
    assert not engine.give_up(stamping.settings, "events", "r1", "rejected"), (
        "a started change without a check of its own counts"
    )
    assert "recovery-r1" in stamping.home.owners()
    engine.abandon(stamping.settings, "events", "r1", "ada")
    assert stamping.home.owners() == ["park"]


def test_an_unknown_kind_or_step_is_told_which_there_are(several: World) -> None:
    plan(several)
    with pytest.raises(RequestError, match=r"There is no recovery 'repair'. There are: .*reset_checkpoint"):
        recovery_kind.kind("repair")
    with pytest.raises(
        RequestError,
        match=r"reset_checkpoint has no step 'stamp'. Its steps are rehearse, hold, plan_again, decide",
    ):
        carry_out(several, "stamp")


@pytest.mark.parametrize("name", sorted(recovery_kind.KINDS))
def test_every_kind_is_whole(name: str) -> None:
    of_name = recovery_kind.kind(name)
    fields = of_name.form(Manifest("", (), {}, {}))
    assert {"approval", "dry_run", "reason"} <= {field.name for field in fields}
    assert all(field.title and field.description for field in fields)
    assert len(set(of_name.step_names)) == len(of_name.steps)
    assert all(step.does for step in of_name.steps)
    always = tuple(step for step in of_name.unasked if step != of_name.rehearsal)
    assert of_name.steps == (*always, *of_name.after_approval), "people are asked once"
    assert not any(step.changes or not step.needs_spark for step in of_name.unasked)
    if shared_steps.HOLD in of_name.steps:
        assert of_name.after_approval[0] in (shared_steps.HOLD, shared_steps.LOCK)
        assert shared_steps.RELEASE in of_name.steps, "what is held is released"
        assert of_name.first_change is not None
