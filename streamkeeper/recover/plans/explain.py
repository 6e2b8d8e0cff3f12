"""Renders a plan: as Markdown for Airflow's approval, as text for the terminal and the task log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from streamkeeper.flows.generations import ADOPTED
from streamkeeper.recover.plans.advice import TRADE_OFFS
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import IN_THE_TABLE, NAMED, CopyPlan, FlowPlan, Plan, Refusal
from streamkeeper.support.amounts import (
    DATA_LOSS,
    DOWNSTREAM,
    DUPLICATES,
    MISSING_HISTORY,
    UNKNOWN_IMPACT,
    Amount,
    Impact,
    counted,
    in_words,
    size_in_words,
    total,
)
from streamkeeper.support.markdown import literal, plain


def as_markdown(plan: Plan) -> str:
    """Return a plan as Markdown, so short that the buttons below it are on the first screen.

    Costs and tables are all there. Notes that have no room are counted; :func:`as_text` has them, too.
    """
    lines, left_out = list(_markdown(plan)), 0
    room = SCREEN - sum(_height(line) for line in lines)
    for at in reversed(range(len(lines))):
        if room < 0 and lines[at].startswith(_NOTE):
            room += _height(lines.pop(at))
            left_out += 1
    count = f"{left_out} more note{'s' if left_out > 1 else ''}, what each step does"
    more = count if left_out else "What each step does"
    others = " and the other ways out" if plan.ways else ""
    lines += [f"{more}{others}: in the log of the task `plan`."]
    return "\n".join(line.removeprefix(_NOTE) for line in lines)


def as_text(plan: Plan) -> str:
    """Return a plan as plain text."""
    return "\n".join(_text(plan))


def trade_offs() -> str:
    """Return the strategies compared, as a Markdown table for a DAG's docs, which Airflow shows beside it."""
    rows = [TRADE_OFFS[0], ("---",) * len(TRADE_OFFS[0]), *TRADE_OFFS[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def headline(plan: Plan) -> str:
    """Return one line on what a plan does."""
    if len(plan.flows) == 1:
        return f"{plan.recovery} of {plan.subject}: {_becomes(plan.flows[0])}"
    return f"{plan.recovery} of {plan.subject}"


def _becomes(flow: FlowPlan) -> str:
    if flow.next_generation is None:
        return "held during the recovery; it keeps its generation"
    previous = "none yet" if flow.previous is None else flow.previous
    after = f" after batch {flow.position['batch']}" if flow.start.mode == ADOPTED else ""
    return f"generation {previous} → {flow.next_generation}, start {flow.start.mode}{after}{_state(flow)}"


def _state(flow: FlowPlan) -> str:
    if flow.stateful is False:
        return ""
    return f", state {flow.state}{'' if flow.stateful else ', if the query keeps any'}"


def _failure(flow: FlowPlan, short: bool = False) -> Iterator[str]:
    if flow.failure:
        code = flow.failure.get("condition") or (flow.failure.get("context") or {}).get("type", "a failure")
        state = f"SQLSTATE {flow.failure['sql_state']}" if flow.failure.get("sql_state") else ""
        names = [state or code] if short else [code, *([state] if state else [])]
        yield f"The flow is parked: {flow.failure.get('meaning')} — {', '.join(names)}."
    if flow.verdict:
        yield f"Its declaration, looked at before: {flow.verdict}"


def _copy(copy: CopyPlan) -> str:
    rows = "rows not counted" if copy.rows is None else f"{copy.rows:,} rows"
    return (
        f"{copy.label}: {copy.files:,} files, {size_in_words(copy.bytes)}, {rows}, from {copy.source} to"
        f" {copy.destination}"
    )


def _steps(plan: Plan) -> Iterator[str]:
    recovery_kind = kind(plan.recovery)
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. `{step}`: {recovery_kind.step(step).does}"


SCREEN = 280
"""Pixels between headline and last line that leave the buttons in a window of 1280 × 800."""
_NOTE = "\0"
"""Begins a line that may be left out."""


def _height(line: str) -> int:
    """Return the pixels that Airflow's page draws a line of Markdown in."""
    if line.startswith("|"):
        return 0 if line.startswith("|---") else 37
    return 24 * (1 + len(line) // 105) if line and not line.startswith("#") else 8


def _markdown(plan: Plan) -> Iterator[str]:
    """Yield the plan in short, costs first."""
    yield f"### {plain(headline(plan))}"
    yield ""
    yield from (f"- **Costs:** {plain(_ACCEPT.sub('', refusal.message))}" for refusal in plan.refusals)
    yield from (f"{_NOTE}- {plain(note)}" for note in plan.notes)
    yield from (f"- {line}" for line in _sum(plan))
    if len(plan.flows) > NAMED:
        yield from _flows_markdown(plan)
    else:
        for flow in plan.flows:
            yield from _flow_markdown(flow, several=len(plan.flows) > 1)
    yield from (f"- Copied: {plain(_copy(copy))}" for copy in plan.copies)
    yield from (f"- {plain(advice)}" for advice in plan.ways[:1])
    yield ""
    reason = literal(plan.reason) if plan.reason else "none given"
    yield f"Recovery `{plan.recovery_id}`, asked by {literal(plan.by)}. Reason: {reason}."


def _flows_markdown(plan: Plan) -> Iterator[str]:
    """Yield a table of many flows; what they read is in :func:`as_text`."""
    yield ""
    yield "| flow | becomes | data loss | duplicates |"
    yield "|---|---|---|---|"
    for flow in plan.flows:
        amounts = (total([getattr(impact, name) for impact in flow.impacts]) for name in ("lost", "repeated"))
        yield f"| {' | '.join(map(plain, (flow.flow, _becomes(flow), *map(in_words, amounts))))} |"
    yield ""


def _sum(plan: Plan) -> Iterator[str]:
    """Yield what a plan of several flows costs altogether, and what it copies."""
    impacts = [impact for flow in plan.flows for impact in flow.impacts]
    if len(plan.flows) > 1 and impacts:
        names = {"data loss": "lost", "duplicates": "repeated", "replayed": "replayed"}
        sums = {title: total([getattr(one, name) for one in impacts]) for title, name in names.items()}
        costs = "; ".join(f"{title} {in_words(amount)}" for title, amount in sums.items())
        yield f"{len(plan.flows)} flows together: {costs}"
    if len(plan.copies) > 1:
        files, size = (sum(getattr(copy, name) for copy in plan.copies) for name in ("files", "bytes"))
        things = "checkpoints" if plan.flows else "tables"  # of flows an adoption alone copies several
        yield f"{len(plan.copies)} {things} together: {counted(files, 'files')}, {size_in_words(size)}"


def _flow_markdown(flow: FlowPlan, several: bool) -> Iterator[str]:
    if several:
        yield ""
        yield f"**{flow.flow}**: {plain(_becomes(flow))}"
        yield ""
    yield from (f"- {plain(line)}" for line in _failure(flow, short=True))
    yield from (f"{_NOTE}- {plain(line)}" for line in flow.notes)
    if flow.written_again is not None and not flow.written_again.nothing:
        yield (f"- Written again to the table {flow.target}, by its log: {in_words(flow.written_again)}.")
    replayed = any(not impact.replayed.nothing for impact in flow.impacts)
    if flow.impacts:
        heads = ["source", "position", "new generation starts", "data loss", "duplicates"]
        heads += ["replayed, not written"] if replayed else []
        yield ""
        yield f"| {' | '.join(heads)} |"
        yield f"{'|---' * len(heads)}|"
    for impact in flow.impacts:
        amounts = (impact.lost, impact.repeated, *((impact.replayed,) if replayed else ()))
        cells = (impact.source, impact.now, impact.then, *map(in_words, amounts))
        yield f"| {' | '.join(map(plain, cells))} |"
    yield ""
    for impact in flow.impacts:
        yield from (f"{_NOTE}- {plain(f'{impact.source}: {note}')}" for note in impact.notes)


_ACCEPT = re.compile(r" To continue(?: anyway)?, accept `[a-z-]+`\.$")
"""The end of a refusal, which says how to accept it beforehand; an approval accepts it anyway."""

_VERBS = {DATA_LOSS: "lose", DUPLICATES: "duplicate"}
_OTHERWISE = {
    DATA_LOSS: "lose rows",
    DUPLICATES: "duplicate rows",
    MISSING_HISTORY: "rebuild state without part of its history",
    UNKNOWN_IMPACT: "accept an unknown impact",
    DOWNSTREAM: "disturb streams that read the table",
}


def consent(plan: Plan) -> str:
    """Return the label of the approving button, with the accepted impacts: ``Approve, and lose 12 rows``."""
    words = dict.fromkeys(item.impact for item in plan.refusals if item.impact is not None)
    costs = [_cost(plan, word) for word in words]
    return f"Approve, and {' and '.join(costs)}" if costs else "Approve"


def _cost(plan: Plan, word: Impact) -> str:
    """Return an impact as a verb and rows, if all accepted with it was counted; else in general words."""
    covered = [amount for item in plan.refusals if item.impact == word for amount in _covered(plan, item)]
    amounts = [amount for amount in covered if amount is not None and not amount.nothing]
    if (
        word not in _VERBS
        or len(amounts) < len(covered)
        or any(amount.rows is None or amount.rows_unknown for amount in amounts)
    ):
        return _OTHERWISE[word]
    rows = sum(amount.rows or 0 for amount in amounts)
    bound = "up to " if any(amount.at_most for amount in amounts) else ""
    return f"{_VERBS[word]} {bound}{counted(rows, 'rows')}"


def _covered(plan: Plan, refusal: Refusal) -> list[Amount | None]:
    """Return the amounts that a refusal covers; None for what no plan counts, such as others' commits."""
    flow = plan.flow(refusal.flow or "")
    if flow is None:
        return [None]
    if IN_THE_TABLE in refusal.covers:
        return [flow.written_again]  # what is read again of the sources is written there
    amounts = {
        impact.source: impact.repeated if refusal.impact == DUPLICATES else impact.lost
        for impact in flow.impacts
    }
    return [amounts.get(name) for name in refusal.covers or ("",)]


def _text(plan: Plan) -> Iterator[str]:
    yield headline(plan)
    yield from (f"  refused: {refusal.message}" for refusal in plan.refusals)
    yield from (f"  {note}" for note in plan.notes)
    yield from (f"  {line}" for line in _sum(plan))
    for flow in plan.flows:
        yield from _flow_text(flow, several=len(plan.flows) > 1)
    yield from (f"  copied: {_copy(copy)}" for copy in plan.copies)
    yield "  steps"
    yield from (f"    {step.replace('`', '')}" for step in _steps(plan))
    if plan.ways:
        yield "  ways out"
        yield from (f"    {advice}" for advice in plan.ways)
        yield from (f"    {row[0]}: {_trade_off(row)}" for row in TRADE_OFFS[1:])


def _trade_off(row: tuple[str, ...]) -> str:
    return "; ".join(f"{heading} {value}" for heading, value in zip(TRADE_OFFS[0][1:], row[1:], strict=True))


def _flow_text(flow: FlowPlan, several: bool) -> Iterator[str]:
    if several:
        yield f"  {flow.flow}: {_becomes(flow)}"
    yield from (f"  {line}" for line in (*_failure(flow), *flow.notes))
    for impact in flow.impacts:
        yield f"  source {impact.source}"
        yield f"    position    {impact.now}"
        yield f"    starts      {impact.then}"
        yield f"    data loss   {in_words(impact.lost)}"
        yield f"    duplicates  {in_words(impact.repeated)}"
        yield f"    replayed    {in_words(impact.replayed)} (state only, not written)"
        yield from (f"    - {note}" for note in impact.notes)
    if flow.written_again is not None:
        yield f"  table {flow.target}"
        yield f"    written again  {in_words(flow.written_again)}"
