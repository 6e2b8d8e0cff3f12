"""Deferral of a flow's task: it hands a driver that works over to a trigger, and takes it up again from the
trigger's event.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.health.driver_log import ClusterLog, LogFile, Output, last_lines
from streamkeeper.settings import Settings
from streamkeeper.supervise.attached import Attached, of_parts
from streamkeeper.supervise.loop import Handover, Reason, WatchLoop
from streamkeeper_airflow.flow.drivers import Driver, Found
from streamkeeper_airflow.flow.gate import all_held

LAST_LINES = 30
"""Lines of a driver's output that are shown again after its end, where the triggerer showed them first: of a
try's triggers, Airflow keeps the log of the last one.
"""
_LOOP = WatchLoop()
"""The one loop of this process, which is the triggerer's: it watches for all its triggers."""


class DriverTrigger(BaseTrigger):
    """Watches a flow's driver in the triggerer, and fires once, when its task is needed: at the driver's end
    or silence, or where its declaration has changed.

    A triggerer that takes over from another one goes on with the same arguments: the silence of the driver
    is measured anew, and its lines are shown from where the last heartbeat says. Arguments are those of
    :class:`streamkeeper.supervise.loop.Handover`.
    """

    def __init__(self, epochs: Mapping[str, int], by: str, tries_changes: bool, reported: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handover = Handover(dict(epochs), by, tries_changes, reported)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and arguments, from which the triggerer creates it again."""
        handover = self.handover
        return "streamkeeper_airflow.flow.deferral.DriverTrigger", {
            "epochs": dict(handover.epochs),
            "by": handover.by,
            "tries_changes": handover.tries_changes,
            "reported": handover.reported,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, when the task is needed."""
        loop, woken = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        # Airflow knows by the context of this coroutine which task's log a line belongs to.
        context = contextvars.copy_context()

        def write(line: str) -> None:
            context.run(self.log.info, "%s", line)

        def wake(reason: Reason | Exception) -> None:
            with suppress(RuntimeError):  # the triggerer ends: the next one watches
                loop.call_soon_threadsafe(_settle, woken, reason)

        watched = _LOOP.add(Settings.from_environment(), self.handover, write, wake)
        try:
            _LOOP.start()
            reason = await woken
        finally:
            _LOOP.remove(watched)
        yield TriggerEvent({"reason": str(reason)})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Leave the driver alone, as the task does, when a person ends the task."""
        self.log.warning(
            "This task is being stopped. The driver of %s keeps running, and the next try attaches to it.",
            ", ".join(self.handover.epochs),
        )


def _settle(woken: asyncio.Future[Reason], reason: Reason | Exception) -> None:
    if woken.done():  # the trigger was cancelled
        return
    if isinstance(reason, Exception):
        woken.set_exception(reason)
    else:
        woken.set_result(reason)


def ready(settings: Settings, flows: Sequence[str], driver: Driver) -> Found | None:
    """Return a driver as the triggerer can watch it; None while its task must: until it has the lease of each
    of its flows that may run, and has beaten.
    """
    working = driver.begun()
    if working is None:
        return None
    covers_all = all(flow in working.epochs or all_held(settings, [flow]) for flow in flows)
    return working if covers_all else None


def hand_over(task: BaseOperator, flows: Sequence[str], trigger: DriverTrigger) -> NoReturn:
    """Defer a task until its trigger needs it; it goes on in its method ``woken``."""
    task.log.info(
        "The driver of %s works. The triggerer watches it; this task takes no slot.", ", ".join(flows)
    )
    epochs, reported = trigger.handover.epochs, trigger.handover.reported
    task.defer(
        trigger=trigger,
        method_name="woken",
        kwargs={"flows": list(flows), "epochs": dict(epochs), "reported": reported},
    )


def take_up(
    settings: Settings, homes: Sequence[FlowHome], epochs: Mapping[str, int], *, shared: bool
) -> Found | None:
    """Return the driver that has some leases, alive or not; None if there are none, or newer ones: it was
    judged before a scheduler that started anew sent its task here again.
    """
    ran = [home for home in homes if home.full_name in epochs]
    if any(max(home.epochs(), default=0) > epochs[home.full_name] for home in ran):
        return None
    pairs = [(home, leases.read(home, epochs[home.full_name])) for home in ran]
    parts = [Attached(home, lease, settings.lease_term) for home, lease in pairs if lease is not None]
    return of_parts(parts, settings.lease_term, shared=shared) if parts else None


def ends_of_outputs(driver: Found) -> Iterator[tuple[str, str]]:
    """Yield where each output of a driver is, and its last lines."""
    outputs: list[Output] = [LogFile(driver.log)] if driver.log else []
    if driver.cluster is not None:
        outputs.append(ClusterLog(driver.cluster))
    for output in outputs:
        yield output.location, "\n".join(last_lines(output, LAST_LINES))
