"""The kinds of recovery: what each does, its form, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamkeeper.cli.examples import OF_KINDS
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.course import stages
from streamkeeper.recover.plans.advice import TRADE_OFFS
from streamkeeper.recover.plans.kind import KINDS, Kind, kind
from streamkeeper.recover.requests.form import RUN, FormField
from tools.docs.made import table

_FORM = ("field", "title", "default", "what it is")


def trade_offs() -> str:
    """Return the table of strategies and their trade-offs."""
    head, *rows = TRADE_OFFS
    return table(head, rows)


def steps(name: str) -> str:
    """Return the steps and approvals of a kind of recovery, in their order."""
    return f"```text\n{' >> '.join(['plan', *(stage.name for stage in stages(kind(name)))])}\n```"


def kinds() -> str:
    """Return a section for each kind of recovery, after the fields that all forms have."""
    all_kinds = [kind(name) for name in KINDS]
    forms = {recovery.name: recovery.form(Manifest("", (), {}, {})) for recovery in all_kinds}
    shared = {
        field.name: field for form in forms.values() for field in form if field.section == RUN[0].section
    }
    head = ["## Every form", "", table(_FORM, map(_field, shared.values()))]
    sections = (
        line
        for recovery in all_kinds
        for line in _section(recovery, [f for f in forms[recovery.name] if f.name not in shared])
    )
    return "\n".join([*head, *sections])


def _section(recovery: Kind, fields: Sequence[FormField]) -> Iterator[str]:
    yield from (f"## {recovery.name}", "", recovery.description, "", "```bash")
    yield from (
        f"streamkeeper {command} {recovery.name} {OF_KINDS[recovery.name]}" for command in ("plan", "recover")
    )
    yield from ("```", "")
    yield table(_FORM, map(_field, fields))
    steps = (*recovery.unasked, *recovery.after_approval)
    rows = [(f"`{step.name}`", step.does, "yes" if step.changes else "") for step in steps]
    yield table(("step", "does", "changes for good"), rows)


def _field(field: FormField) -> tuple[str, str, str, str]:
    default = "required" if field.required else _value(field.default)
    among = f" One of {', '.join(f'`{one}`' for one in field.enum)}." if field.enum else ""
    return f"`{field.name}`", field.title, default, f"{field.description}{among}"


def _value(value: object) -> str:
    if value in (None, "", [], ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
