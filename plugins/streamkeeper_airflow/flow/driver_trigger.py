"""The trigger in which a flow's task waits while its driver works."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from streamkeeper.settings import Settings
from streamkeeper.supervise.loop import Handover, Reason, WatchLoop

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
        self._handover = Handover(dict(epochs), by, tries_changes, reported)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and arguments, from which the triggerer creates it again."""
        handover = self._handover
        return "streamkeeper_airflow.flow.driver_trigger.DriverTrigger", {
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

        watched = _LOOP.add(Settings.from_environment(), self._handover, write, wake)
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
            ", ".join(self._handover.epochs),
        )


def _settle(woken: asyncio.Future[Reason], reason: Reason | Exception) -> None:
    if woken.done():  # the trigger was cancelled
        return
    if isinstance(reason, Exception):
        woken.set_exception(reason)
    else:
        woken.set_result(reason)
