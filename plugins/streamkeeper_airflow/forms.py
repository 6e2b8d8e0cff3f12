"""A recovery's form fields as Airflow params, and the values that a run was triggered with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from airflow.sdk import DAG, Context, Param
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.form import FormField, Request
from streamkeeper.settings import Settings, dag_id
from streamkeeper.support.json_values import parse
from streamkeeper_airflow.dag_options import dag_options

R = TypeVar("R", bound=Request)


def form_dag(request_type: type[Request], name: str, tag: str, **more: Any) -> DAG:
    """Return the DAG of a request that is carried out without a plan.

    :param name: the DAG's, without the prefix of its id.
    :param tag: what it is for, beside the tags of all DAGs.
    :param more: passed to :class:`airflow.sdk.DAG` as it is.
    """
    settings = Settings.from_environment()
    fields = request_type.form(read_manifest(settings))
    shared = dag_options(settings, tag, retries=2, retry_delay=timedelta(seconds=10))
    common = {"schedule": None, "catchup": False, "dag_display_name": name, **shared}
    return DAG(dag_id(name), params=params(fields), **{**common, **more})


def request_of(request_type: type[R], context: Context) -> R:
    """Return what a run asks for.

    :raises AirflowFailException: a value of the form does not fit; another try would fail alike.
    """
    manifest = read_manifest(Settings.from_environment())
    try:
        return request_type.parse(values(context, request_type.form(manifest)), manifest, asker(context))
    except RequestError as error:
        raise AirflowFailException(str(error)) from error


def params(fields: Iterable[FormField]) -> dict[str, Param]:
    """Return one param for each field, in the fields' order, without the fields for schedules.

    Values of those are accepted all the same. Airflow's form checks little;
    :meth:`streamkeeper.recover.requests.form.Request.parse` checks all.
    """
    return {field.name: _param(field) for field in fields if not field.unattended}


def values(context: Context, fields: Iterable[FormField]) -> dict[str, Any]:
    """Return the values of a triggered run, with unknown keys, so that these are refused and not ignored.

    The form sends null for an emptied field; a field that has a default and takes no null then gets its
    default. Objects come as text from the form. A value that the form only suggests counts only if the run
    was triggered with it: nothing happens to a flow that was not named.
    """
    fields, conf = tuple(fields), context["dag_run"].conf or {}
    form_values = {**context["params"], **conf}
    form_values |= {
        field.name: _object(form_values.get(field.name)) for field in fields if field.type == "object"
    }
    form_values |= {field.name: None for field in fields if field.mends and field.name not in conf}
    emptied = {field.name for field in fields if field.default is not None and not field.nullable}
    return {name: value for name, value in form_values.items() if value is not None or name not in emptied}


def asker(context: Context) -> str:
    """Return the name of the user who triggered the run, as Airflow knows it."""
    run = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or f"Airflow ({run.run_type})")


def _object(value: Any) -> Any:
    """Return the object that a text holds, None for an empty one; another value stays, to be refused."""
    if not isinstance(value, str):
        return value or None
    try:
        return parse(value) if value.strip() else None
    except ValueError:
        return value


def _param(field: FormField) -> Param:
    schema: dict[str, Any] = {"type": _type(field), "title": field.title}
    if field.section:
        schema["section"] = field.section
    if field.format:
        schema["format"] = field.format
    if field.enum is not None:
        schema |= _choice(field, field.enum)
    if field.labels:
        schema["values_display"] = dict(field.labels)
    if field.required and field.suggested is None:
        return Param(description_md=field.description, **schema)
    return Param(field.suggested or field.default, description_md=field.description, **schema)


def _type(field: FormField) -> str | list[str]:
    """Return the JSON Schema type of a field.

    A text without a default is optional in the form, which counts an empty text as missing. An object is
    declared as text first: the form draws the widget of the first type, and that of objects fills half a
    page.
    """
    if field.type == "object":
        return ["string", "object", "null"]
    optional = field.nullable or field.many or (field.type == "string" and field.default == "")
    name = "integer" if field.whole else field.type
    return [name, "null"] if optional else name


class _Names(list[str]):
    """Names that nobody changes: Airflow copies a DAG's params for each of its tasks, and lists of a thousand
    flows would be half of the time that a DAG takes to parse.
    """

    def __deepcopy__(self, memo: object) -> _Names:
        return self


def _choice(field: FormField, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    names = _Names(allowed)
    if field.many:
        return {"items": {"type": "string", "enum": names}, "examples": names}
    if field.nullable:
        return {"examples": names}  # an enum would refuse the null of a field that is left empty
    return {"enum": names} if allowed else {}
