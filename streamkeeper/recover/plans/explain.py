"""A plan in words: as Markdown for Airflow's approval, as text for the terminal and the task log."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.recover.plans.advice import TRADE_OFFS, advise
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import CopyPlan, FlowPlan, Plan, in_words, size_in_words


def as_markdown(plan: Plan) -> str:
    """Give a plan as Markdown."""
    return "\n".join(_markdown(plan))


def as_text(plan: Plan) -> str:
    """Give a plan as plain text."""
    return "\n".join(_text(plan))


def headline(plan: Plan) -> str:
    """Say in a line what a plan is of."""
    if len(plan.flows) == 1:
        return f"{plan.recovery} of {plan.subject}: {_becomes(plan.flows[0])}"
    return f"{plan.recovery} of {plan.subject}"


def _becomes(flow: FlowPlan) -> str:
    if flow.next_generation is None:
        return "held meanwhile; it keeps the generation that it has"
    left = "none yet" if flow.previous is None else flow.previous
    return f"generation {left} → {flow.next_generation}, start {flow.start.mode}, state {_state(flow)}"


def _state(flow: FlowPlan) -> str:
    if flow.stateful is False:
        return "none (the query keeps none)"
    return flow.state if flow.stateful else f"{flow.state}, if the query keeps any"


def _failure(flow: FlowPlan) -> Iterator[str]:
    if flow.failure:
        code = flow.failure.get("condition") or (flow.failure.get("context") or {}).get("type", "a failure")
        state = flow.failure.get("sql_state")
        yield (
            f"The flow is parked: {flow.failure.get('meaning')} —"
            f" {code}{f', SQLSTATE {state}' if state else ''}."
        )


def _copy(copy: CopyPlan) -> str:
    rows = "rows not counted" if copy.rows is None else f"{copy.rows:,} rows"
    return (
        f"{copy.what}: {copy.files:,} files, {size_in_words(copy.bytes)}, {rows}, from {copy.source} to"
        f" {copy.destination}"
    )


def _steps(plan: Plan) -> Iterator[str]:
    known = kind(plan.recovery)
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. `{step}`: {known.step(step).does}"


def _markdown(plan: Plan) -> Iterator[str]:
    yield f"### {headline(plan)}"
    yield ""
    yield from (f"- {note}" for note in plan.notes)
    for flow in plan.flows:
        yield from _flow_markdown(flow, several=len(plan.flows) > 1)
    if plan.copies:
        yield ""
        yield "**Copied**"
        yield from (f"- {_copy(copy)}" for copy in plan.copies)
    if plan.refusals:
        yield ""
        yield "**Refused unless accepted:**"
        yield from (f"- {refusal.message}" for refusal in plan.refusals)
    yield ""
    yield "**Steps**"
    yield from _steps(plan)
    yield ""
    advices = list(advise(plan))
    if advices:
        yield "**Ways out**"
        yield from (f"- {advice}" for advice in advices)
        yield ""
        yield "| " + " | ".join(TRADE_OFFS[0]) + " |"
        yield "|" + "---|" * len(TRADE_OFFS[0])
        yield from ("| " + " | ".join(row) + " |" for row in TRADE_OFFS[1:])
        yield ""
    yield (
        f"Recovery `{plan.recovery_id}`, asked by {plan.by}, planned {plan.at}. Reason:"
        f" {plan.reason or 'none given'}."
    )


def _flow_markdown(flow: FlowPlan, several: bool) -> Iterator[str]:
    if several:
        yield ""
        yield f"**{flow.flow}**: {_becomes(flow)}"
        yield ""
    yield from (f"- {line}" for line in (*_failure(flow), *flow.notes))
    if flow.written_again is not None and not flow.written_again.nothing:
        yield (
            f"- Written a second time into the table {flow.target}, by its log:"
            f" {in_words(flow.written_again)}."
        )
    if flow.prices:
        yield ""
        yield "| source | stands | new generation starts | lost | repeated | replayed, muted |"
        yield "|---|---|---|---|---|---|"
    for price in flow.prices:
        amounts = " | ".join(in_words(amount) for amount in (price.lost, price.repeated, price.replayed))
        yield f"| {price.source} | {price.now} | {price.then} | {amounts} |"
    yield ""
    for price in flow.prices:
        yield from (f"- {price.source}: {note}" for note in price.notes)


def _text(plan: Plan) -> Iterator[str]:
    yield headline(plan)
    yield from (f"  {note}" for note in plan.notes)
    for flow in plan.flows:
        yield from _flow_text(flow, several=len(plan.flows) > 1)
    yield from (f"  copied: {_copy(copy)}" for copy in plan.copies)
    yield "  steps"
    yield from (f"    {step.replace('`', '')}" for step in _steps(plan))
    advices = list(advise(plan))
    if advices:
        yield "  ways out"
        yield from (f"    {advice}" for advice in advices)
        yield from (f"    {row[0]}: {_trade_off(row)}" for row in TRADE_OFFS[1:])
    yield from (f"  refused: {refusal.message}" for refusal in plan.refusals)


def _trade_off(row: tuple[str, ...]) -> str:
    return "; ".join(f"{what} {value}" for what, value in zip(TRADE_OFFS[0][1:], row[1:], strict=True))


def _flow_text(flow: FlowPlan, several: bool) -> Iterator[str]:
    if several:
        yield f"  {flow.flow}: {_becomes(flow)}"
    yield from (f"  {line}" for line in (*_failure(flow), *flow.notes))
    for price in flow.prices:
        yield f"  source {price.source}"
        yield f"    stands    {price.now}"
        yield f"    starts    {price.then}"
        yield f"    lost      {in_words(price.lost)}"
        yield f"    repeated  {in_words(price.repeated)}"
        yield f"    replayed  {in_words(price.replayed)} (state only, sink muted)"
        yield from (f"    - {note}" for note in price.notes)
    if flow.written_again is not None:
        yield f"  table {flow.target}"
        yield f"    written a second time  {in_words(flow.written_again)}"
