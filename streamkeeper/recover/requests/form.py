"""Requests of recoveries: dataclasses whose fields declare how they are asked for.

Airflow's form, the options of the command line, the checks and their messages, and the JSON of plans and
ledgers are derived from one declaration::

    @dataclass(frozen=True)
    class RestoreRequest(Request):
        refused = "The restore was not planned"

        table: str = form_field("string", "Table", "The table that is replaced.", names=TABLE)
        version: int | None = form_field(
            "number", "Version", "A version of the table itself.", nullable=True, whole=True, least=0
        )
        accept: tuple[str, ...] = accepted()

Only rules between fields are left to a kind's own ``check``. Airflow's form checks little and accepts unknown
keys, so all values are checked here, together, before anything is changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Final, Literal, TypeVar

from streamkeeper.declare.model import Pipeline, Table
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import REBUILT, STATES
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.support.amounts import IMPACTS
from streamkeeper.support.json_values import read_as

R = TypeVar("R", bound="Request")

Named = Literal["flow", "table", "pipeline"]
FLOW: Final = "flow"
TABLE: Final = "table"
PIPELINE: Final = "pipeline"

APPROVAL, DRY_RUN, ACCEPT = "approval", "dry_run", "accept"

MOST_DAYS = 36_500
"""The longest retention in days: dates have an end."""


NONE_ILL: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class FormField:
    """One field of a recovery's form.

    ``type`` is a JSON Schema type; with ``many``, several values of ``enum`` may be chosen. ``option`` is an
    addition to the help of the command line option. ``names`` says what the field names: a form made for a
    manifest has the declared names as ``enum``. A number may have to be ``whole``, and has the bounds
    ``least`` and ``most``, in ``unit``.

    ``unattended`` fields are for schedules and the command line: a person at the form decides later, with the
    plan in view. ``mends`` marks the flow of a recovery that ends a park or carries a refused change in: the
    form then has such a flow as ``suggested``. That is no default, since nothing happens to a flow that was
    not named. ``labels`` are what the form shows for some of the ``enum``.
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
    option: str = ""
    names: Named | None = None
    whole: bool = False
    least: float | None = None
    most: float | None = None
    unit: str = ""
    unattended: bool = False
    mends: bool = False
    suggested: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def required(self) -> bool:
        """Whether a value must be given."""
        return self.default is None and not self.nullable and not self.many


def form_field(type: str, title: str, description: str, default: Any = None, **more: Any) -> Any:
    """Declare a request's field with one form field of its name; parameters as those of FormField."""
    return form_fields(FormField("", type, title, description, default, **more))


def form_fields(*parts: FormField, default: Any = MISSING) -> Any:
    """Declare a field of a request with several form fields, which the kind's ``check`` combines."""
    field_default = default
    if field_default is MISSING and len(parts) == 1 and not parts[0].required:
        field_default = tuple(parts[0].default or ()) if parts[0].many else parts[0].default
    return dataclasses.field(default=field_default, metadata={"form": parts})


def accepted() -> Any:
    """Declare the field for impacts that are accepted beforehand."""
    description = (
        "Impacts that are accepted in advance: "
        + "; ".join(f"{word}: {meaning.rpartition(': ')[2]}" for word, meaning in IMPACTS.items())
        + "."
    )
    return form_field(
        "array",
        "Accepted impact",
        description,
        [],
        enum=tuple(map(str, IMPACTS)),
        many=True,
        section="Approval",
        unattended=True,
    )


def state_then() -> Any:
    """Declare the field for the state with which a stateful query goes on after its table went back."""
    return form_field(
        "string",
        "State",
        "For a query with state: as it was then (copied if it still exists, otherwise rebuilt from history"
        " without writing it again), or empty.",
        REBUILT,
        enum=tuple(map(str, STATES)),
        section="State",
    )


def schemas_inferred(section: str) -> Any:
    """Declare the field for schemas that are inferred from the sources' files again."""
    return form_field(
        "boolean",
        "Infer schemas again",
        "Infer the schemas of sources that declare none from their files again. Off: the schemas of the"
        " old generation are kept.",
        False,
        section=section,
    )


_approval = partial(FormField, section="Approval")
RUN = (
    _approval(APPROVAL, "boolean", "Ask for approval", "Wait until someone approves the plan.", True),
    _approval(DRY_RUN, "boolean", "Only plan", "Stop before the approval; nothing is changed.", False),
    _approval("reason", "string", "Reason", "Reason; it is kept in the ledger and with the generation.", ""),
)
"""The last fields of every recovery's form, on how it is run and why."""


@dataclass
class Asking:
    """The context of a request's checks: the manifest, who asks, and when.

    ``wrong`` collects all misfits. ``flow`` and ``table`` are what the fields of these names refer to; None
    if there is no such field, or nothing of that name.
    """

    manifest: Manifest
    by: str
    now: datetime
    wrong: list[str]
    flow: Flow | None = None
    table: tuple[Pipeline, Table] | None = None

    def settle(self, field: FormField, value: Any) -> Any:
        """Return a value of the right type as the request stores it; add its own misfits to ``wrong``."""
        if field.many:
            return tuple(value or ())
        if value is None and field.nullable:
            return None
        if field.names == FLOW:
            self.flow = find_flow(value, self.manifest, self.wrong)
            return self.flow and self.flow.full_name
        if field.names == TABLE:
            self.table = find_table(value, self.manifest, self.wrong)
            return self.table and f"{self.table[0].name}.{self.table[1].name}"
        if field.type == "number" and value is not None:
            misfits = _out_of_bounds(field, value)
            self.wrong += misfits
            return field.default if misfits else int(value) if field.whole else float(value)
        return value or "" if field.type == "string" and field.default == "" else value


@dataclass(frozen=True)
class Request:
    """A request of a recovery; every value was checked against the manifest.

    ``reason`` and ``by`` (who asked) are in each. ``refused`` says what was not done if a value is wrong, as
    the start of a sentence. ``run`` are the form's last fields.
    """

    refused: ClassVar[str]
    run: ClassVar[tuple[FormField, ...]] = RUN

    reason: str = dataclasses.field(default="", kw_only=True)
    by: str = dataclasses.field(default="someone", kw_only=True)

    @classmethod
    def form(cls, manifest: Manifest, ill: Mapping[str, str] = NONE_ILL) -> tuple[FormField, ...]:
        """Return the fields of the form, in their order on the page.

        :param ill: full names of flows that need a recovery, and why in a few words; they come first.
        """
        own = (
            replace(part, name=part.name or field.name)
            for field in dataclasses.fields(cls)
            for part in field.metadata.get("form", ())
        )
        ordered = sorted(own, key=lambda part: part.section == RUN[0].section)
        return tuple(_with_names(part, manifest, ill) for part in (*ordered, *cls.run))

    @classmethod
    def parse(
        cls: type[R], values: Mapping[str, Any], manifest: Manifest, by: str, now: datetime | None = None
    ) -> R:
        """Return a request from a form's values.

        :param values: by field name; missing fields take the form's default.
        :param now: the present time, which no timestamp may exceed.
        :raises RequestError: any value does not fit; all misfits are listed.
        """
        form = cls.form(manifest)
        checked_values, wrong = read_values(values, form)
        asking = Asking(manifest, by, now or datetime.now(timezone.utc), wrong)
        checked_values = {
            "by": by,
            **{field.name: asking.settle(field, checked_values[field.name]) for field in form},
        }
        checked_values |= cls.check(checked_values, asking)
        refuse(cls.refused, wrong)
        names = {field.name for field in dataclasses.fields(cls)}
        return read_as(cls, {name: value for name, value in checked_values.items() if name in names})

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check the rules between fields, and return the values that the request stores in another form."""
        return {}

    @classmethod
    def shorthand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a form's values from those of the command line."""
        return values

    def to_json(self) -> dict[str, Any]:
        """Return the request as a JSON object, for plans and ledgers."""
        return asdict(self)

    @classmethod
    def from_json(cls: type[R], value: Mapping[str, Any]) -> R:
        """Return a request from a plan."""
        return read_as(cls, value)


def read_values(values: Mapping[str, Any], form: Iterable[FormField]) -> tuple[dict[str, Any], list[str]]:
    """Return a value for every field of a form, and what is wrong with names and types.

    A missing value, or one of another type, is replaced by the default: later checks can rely on the types.
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


_PYTHON: dict[str, tuple[type[Any], ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "object": (dict,),
    "array": (list, tuple),
}


def check_type(field: FormField, value: Any) -> list[str]:
    """Return what is wrong with a value by itself; empty if it fits. A flow or table is looked up later."""
    if field.names in (FLOW, TABLE) and not field.many:
        return []
    if value is None and (field.nullable or field.many):
        return []
    if not isinstance(value, _PYTHON[field.type]) or (field.type == "number" and isinstance(value, bool)):
        among = f" Allowed are {', '.join(field.enum)}." if field.enum else ""
        lacking = f" {field.description}{among}" if value is None else ""
        return [f"{field.name} is {value!r}; it must be of type {field.type}.{lacking}"]
    if isinstance(value, float) and not isfinite(value):
        return [f"{field.name} is {value!r}; it must be a number that is finite."]
    if field.enum is None:
        return []
    bad = [item for item in (value if field.many else [value]) if item not in field.enum]
    return [f"{field.name} is {value!r}; allowed are {', '.join(field.enum)}."] if bad else []


_LARGEST = 1e15
"""Upper bound of any number; larger ones may not be exact as a float."""


def _out_of_bounds(field: FormField, value: float) -> list[str]:
    low = field.least is not None and value < field.least
    high = value > (_LARGEST if field.most is None else field.most)
    if not (low or high or (field.whole and value != int(value))):
        return []
    number = f"{'a whole number' if field.whole else 'a number'}{f' of {field.unit}' if field.unit else ''}"
    if field.least is None:
        bounds = ""
    elif field.most is None:
        bounds = f", {field.least:g} or more"
    else:
        bounds = f" from {field.least:g} to {field.most:,.0f}"
    return [f"{field.name} is {value!r}; it must be {number}{bounds}."]


def refuse(refused: str, wrong: Sequence[str]) -> None:
    """Raise if anything is wrong.

    :param refused: what was not done, as the start of a sentence.
    :raises RequestError: something is; all of it is listed.
    """
    if wrong:
        raise RequestError(
            "\n".join([f"{refused}, and nothing was changed:", *(f"- {item}" for item in wrong)]), wrong
        )


def find_flow(name: Any, manifest: Manifest, wrong: list[str]) -> Flow | None:
    """Return a flow by the given name, or add to ``wrong`` why there is none."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]+", name):
        flows = ", ".join(declared_names(FLOW, manifest)) or "none"
        wrong.append(
            f"flow is {name!r}, which is no flow's name (letters, digits, underscores and one dot). Declared"
            f" are: {flows}."
        )
        return None
    try:
        return manifest.find(name)
    except RequestError as error:
        wrong.append(str(error))
        return None


def of_pipeline_or_all(verb: str, things: str) -> tuple[FormField, FormField]:
    """Return the fields that choose all flows or tables of a pipeline, or of every one.

    :param verb: what is done to them, as ``hold``.
    :param things: ``flows`` or ``tables``.
    """
    return (
        FormField(
            "pipeline",
            "string",
            "Pipeline",
            f"Or: {verb} all {things} of this pipeline.",
            nullable=True,
            names=PIPELINE,
        ),
        FormField("all", "boolean", f"All {things}", f"Or: {verb} every one of the {things}.", False),
    )


def chosen_flows(values: Mapping[str, Any], asking: Asking) -> tuple[Flow, ...]:
    """Return the flows that the fields ``flow``, ``flows``, ``pipeline`` and ``all`` choose, each once. They
    may be of several pipelines. What is wrong is added to ``asking.wrong``.
    """
    named = [name for name in (values.get("flow"), *values["flows"]) if name]
    if asking.wrong or not chosen_once({**values, "flows": named}, "flows", asking.wrong):
        return ()
    declared = {flow.full_name: flow for flow in asking.manifest.flows()}
    if named:
        return tuple(declared[name] for name in dict.fromkeys(named))
    own = values["pipeline"]
    chosen = tuple(flow for flow in declared.values() if values["all"] or flow.pipeline.name == own)
    if not chosen:
        asking.wrong.append(
            "No flow is declared there, so there is nothing to do. Declare one, and run `streamkeeper check`."
        )
    return chosen


def chosen_tables(values: Mapping[str, Any], asking: Asking) -> tuple[str, ...]:
    """Return the full names of the tables that the fields ``table``, ``tables``, ``pipeline`` and ``all``
    choose, each once. What is wrong is added to ``asking.wrong``.
    """
    named = [name for name in (values["table"], *values["tables"]) if name]
    if asking.wrong or not chosen_once({**values, "tables": named}, "tables", asking.wrong):
        return ()
    own = f"{values['pipeline']}."
    names = declared_names(TABLE, asking.manifest)
    chosen = named or [name for name in names if values["all"] or name.startswith(own)]
    if not chosen:
        asking.wrong.append(
            "No table is declared there, so there is nothing to do. Declare one, and run `streamkeeper"
            " check`."
        )
    return tuple(dict.fromkeys(chosen))


def chosen_once(values: Mapping[str, Any], things: str, wrong: list[str]) -> bool:
    """Return whether exactly one of the fields ``flows`` (or ``tables``), ``pipeline`` and ``all`` chooses
    something; else add that to ``wrong``.
    """
    filled_fields = [name for name in (things, "pipeline", "all") if values[name]]
    if len(filled_fields) != 1:
        wrong.append(
            f"Given are {' and '.join(filled_fields) or 'none'} of {things}, pipeline and all. Give exactly"
            " one of them."
        )
    return len(filled_fields) == 1


def find_table(name: Any, manifest: Manifest, wrong: list[str]) -> tuple[Pipeline, Table] | None:
    """Return a table by ``pipeline.table`` or its own name; add to ``wrong`` why there is none."""
    for pipeline in manifest.pipelines:
        for table in pipeline.tables:
            if name in (table.name, f"{pipeline.name}.{table.name}"):
                if table.sink is None:
                    return pipeline, table
                wrong.append(
                    f"table is {name!r}, which is a sink: its rows are kept elsewhere, and no recovery can"
                    " change them. Reset or rewind its flows."
                )
                return None
    tables = ", ".join(declared_names(TABLE, manifest)) or "none"
    wrong.append(f"table is {name!r}, which no pipeline declares. Declared are: {tables}.")
    return None


def declared_table(name: str, manifest: Manifest, refused: str) -> tuple[Pipeline, Table]:
    """Return the table that a checked request names.

    :param refused: what was not done, as the start of a sentence.
    :raises RequestError: it is no longer declared.
    """
    wrong: list[str] = []
    declared = find_table(name, manifest, wrong)
    refuse(refused, wrong)
    assert declared is not None, "what is missing was listed as wrong"
    return declared


def declared_names(entity: Named, manifest: Manifest) -> tuple[str, ...]:
    """Return the declared flows, tables or pipelines by their names in forms, such as `pipeline.flow`."""
    if entity == FLOW:
        return tuple(flow.full_name for flow in manifest.flows())
    if entity == TABLE:
        return tuple(
            f"{pipeline.name}.{table.name}"
            for pipeline in manifest.pipelines
            for table in pipeline.tables
            if table.sink is None
        )
    return tuple(pipeline.name for pipeline in manifest.pipelines)


def _with_names(field: FormField, manifest: Manifest, ill: Mapping[str, str]) -> FormField:
    if field.names is None:
        return field
    names = declared_names(field.names, manifest)
    first = tuple(name for name in ill if name in names)
    enum = (*first, *(name for name in names if name not in first))
    if not first or not field.mends:
        return replace(field, enum=enum)
    return replace(
        field, enum=enum, suggested=first[0], labels={name: f"{name} ({ill[name]})" for name in first}
    )
