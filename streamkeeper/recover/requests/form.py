"""What a person asks of a recovery: the form's fields, and the request that values of them make.

Every value is checked, together, before anything is touched: :class:`RequestError` lists all that is wrong at
once. Airflow's own form checks little and accepts unknown keys, so this is where the checking is done, for
the form, the API and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from streamkeeper.declare.model import Pipeline, Table
from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import Flow, Manifest

Asked = TypeVar("Asked")

LOSS = "loss"
REPEATS = "repeats"
MISSING_HISTORY = "missing-history"
UNKNOWN_PRICE = "unknown-price"
DOWNSTREAM = "downstream"

PRICES = {
    LOSS: "rows that no generation will ever read",
    REPEATS: "rows that the target will get a second time",
    MISSING_HISTORY: (
        "a rebuilt state without rows of the history that are gone, or in files that were written anew"
    ),
    UNKNOWN_PRICE: "a price that could not be found out",
    DOWNSTREAM: "streams that read the table feel that its rows go and are written again",
}
"""What a person may accept beforehand, by the word that the form and ``--accept`` take."""

MOST_DAYS = 36_500
"""The longest retention that can be asked for: dates have an end."""

APPROVAL, DRY_RUN = "approval", "dry_run"
"""Fields that say how a recovery is run; they are no part of what is asked for."""


@dataclass(frozen=True)
class FormField:
    """One field of a recovery's form. ``type`` is a JSON Schema type; ``many`` lets several of ``enum`` be
    picked.

    ``option`` is the name of its option on the command line, where that is not the field's own.
    """

    name: str
    type: str
    title: str
    description: str
    default: Any = None
    enum: tuple[str, ...] | None = None
    many: bool = False
    nullable: bool = False
    format: str | None = None
    section: str | None = None
    option: str | None = None


_NAMED = ("flow", "table")
"""Fields that name something declared, one of their ``enum``: :func:`find_flow` and :func:`find_table` say
what is wrong with them.
"""


def read_values(values: Mapping[str, Any], form: Iterable[FormField]) -> tuple[dict[str, Any], list[str]]:
    """Give a value for every field of a form, and what is wrong with names and types.

    Where none was given, or one of another type, it is the default: who looks on at what the values mean can
    rely on their types.
    """
    fields = {field.name: field for field in form}
    unknown = sorted(set(values) - set(fields))
    wrong = [f"Unknown: {', '.join(map(repr, unknown))}. Allowed are {', '.join(fields)}."] if unknown else []
    merged = {name: values.get(name, field.default) for name, field in fields.items()}
    for name, field in fields.items():
        misfits = check_type(field, merged[name])
        if misfits:
            wrong += misfits
            merged[name] = field.default
    return merged, wrong


def refuse(what: str, wrong: Sequence[str]) -> None:
    """Go on if nothing is wrong.

    :param what: was not done, as the start of a sentence.
    :raises RequestError: something is; all of it is listed.
    """
    if wrong:
        raise RequestError(
            "\n".join([f"{what}, and nothing was touched:", *(f"- {item}" for item in wrong)]), wrong
        )


def request_of(kind: type[Asked], value: Mapping[str, Any], **read: Any) -> Asked:
    """Make a request anew from what the ledger keeps of it.

    :param kind: a dataclass, whose sequences are tuples; JSON has lists for them.
    :param read: fields that are no plain values.
    """
    return kind(
        **{**{name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}, **read}
    )


def check_type(field: FormField, value: Any) -> list[str]:
    """Say what is wrong with a value by itself, whatever the others are; nothing if it fits."""
    if value is None and (field.nullable or field.many):
        return []
    kinds: dict[str, tuple[type[Any], ...]] = {
        "string": (str,),
        "boolean": (bool,),
        "number": (int, float),
        "object": (dict,),
        "array": (list,),
    }
    if field.many and isinstance(value, tuple):
        value = list(value)
    named = field.name in _NAMED and field.enum is not None
    if not isinstance(value, kinds[field.type]) or (field.type == "number" and isinstance(value, bool)):
        among = f" Allowed are {', '.join(field.enum)}." if field.enum else ""
        lacking = f" {field.description}{among}" if value is None else ""
        return [] if named else [f"{field.name} is {value!r}; it must be of type {field.type}.{lacking}"]
    if isinstance(value, float) and not isfinite(value):
        return [f"{field.name} is {value!r}; it must be a number that is finite."]
    if named or field.enum is None:
        return []
    bad = [item for item in (value if field.many else [value]) if item not in field.enum]
    return [f"{field.name} is {value!r}; allowed are {', '.join(field.enum)}."] if bad else []


def price_field() -> FormField:
    """Give the field in which prices are accepted beforehand."""
    return FormField(
        "accept",
        "array",
        "Accepted price",
        "What the plan may cost without being refused: "
        + "; ".join(f"`{word}`: {meaning}" for word, meaning in PRICES.items())
        + ".",
        [],
        tuple(PRICES),
        many=True,
        section="Approval",
    )


def approval_fields() -> tuple[FormField, ...]:
    """Give the fields with which every form of a recovery ends."""
    return (
        FormField(
            APPROVAL,
            "boolean",
            "Ask for approval",
            "Wait until someone has read the plan and approved it.",
            True,
            section="Approval",
        ),
        FormField(
            DRY_RUN,
            "boolean",
            "Only plan",
            "Stop before anybody is asked; nothing is changed.",
            False,
            section="Approval",
        ),
        FormField(
            "reason",
            "string",
            "Reason",
            "Why; it is kept in the ledger and with the generation.",
            "",
            section="Approval",
        ),
    )


def find_flow(name: Any, manifest: Manifest, wrong: list[str]) -> Flow | None:
    """Find a flow by the name that someone gave, or add to ``wrong`` why there is none."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]+", name):
        known = ", ".join(flow.full_name for flow in manifest.flows()) or "none"
        wrong.append(
            f"flow is {name!r}, which is no flow's name (letters, digits, underscores and one dot). Declared"
            f" are: {known}."
        )
        return None
    try:
        return manifest.find(name)
    except RequestError as error:
        wrong.append(str(error))
        return None


def declared_table(name: str, manifest: Manifest, what: str) -> tuple[Pipeline, Table]:
    """Give the table that a request names, which was checked when it was made.

    :param what: was not done, as the start of a sentence.
    :raises RequestError: it is not declared any more.
    """
    wrong: list[str] = []
    found = find_table(name, manifest, wrong)
    refuse(what, wrong)
    assert found is not None, "what is missing was listed as wrong"
    return found


def find_table(name: Any, manifest: Manifest, wrong: list[str]) -> tuple[Pipeline, Table] | None:
    """Find a table by ``pipeline.table``, or by its own name (no two pipelines have the same); or add to
    ``wrong`` why there is none.
    """
    found = [
        (pipeline, table)
        for pipeline in manifest.pipelines
        for table in pipeline.tables
        if name in (table.name, f"{pipeline.name}.{table.name}")
    ]
    if found:
        return found[0]
    known = ", ".join(table_names(manifest)) or "none"
    wrong.append(f"table is {name!r}, which no pipeline declares. Declared are: {known}.")
    return None


def table_names(manifest: Manifest) -> tuple[str, ...]:
    """Give every table as ``pipeline.table``."""
    return tuple(
        f"{pipeline.name}.{table.name}" for pipeline in manifest.pipelines for table in pipeline.tables
    )
