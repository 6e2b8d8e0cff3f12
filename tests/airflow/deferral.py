"""A task that may be deferred, carried out as Airflow does: in the worker, and in the triggerer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow.sdk import Context
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import BaseTrigger
from streamkeeper_airflow.flow.supervise import FlowOperator


def carry_out(
    make: Callable[[], FlowOperator],
    context: Context,
    deferred_to: list[str],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Carry out a task to its end, whose exception is raised.

    :param make: makes the operator anew for each process that the task gets.
    :param deferred_to: gets the class of each trigger that the task waits for.
    :param meanwhile: called whenever it is deferred.
    """
    go_on: Callable[[], Any] = partial(make().execute, context)
    while True:
        try:
            go_on()
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            deferred_to.append(path.rpartition(".")[2])
            meanwhile()
            event = asyncio.run(_first_event(import_string(path)(**_stored(arguments))))
            kwargs = {**_stored(deferred.kwargs), "event": event}
            go_on = partial(make().resume_execution, deferred.method_name, kwargs, context)
        else:
            return


def _stored(arguments: dict[str, Any] | None) -> dict[str, Any]:
    """Return what is left of arguments in a database."""
    return dict(json.loads(json.dumps(arguments or {})))


async def _first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    return None
