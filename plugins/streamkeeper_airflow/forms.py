"""A recovery's form fields as Airflow's parameters, and the values that come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Context, Param

from streamkeeper.recover.requests.form import FormField


def params(fields: Iterable[FormField]) -> dict[str, Param]:
    """Give one parameter a field, in the fields' order.

    Airflow's form checks little; :func:`streamkeeper.recover.requests.form.parse_reset` checks all.
    """
    return {field.name: _param(field) for field in fields}


def values(context: Context, fields: Iterable[FormField]) -> dict[str, Any]:
    """Give what the run was triggered with, unknown keys included, so that they are refused and not ignored.

    The form sends null for a field that was emptied; where a field has a default and takes no null, that
    means the default. Its editor of objects shows ``{}`` where there is none.
    """
    given = {**context["params"], **(context["dag_run"].conf or {})}
    given |= {
        field.name: None
        for field in fields
        if field.nullable and field.type == "object" and given.get(field.name) == {}
    }
    emptied = {field.name for field in fields if field.default is not None and not field.nullable}
    return {name: value for name, value in given.items() if value is not None or name not in emptied}


def asker(context: Context) -> str:
    """Give the name of who triggered the run, as Airflow knows it."""
    run = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or f"Airflow ({run.run_type})")


def _param(field: FormField) -> Param:
    required = field.default is None and not field.nullable and not field.many
    schema: dict[str, Any] = {"type": _type(field), "title": field.title}
    if field.section:
        schema["section"] = field.section
    if field.format:
        schema["format"] = field.format
    if field.enum is not None:
        schema |= _choice(field, field.enum)
    if required:
        return Param(description_md=field.description, **schema)
    return Param(field.default, description_md=field.description, **schema)


def _type(field: FormField) -> str | list[str]:
    """A text without a default is optional for the form, which counts an empty text as missing."""
    optional = field.nullable or field.many or (field.type == "string" and field.default == "")
    return [field.type, "null"] if optional else field.type


def _choice(field: FormField, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    if field.many:
        return {"items": {"type": "string", "enum": list(allowed)}, "examples": list(allowed)}
    if field.nullable:
        return {"examples": list(allowed)}  # an enum would refuse the null of a field that is left empty
    return {"enum": list(allowed)} if allowed else {}
