"""Recoveries that a pipeline schedules.

For example ``dp.schedule("backup_table", table="customers", cron="0 3 * * *")``. They run unattended:
approval is off, so a plan with an impact that the declaration does not accept ends with an alert, and changes
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamkeeper.declare.model import Location, Pipeline, Schedule
from streamkeeper.errors import DeclarationError, RequestError

if TYPE_CHECKING:
    from streamkeeper.manifest.manifest import Manifest

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
"""Airflow's names for common schedules."""

BY = "the schedule"

_APPROVAL = "approval"  # as in recover.requests.form, which imports the manifest, which imports this module

_FIELD = re.compile(r"(?:[0-9*,/-]|[a-z]{3})+")
"""A field of a cron expression, without the signs that not every cron takes, such as L, # and a random R."""
_TEMPLATE = ("{{", "{%", "{#")


def check_cron(cron: object, location: Location) -> str:
    """Return a cron expression as Airflow takes it: five fields, or one of :data:`PRESETS`.

    A driver may lack croniter, by which Airflow reads the fields: it runs no schedule, and checks none.

    :raises DeclarationError: it is none, or names a day that no year has.
    """
    text = cron.strip().lower() if isinstance(cron, str) else ""
    if text in PRESETS:
        return text
    fields = text.split()
    if len(fields) != 5 or not all(map(_FIELD.fullmatch, fields)):
        raise DeclarationError(
            f"{location}: the schedule has cron {cron!r}. Give five fields (minute, hour, day of month,"
            f" month, day of week) of numbers, names, *, -, / and commas, such as '0 3 * * mon', or one of"
            f" {', '.join(PRESETS)}."
        )
    try:
        from croniter import CroniterError, croniter
    except ImportError:
        return text
    try:
        any_weekday = "*" in croniter.expand(text)[0][4]  # otherwise a day of the week is met, too
        croniter.expand(text, strict=any_weekday)
    except CroniterError as error:
        raise DeclarationError(
            f"{location}: the schedule has cron {cron!r}: {error}. Correct the field."
        ) from error
    return text


def declared(
    recovery: object, cron: object, name: object, values: Mapping[str, Any], location: Location
) -> Schedule:
    """Return the schedule that a pipeline file declares.

    Whether the flows and tables that it names exist is checked with the whole file.

    :raises DeclarationError: with file, line, what was found and what is allowed.
    """
    from streamkeeper.recover.plans.kind import KINDS

    if recovery not in KINDS:
        raise DeclarationError(
            f"{location}: there is no recovery {recovery!r} to schedule. There are:"
            f" {', '.join(sorted(KINDS))}."
        )
    if _APPROVAL in values:
        raise DeclarationError(
            f"{location}: the schedule of {recovery} sets approval. A schedule cannot ask for approval: leave"
            " it out."
        )
    try:
        plain = json.loads(json.dumps(dict(values)))
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"{location}: the schedule of {recovery} has a value that is not JSON ({error})."
        ) from error
    template = _template_in(plain)
    if template is not None:
        raise DeclarationError(
            f"{location}: the schedule of {recovery} has the value {template!r}. Airflow would render it as a"
            " template, passwords of connections included. Give the value itself, without {{, {% and {#."
        )
    subject = next((str(values[key]) for key in ("table", "flow") if isinstance(values.get(key), str)), "")
    named = (
        "__".join(part for part in (str(recovery), subject.rpartition(".")[2]) if part)
        if name is None
        else name
    )
    if not isinstance(named, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", named):
        raise DeclarationError(
            f"{location}: the schedule's name {named!r} cannot be used. A name has letters, digits and"
            " underscores, a letter first."
        )
    return Schedule(named, str(recovery), check_cron(cron, location), plain, location)


def _template_in(value: Any) -> str | None:
    """Return the first text in a JSON value that Airflow would take for a template."""
    if isinstance(value, str):
        return value if any(mark in value for mark in _TEMPLATE) else None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((template for item in inner if (template := _template_in(item)) is not None), None)


def dag_id(pipeline: Pipeline, schedule: Schedule) -> str:
    """Return the id of the DAG that triggers a scheduled recovery."""
    return f"schedule__{pipeline.name}__{schedule.name}"


def conf_of(pipeline: Pipeline, schedule: Schedule) -> dict[str, Any]:
    """Return the form's values with which a scheduled recovery is triggered: full names, without approval."""
    values, names = dict(schedule.values), _naming(schedule.recovery, "flow", "table")
    for key in names & values.keys():
        value = values[key]
        values[key] = (
            [_whole(pipeline, name) for name in value] if isinstance(value, list) else _whole(pipeline, value)
        )
    own = dict.fromkeys(_naming(schedule.recovery, "pipeline", required=True), pipeline.name)
    return {"reason": f"scheduled: {schedule.cron}", **own, **values, _APPROVAL: False}


def check_schedules(pipeline: Pipeline, manifest: Manifest) -> None:
    """Check that every schedule's values fit the form of its recovery.

    :param manifest: in which the pipeline is.
    :raises DeclarationError: one does not; all its misfits are listed.
    """
    from streamkeeper.recover.plans.kind import kind

    for schedule in pipeline.schedules:
        try:
            kind(schedule.recovery).parse(conf_of(pipeline, schedule), manifest, BY)
        except RequestError as error:
            raise DeclarationError(
                f"{schedule.location}: the schedule {schedule.name} of {schedule.recovery}: {error}"
            ) from error


def _naming(recovery: str, *sorts: str, required: bool = False) -> set[str]:
    """Return the form's fields that name declarations of some sorts, or those that must be given."""
    from streamkeeper.manifest.manifest import Manifest
    from streamkeeper.recover.plans.kind import kind

    form = kind(recovery).form(Manifest("", (), {}, {}))
    return {field.name for field in form if field.names in sorts and (field.required or not required)}


def _whole(pipeline: Pipeline, name: Any) -> Any:
    return f"{pipeline.name}.{name}" if isinstance(name, str) and "." not in name else name
