"""The monitor: a short task that checks every flow, and alerts if one makes no progress or has recovered.

It also keeps each flow's numbers (streamkeeper.history), folds events, and repeats alerts that a notifier
could not deliver. It fails, naming the pipeline, while a declared
notifier cannot be used or a flow cannot be read, so that such a fault is visible.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.drivers import alerts, progress
from streamkeeper.drivers.alerts import AlertKind
from streamkeeper.drivers.progress import Look, State
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.health import flows as health
from streamkeeper.health import past
from streamkeeper.history import events
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.times import describe_age
from streamkeeper_airflow.operate import notify
from streamkeeper_airflow.operate.notify import page


class MonitorFlows(BaseOperator):
    """Checks all flows once without a JVM; one line for each flow in its log, the same as JSON in XCom."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Return one object for each flow: see :class:`streamkeeper.drivers.progress.Look`.

        :raises AirflowFailException: a notifier cannot be used, or a flow could not be read; all others were.
        """
        settings = Settings.from_environment()
        manifest, storage = read_manifest(settings), open_storage(settings.state)
        faults = [fault for pipeline in manifest.pipelines for fault in notify.unusable(pipeline)]
        now, found = alerts.storage_now(storage), []
        for flow in manifest.flows():
            try:
                look = self._look(settings, storage, flow, now)
            except StreamkeeperError as error:
                faults.append(f"{flow.full_name} could not be inspected: {error}")
            except Exception as error:  # noqa: BLE001 - whatever is wrong in one flow, the others must still be looked at
                self.log.error(
                    "%s could not be inspected:\n%s", flow.full_name, redact_text(traceback.format_exc())
                )
                faults.append(
                    f"{flow.full_name} could not be inspected: {type(error).__name__}:"
                    f" {redact_text(str(error))}"
                )
            else:
                self.log.info("%s", look)
                found.append(look.to_json())
        faults += self._folded(storage, [pipeline.name for pipeline in manifest.pipelines])
        if faults:
            context["ti"].xcom_push(key="return_value", value=found)
            raise AirflowFailException("\n".join(faults))
        return found

    def _look(self, settings: Settings, storage: Storage, flow: Flow, now: float) -> Look:
        home = FlowHome(storage, flow.pipeline.name, flow.name)
        look = progress.look(home, opened_flow(flow, settings, opened_if_possible), now)
        if look.state is State.NO_PROGRESS:
            notify.alert(
                settings,
                AlertKind.NO_PROGRESS,
                flow.full_name,
                _silence(look),
                str(look.position),
                link=page(flow.dag_id),
            )
        self._tell_recovered(settings, home, flow, look)
        for alert in alerts.pending(home):
            notify.deliver(home, alert, flow.pipeline.notifiers, lambda: now)
        # Last: an alert does not wait for a history that cannot be written.
        past.keep(home, health.look(home, flow), now)
        return look

    def _folded(self, storage: Storage, pipelines: Sequence[str]) -> Iterator[str]:
        """Fold the events of pipelines, and yield what went wrong."""
        for pipeline in pipelines:
            try:
                events.fold(storage, pipeline)
            except StreamkeeperError as error:
                yield f"The events of {pipeline} could not be folded: {error}"

    def _tell_recovered(self, settings: Settings, home: FlowHome, flow: Flow, look: Look) -> None:
        over = [trouble for trouble in alerts.open_troubles(home) if progress.is_over(trouble, look.position)]
        for trouble in over:
            text = (
                f"{flow.full_name} commits again: {look.position}. The alert of {trouble.at}"
                f" ({trouble.kind.value}) is resolved."
            )
            occasion = f"{trouble.kind.value} {trouble.occasion}"
            notify.alert(
                settings, AlertKind.RECOVERED, flow.full_name, text, occasion, link=page(flow.dag_id)
            )
            alerts.close_trouble(home, trouble)


def _silence(look: Look) -> str:
    silent = describe_age(look.silent) if look.silent is not None else "?"
    age = "It never committed" if look.age is None else f"Its last commit was {describe_age(look.age)} ago"
    return (
        f"{look.flow} has committed nothing for {silent}, although input is waiting: {look.waits}. {age}"
        f" ({look.position}); {look.driver}. See the log of its DAG, and `streamkeeper flows`. If such a"
        " wait is normal, declare a longer no_progress_after in dp.configure_pipeline."
    )
