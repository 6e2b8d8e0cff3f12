"""A plan in words: as Markdown for Airflow's approval, as text for the terminal and the task log."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.plans import WHAT_STEPS_DO, Plan, in_words

TRADE_OFFS = (
    ("strategy", "complexity", "cost", "data may be lost", "data may come twice", "resets the table"),
    ("full refresh", "low", "medium", "yes, if source files are gone", "not for AUTO CDC targets", "yes"),
    ("full refresh with backup and backfill", "medium", "high", "no", "not for idempotent sinks", "no"),
    ("reset checkpoint", "medium", "low", "not from after-last", "not from after-last", "no"),
)
"""The strategies compared, after the guide on recovering a pipeline from a checkpoint failure (see SOURCES)."""


def as_markdown(plan: Plan) -> str:
    """Give a plan as Markdown."""
    return "\n".join(_markdown(plan))


def as_text(plan: Plan) -> str:
    """Give a plan as plain text."""
    return "\n".join(_text(plan))


def _headline(plan: Plan) -> str:
    numbers = f"generation {plan.previous} → {plan.next_generation}"
    return f"{plan.recovery} of {plan.flow}: {numbers}, start {plan.request.start.mode}, state {_state(plan)}"


def _state(plan: Plan) -> str:
    if plan.stateful is False:
        return "none (the query keeps none)"
    return plan.request.state if plan.stateful else f"{plan.request.state}, if the query keeps any"


def _failure(plan: Plan) -> Iterator[str]:
    if plan.failure:
        code = plan.failure.get("condition") or plan.failure.get("context", {}).get("type", "a failure")
        state = plan.failure.get("sql_state")
        yield f"The flow is parked: {plan.failure.get('meaning')} — {code}{f', SQLSTATE {state}' if state else ''}."


def _markdown(plan: Plan) -> Iterator[str]:
    yield f"### {_headline(plan)}"
    yield ""
    for line in (*_failure(plan), *plan.notes):
        yield f"- {line}"
    yield ""
    yield "| source | stands | new generation starts | lost | repeated | replayed, muted |"
    yield "|---|---|---|---|---|---|"
    for price in plan.prices:
        amounts = " | ".join(in_words(amount) for amount in (price.lost, price.repeated, price.replayed))
        yield f"| {price.source} | {price.now} | {price.then} | {amounts} |"
    yield ""
    for price in plan.prices:
        for note in price.notes:
            yield f"- {price.source}: {note}"
    if plan.refusals:
        yield ""
        yield "**Refused unless accepted:**"
        for refusal in plan.refusals:
            yield f"- {refusal.message}"
    yield ""
    yield "**Steps**"
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. `{step.value}`: {WHAT_STEPS_DO[step]}"
    yield ""
    yield "| " + " | ".join(TRADE_OFFS[0]) + " |"
    yield "|" + "---|" * len(TRADE_OFFS[0])
    for row in TRADE_OFFS[1:]:
        yield "| " + " | ".join(row) + " |"
    yield ""
    yield f"Recovery `{plan.recovery_id}`, asked by {plan.request.by}, planned {plan.at}. Reason: {plan.request.reason or 'none given'}."


def _text(plan: Plan) -> Iterator[str]:
    yield _headline(plan)
    for line in (*_failure(plan), *plan.notes):
        yield f"  {line}"
    for price in plan.prices:
        yield f"  source {price.source}"
        yield f"    stands    {price.now}"
        yield f"    starts    {price.then}"
        yield f"    lost      {in_words(price.lost)}"
        yield f"    repeated  {in_words(price.repeated)}"
        yield f"    replayed  {in_words(price.replayed)} (state only, sink muted)"
        for note in price.notes:
            yield f"    - {note}"
    yield "  steps"
    for number, step in enumerate(plan.steps, start=1):
        yield f"    {number}. {step.value}: {WHAT_STEPS_DO[step]}"
    for refusal in plan.refusals:
        yield f"  refused: {refusal.message}"
