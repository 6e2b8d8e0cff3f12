"""Plans as values: worse than, JSON there and back, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from streamkeeper.errors import StorageError
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.advice import FULL_REFRESH_WITH_BACKUP, RESET, fitting
from streamkeeper.recover.plans.plan import CopyPlan, FlowPlan, Plan, Refusal
from streamkeeper.support import amounts
from streamkeeper.support.amounts import NONE, Amount, SourceImpact
from streamkeeper.tables.backups import Copying

TEN = Amount(10, 1000, 100)
MORE = Amount(11, 1100, 110)
UNKNOWN = Amount(None, 0, None, "cannot be counted")


def plan_of(*impacts: SourceImpact, refusals: tuple[Refusal, ...] = ()) -> Plan:
    return Plan(
        recovery="reset_checkpoint",
        recovery_id="reset_checkpoint-x-1",
        pipeline="events",
        tables=("events",),
        request={"flows": ["events.clean_events"], "accept": ["data-loss"], "by": "ada", "reason": ""},
        flows=(flow_plan(*impacts),),
        steps=KIND.step_names,
        copies=(CopyPlan("events", "/here", "/there", 1_500_000, None, 3),),
        details={"kind": {"of": "its own"}},
        notes=("of all",),
        refusals=refusals,
        at="now",
    )


def refused(word: str, flow: str | None = "events.clean_events", covers: str = "a") -> Refusal:
    return Refusal(word, f"rows. To continue anyway, accept `{word}`.", flow, (covers,))


def flow_plan(*impacts: SourceImpact, flow: str = "events.clean_events", **more: Any) -> FlowPlan:
    given: dict[str, Any] = {
        "start": StartAt("offsets", offsets={"a": {"logOffset": 1}}),
        "position": {"batch": 7, "offsets": {"a": {"logOffset": 9}}},
        "failure": {
            "condition": "C",
            "sql_state": "42K03",
            "meaning": "a stateful operation was removed",
            "context": {"type": "T"},
        },
        "stateful": True,
        **more,
    }
    kept = {"state": "rebuilt", "operators_before": ("dedupe",), "notes": ("a note", "another")}
    return FlowPlan(flow, "events", 3, 4, 2, "f", impacts=impacts, **kept, **given)


def impact(source: str = "a", **amounts: Amount) -> SourceImpact:
    return SourceImpact(source, "files log 9", "after files log 1", notes=("n",), **amounts)


def test_a_plan_survives_the_way_through_json() -> None:
    several = (impact(lost=TEN, repeated=UNKNOWN, gone=MORE), impact("b"))
    made = plan_of(*several, refusals=(Refusal("data-loss", "m"), Refusal(None, "n")))
    assert plans.as_stored(made) == made


def costs(**amounts: Amount) -> Plan:
    """A plan of one source, which costs that."""
    return plan_of(impact(**amounts))


def refusing(message: str, *covers: str, impact_of: str = "data-loss", flow: str | None = None) -> Plan:
    return plan_of(impact(), refusals=(Refusal(impact_of, message, flow, covers=covers),))


WORSE = {
    "the same": (costs(lost=TEN), costs(lost=TEN), None),
    "less lost": (costs(lost=MORE), costs(lost=TEN), None),
    "more lost": (
        costs(lost=TEN),
        costs(lost=MORE),
        "source a: data loss went from 10 files, 1.0 kB, 100 rows to 11 files",
    ),
    "more gone": (costs(), costs(gone=TEN), "missing history went from nothing to 10 files"),
    "known became unknown": (costs(lost=TEN), costs(lost=UNKNOWN), "to rows unknown: cannot be counted"),
    "unknown became known": (costs(lost=UNKNOWN), costs(lost=TEN), None),
    "more replayed, which costs time and no row": (costs(replayed=TEN), costs(replayed=MORE), None),
    "a new source": (costs(), plan_of(impact(), impact("b")), "source b was not in the approved plan"),
    "a source less": (plan_of(impact(), impact("b")), costs(), None),
    "a new refusal": (costs(), refusing("rows are lost"), "new refusal: rows are lost"),
    "the refusal that was there": (refusing("3 rows"), refusing("2 rows"), None),
    "the same refusal for more": (
        refusing("version 2 is lost", "version 2"),
        refusing("2 and 3 are lost", "version 2", "version 3"),
        "new refusal: 2 and 3 are lost",
    ),
    "the same refusal for less": (
        refusing("2 and 3 are lost", "version 2", "version 3"),
        refusing("version 3 is lost", "version 3"),
        None,
    ),
    "another refusal of one word": (
        refusing("rows of a", "a", impact_of="duplicates", flow="events.clean"),
        refusing("in the sink", "sink", impact_of="duplicates", flow="events.clean"),
        "new refusal: in the sink",
    ),
    "another position at the same impact": (
        costs(),
        replace(costs(), flows=(flow_plan(impact(), position={"batch": 9}),)),
        None,
    ),
}


@pytest.mark.parametrize(("approved", "again", "why"), WORSE.values(), ids=WORSE.keys())
def test_a_plan_is_worse_only_if_its_impact_is(approved: Plan, again: Plan, why: str | None) -> None:
    found = plans.worse(approved, again)
    assert (found == []) if why is None else (len(found) == 1 and why in found[0])


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (NONE, "nothing"),
        (Amount(0, 0, 0), "nothing"),
        (Amount(1, 512, 1), "1 file, 512 B, 1 row"),
        (Amount(1234, 1_500_000, 20_000), "1,234 files, 1.5 MB, 20,000 rows"),
        (
            Amount(2, 10, None, "parquet files are not opened for a plan"),
            "2 files, 10 B, rows unknown: parquet files are not opened for a plan",
        ),
        (UNKNOWN, "rows unknown: cannot be counted"),
        (Amount(None, 0, 40), "40 rows"),
        (Amount(3, 10, 0), "3 files, 10 B, 0 rows"),
    ],
)
def test_an_amount_is_said_in_words(amount: Amount, words: str) -> None:
    assert amounts.in_words(amount) == words
    assert amount.nothing == (words == "nothing")


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3.4e9, "3.4 GB"), (5e12, "5.0 TB"), (7e15, "7000.0 TB")],
)
def test_a_size_is_said_in_words(size: float, words: str) -> None:
    assert amounts.size_in_words(size) == words


@pytest.mark.parametrize("explained", [explain.as_text, explain.as_markdown], ids=["text", "markdown"])
def test_the_words_name_flow_generations_impacts_refusals_steps_and_the_failure(explained: object) -> None:
    made = plan_of(
        impact(lost=TEN, replayed=MORE),
        refusals=(Refusal("data-loss", "rows are lost. To continue anyway, accept `data-loss`."),),
    )
    said = explained(made)  # type: ignore[operator]
    impacts = ("10 files, 1.0 kB, 100 rows", "11 files", "rows are lost.", "- ")
    for part in ("events.clean_events", "generation 2 → 4", "42K03", *impacts):
        assert part in said, part
    assert "a note" in said or "4 more notes" in said
    if explained is explain.as_text:
        positions = [said.index(step.name) for step in KIND.steps]
        assert positions == sorted(positions), "steps are told in their order"
    else:
        assert "what each step does" in said, "and where"
    assert ("accept `data-loss`" in said) == (explained is explain.as_text), "who approves accepts with that"


IMPACTS: dict[str, tuple[Plan, str]] = {
    "none": (plan_of(impact(repeated=TEN)), "Approve"),
    "rows": (
        plan_of(impact(lost=Amount(1, 5, 12)), refusals=(refused("data-loss"),)),
        "Approve, and lose 12 rows",
    ),
    "a bound": (
        plan_of(impact(lost=Amount(1, 5, 12, at_most=True)), refusals=(refused("data-loss"),)),
        "Approve, and lose up to 12 rows",
    ),
    "two": (
        plan_of(
            impact(lost=Amount(1, 5, 1), repeated=Amount(3, 10, 1200)),
            refusals=(refused("data-loss"), refused("duplicates")),
        ),
        "Approve, and lose 1 row and duplicate 1,200 rows",
    ),
    "not counted": (
        plan_of(impact(lost=Amount(2, 10, None, "parquet")), refusals=(refused("data-loss"),)),
        "Approve, and lose rows",
    ),
    "rows of others, too": (
        plan_of(
            impact(lost=Amount(1, 5, 12)),
            refusals=(refused("data-loss"), refused("data-loss", None, "version 4")),
        ),
        "Approve, and lose rows",
    ),
    "more than the sources say": (
        plan_of(
            impact(lost=Amount(1, 5, 12)), refusals=(refused("data-loss", covers="missing in the table"),)
        ),
        "Approve, and lose rows",
    ),
    "in the table": (
        replace(
            plan_of(refusals=(refused("duplicates", covers="in the table"),)),
            flows=(flow_plan(impact(repeated=Amount(1, 5, 12)), written_again=Amount(None, 0, 36)),),
        ),
        "Approve, and duplicate 36 rows",
    ),
    "of no source": (plan_of(impact(), refusals=(refused("data-loss", None),)), "Approve, and lose rows"),
    "readers": (
        plan_of(impact(), refusals=(refused("downstream", None),)),
        "Approve, and disturb streams that read the table",
    ),
}


@pytest.mark.parametrize(("made", "said"), IMPACTS.values(), ids=IMPACTS.keys())
def test_approving_is_called_by_the_impact_that_it_accepts(made: Plan, said: str) -> None:
    assert explain.consent(made) == said


def test_what_somebody_wrote_is_shown_as_it_is_and_makes_no_markdown() -> None:
    written = "because\n\n### Approved\n**Lost: nothing.** ![seen](https://evil.example/x.png) `code` <b>"
    written += "\u202e\x1b[2J"
    made = replace(plan_of(impact()), notes=(f"The predicate is {written}",))
    made = replace(made, request={**made.request, "reason": written, "by": "ada\n# root"})
    body = explain.as_markdown(made)
    assert not {"\u202e", "\x1b"} & set(body)
    html = MarkdownIt().enable("table").render(body)
    assert [mark for mark in ("<img", "<h3>Approved", "<strong>Lost", "<h1>") if mark in html] == []
    assert "**Lost: nothing.**" in html and "![seen]" in html, "it is there to be read"


GONE, LATEST = flow_plan(impact(gone=TEN)), flow_plan(impact(lost=TEN), start=StartAt("latest"))
LOST = flow_plan(impact(lost=TEN), start=StartAt("after-last"))
BLOCKED = flow_plan(replace(impact(), blocked="VACUUM took files"))
UNREADABLE = flow_plan(impact(), position={"offsets": None})
IN_PART = "cannot be rebuilt completely: part of the history of a is gone"
STRATEGIES: dict[str, tuple[FlowPlan, str, str]] = {
    "all is there": (flow_plan(impact(repeated=TEN)), RESET, "without duplicates"),
    "what comes next is gone": (LOST, FULL_REFRESH_WITH_BACKUP, "data of a no longer exists"),
    "loss by the start that was asked for": (LATEST, RESET, "the table is kept"),
    "the source cannot be continued with": (BLOCKED, FULL_REFRESH_WITH_BACKUP, "data of a"),
    "positions that cannot be read": (UNREADABLE, FULL_REFRESH_WITH_BACKUP, "are unreadable"),
    "part of the history is gone": (GONE, RESET, IN_PART),
    "history that no state needs": (replace(GONE, stateful=False), RESET, "the table is kept"),
}


@pytest.mark.parametrize(("flow", "strategy", "why"), STRATEGIES.values(), ids=STRATEGIES.keys())
def test_the_strategy_that_fits_follows_from_what_the_plan_found(
    flow: FlowPlan, strategy: str, why: str
) -> None:
    found, said = fitting(flow)
    assert (found, why in said) == (strategy, True), said


def test_an_approval_keeps_its_buttons_on_the_first_screen_and_counts_the_notes_that_it_leaves_out() -> None:
    costs = (Refusal("data-loss", "rows are lost. To continue anyway, accept `data-loss`."),)
    short = replace(
        plan_of(refusals=costs), copies=(), flows=(flow_plan(impact(lost=TEN), failure=None, position=None),)
    )
    assert "another" in explain.as_markdown(short)
    assert "more note" not in explain.as_markdown(short)
    long = replace(short, notes=tuple(f"of all, number {number}" for number in range(30)))
    said = explain.as_markdown(long)
    left_out = 34 - sum(
        line.startswith(("- of all", "- a note", "- another", "- a: n")) for line in lines(said)
    )
    assert f"{left_out - 1} more notes, " in said
    assert len(lines(said)) <= 20
    assert "rows are lost." in said
    assert "10 files, 1.0 kB, 100 rows" in said
    assert all(note in explain.as_text(long) for note in long.notes), "the log has them"


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_where_no_flow_is_parked_no_way_out_is_advised() -> None:
    made = replace(
        plan_of(),
        flows=(flow_plan(impact(), failure=None), flow_plan(impact(), flow="events.more", failure=None)),
    )
    for explained in (explain.as_text, explain.as_markdown):
        words = explained(made)
        assert "strategy" not in words
        assert "events.more" in words
        assert "1.5 MB, rows not counted, from /here to /there" in words


def test_a_plan_whose_details_are_gone_is_told_with_what_to_do() -> None:
    with pytest.raises(StorageError, match=r"a plan that is none: .*copied.* Restore the recovery's"):
        plan_of().details_as(Copying)
