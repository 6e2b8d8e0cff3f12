"""The gate of a flow's DAG: it waits while a hold exists, without a worker slot and without a timeout.
And the holds that keep a flow from starting now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from streamkeeper.flows import holds
from streamkeeper.flows.files import open_home
from streamkeeper.flows.holds import PARK, Hold
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.settings import Settings
from streamkeeper.supervise.changes import PipelineFiles
from streamkeeper.trial import change
from streamkeeper_airflow.flow.retries import FIRST_DELAY, UNLIMITED

_FILES: dict[str, PipelineFiles] = {}
"""The pipeline files for all gates of this process, which is the triggerer's: after a bad deploy hundreds of
parked flows ask at once what is declared now.
"""


class HoldTrigger(BaseTrigger):
    """Waits in the triggerer until ``pipeline.flow``, or one of the ``others``, may start.

    The holds are named in the task's log. Holds are files in a folder or an object store that any host may
    write, so there is nothing to subscribe to: they are read every ``look_interval`` of the settings, as
    by the drivers.
    """

    def __init__(self, flow: str, others: Sequence[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow, self.others = flow, list(others)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and arguments, from which the triggerer creates it again."""
        return "streamkeeper_airflow.flow.gate.HoldTrigger", {"flow": self.flow, "others": self.others}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, when the flow may start."""
        settings = Settings.from_environment()
        flows, reported = [self.flow, *self.others], ""
        files = _FILES.setdefault(str(settings.pipelines), PipelineFiles(settings))
        while description := await asyncio.to_thread(all_held, settings, flows, files.manifest):
            if description != reported:
                reported = description
                self.log.info("Waiting: %s is held.\n%s", ", ".join(flows), reported)
            await asyncio.sleep(settings.look_interval)
        yield TriggerEvent({"flow": ", ".join(flows)})  # type: ignore[no-untyped-call]


class HoldGate(BaseOperator):
    """Lets a run of a flow's DAG pass when there is no hold; until then the task is deferred without limit.

    :param flow: ``pipeline.flow``; or
    :param flows: all flows of a pipeline that share a driver: it passes once one of them may start.
    """

    def __init__(self, *, flow: str | None = None, flows: Sequence[str] = (), **kwargs: Any) -> None:
        # A gate fails only if Airflow or the storage does: that must not fail the flow's run.
        super().__init__(**{"retries": UNLIMITED, "retry_delay": FIRST_DELAY, **kwargs})
        self.flows = [flow] if flow else list(flows)

    def execute(self, context: Context) -> None:
        """Pass at once, or defer to :class:`HoldTrigger`."""
        description, named = all_held(Settings.from_environment(), self.flows), ", ".join(self.flows)
        if description:
            self.log.info(
                "%s is held. This run waits, deferred, until the hold is released.\n%s", named, description
            )
            self.defer(trigger=HoldTrigger(self.flows[0], self.flows[1:]), method_name="freed")
        self.log.info("%s is not held.", named if len(self.flows) == 1 else f"at least one of {named}")

    def freed(self, context: Context, event: dict[str, Any]) -> None:
        """Pass after the wait."""
        self.log.info("Released: %s.", event["flow"])


def blocking(settings: Settings, flow: str, manifest: Callable[[], Manifest] | None = None) -> list[Hold]:
    """Return the holds that forbid a start of ``pipeline.flow`` now; none if it may start.

    A park belongs to the declaration that failed: a driver with another fingerprint lifts the park for one
    try, so it does not count here. Only for that question the manifest is read.

    :param manifest: reads the manifest; anew by default.
    :raises StreamkeeperError: the state folder or the manifest cannot be read.
    """
    home = open_home(settings, flow)
    flow_holds = holds.all_of(home)
    if [hold.owner for hold in flow_holds] != [PARK]:
        return flow_holds
    present = read_manifest(settings) if manifest is None else manifest()
    runs = change.to_run(home, present.find(flow))
    return [] if holds.lifted_by(flow_holds[0], runs.present) else flow_holds


def all_held(settings: Settings, flows: Sequence[str], manifest: Callable[[], Manifest] | None = None) -> str:
    """Return the owners and reasons of the holds of some flows; an empty text once one of them may start.

    :param manifest: as of :func:`blocking`.
    :raises StreamkeeperError: the state folder or the manifest cannot be read.
    """
    descriptions = []
    for flow in flows:
        flow_holds = blocking(settings, flow, manifest)
        if not flow_holds:
            return ""
        descriptions.append(describe(flow_holds) if len(flows) == 1 else f"{flow}: {describe(flow_holds)}")
    return "\n".join(descriptions)


def describe(flow_holds: list[Hold]) -> str:
    """Return the owners and reasons of holds, one line for each."""
    return "\n".join(f"{hold.owner}, by {hold.by}, since {hold.at}: {hold.reason}" for hold in flow_holds)
