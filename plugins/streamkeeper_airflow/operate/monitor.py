"""The monitor: a short task that checks every flow, and alerts if one makes no progress or has recovered.

It measures how far each flow is behind, judges flows that run (streamkeeper.health.troubles), keeps their
numbers (streamkeeper.history), folds events, and pushes metrics over OTLP where that is set up. It alone
sends alerts: those that drivers and tasks recorded, its own, and again those that a notifier did not take. It
fails, naming the pipeline, while a declared notifier cannot be used or a flow cannot be read, so that such a
fault is visible.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.errors import StorageError, StreamkeeperError
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.health import flows as health
from streamkeeper.health import metrics, otlp, past, troubles
from streamkeeper.health.flows import FlowHealth
from streamkeeper.history import events
from streamkeeper.history.rows import minutes
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings, dag_id
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.times import describe_age
from streamkeeper.watch import alerts, behind, progress
from streamkeeper.watch.alerts import AlertKind
from streamkeeper.watch.batch_numbers import machinery
from streamkeeper.watch.progress import Look, State
from streamkeeper_airflow.operate import notify, state_outage
from streamkeeper_airflow.operate.park_message import describe_park

SLOW_STORE = 60.0
"""Seconds after which a failed look at the state folder is told of in the first try."""


class MonitorFlows(BaseOperator):
    """Checks all flows once without a JVM; one line for each flow in its log, the same as JSON in XCom."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Return one object for each flow: see :class:`streamkeeper.watch.progress.Look`.

        :raises AirflowFailException: a notifier cannot be used, or a flow could not be read; all others were.
        :raises StorageError: the state folder cannot be read or written.
        """
        settings, began = Settings.from_environment(), time.monotonic()
        try:
            storage = open_storage(settings.state)
            now = storage_now(storage)
        except StorageError as error:
            # The next try may find it well. Of a store that hangs, a run may have no time for the last one.
            last = context["ti"].try_number > context["ti"].max_tries
            if last or time.monotonic() - began > SLOW_STORE:
                state_outage.tell(settings, error)
            raise
        manifest, looks = read_manifest(settings), []
        state_outage.take_back(manifest)
        faults = [fault for pipeline in manifest.pipelines for fault in notify.unusable(pipeline)]
        flows = list(manifest.flows())
        self._measure(settings, storage, flows, now)
        for flow in flows:
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
                looks.append(look.to_json())
        faults += self._folded(storage, [pipeline.name for pipeline in manifest.pipelines])
        progress.note_look(storage, now)
        self._push_metrics(storage, manifest, now)
        if faults:
            context["ti"].xcom_push(key="return_value", value=looks)
            raise AirflowFailException("\n".join(faults))
        return looks

    def _push_metrics(self, storage: Storage, manifest: Manifest, now: float) -> None:
        """Push the metrics of all flows, if OpenTelemetry's variables ask for it; a failure is only said."""
        try:
            if otlp.is_wanted() and otlp.is_due(now):
                observation = metrics.see(storage, manifest)
                measurements = metrics.measure(observation)
                otlp.push(measurements, observation.at)
                self.log.info("%s metrics were pushed over OTLP", len(measurements))
        except Exception as error:  # noqa: BLE001 - whatever a collector does, flows are looked at
            self.log.warning("%s", redact_text(str(error) or repr(error)))

    def _measure(self, settings: Settings, storage: Storage, flows: list[Flow], now: float) -> None:
        """Measure how far flows are behind; what cannot be measured or kept is only said."""
        opened = partial(opened_flow, settings=settings, how=opened_if_possible)
        try:
            faults = behind.measure_all(storage, flows, opened, now)
        except StreamkeeperError as error:
            faults = [str(error)]
        for fault in faults:
            self.log.warning("How far flows are behind cannot be kept: %s", fault)

    def _look(self, settings: Settings, storage: Storage, flow: Flow, now: float) -> Look:
        home = FlowHome(storage, flow.pipeline.name, flow.name)
        try:
            look, row = self._judge(settings, home, flow, now)
        finally:  # a flow that cannot be looked at has alerts all the same
            self._send(home, flow, now)
        # Last: an alert does not wait for a history that cannot be written.
        past.keep(home, row, now)
        return look

    def _judge(self, settings: Settings, home: FlowHome, flow: Flow, now: float) -> tuple[Look, FlowHealth]:
        """Look at a flow, and record what is to be told of it."""
        self._tell_parked(settings, home, flow)
        for owner in holds.end_overdue(home, now):
            self.log.info("%s: the hold of %s is over.", flow.full_name, owner)
        look = progress.look(home, opened_flow(flow, settings, opened_if_possible), now)
        if look.state is State.NO_PROGRESS:
            silent = str(look.position)
            notify.record_alert(settings, AlertKind.NO_PROGRESS, flow.full_name, _silence(look), silent)
        self._tell_recovered(settings, home, flow, look)
        row = health.look(home, flow)
        self._tell_troubles(settings, home, flow, row, now)
        return look, row

    def _send(self, home: FlowHome, flow: Flow, now: float) -> None:
        """Send the recorded alerts of a flow that some notifier has not got."""
        for waiting in alerts.pending(home):
            link = waiting.alert.link or notify.stream_page(flow)
            linked = replace(waiting, alert=replace(waiting.alert, link=link))
            notify.deliver(home, linked, flow.pipeline.notifiers, now)

    def _tell_parked(self, settings: Settings, home: FlowHome, flow: Flow) -> None:
        """Record the alert of a park, with the recovery that fits and its form."""
        park = holds.parked(home)
        if park is not None:
            text = describe_park(flow.full_name, park, flow.declaration.once)
            recovery = park.details.get("recovery")
            link = notify.page(dag_id(recovery) if recovery else flow.dag_id)
            notify.record_alert(settings, AlertKind.PARKED, flow.full_name, text, park.at, link=link)

    def _tell_troubles(
        self, settings: Settings, home: FlowHome, flow: Flow, row: FlowHealth, now: float
    ) -> None:
        """Tell of each trouble once, and once that it is over; a flow without a driver has none."""
        if row.state not in troubles.JUDGED:
            return
        open_ = {alert.kind: alert for alert in alerts.open_troubles(home)}
        rows, ran_on = minutes(home, now - troubles.GROWTH), machinery(home)
        for trouble in troubles.judge(row, rows, flow.pipeline, ran_on, now):
            open_alert = open_.get(trouble.kind)
            if trouble.is_open == (open_alert is not None):
                continue
            if open_alert is None:
                kind, occasion, text = trouble.kind, f"since {now:.0f}", trouble.text
            else:
                kind, occasion = AlertKind.RELIEVED, f"{open_alert.kind.value} {open_alert.occasion}"
                text = f"{trouble.text} The alert of {open_alert.at} ({open_alert.kind.value}) is resolved."
            notify.record_alert(settings, kind, flow.full_name, text, occasion)
            if open_alert is not None:
                alerts.close_trouble(home, open_alert)

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
            notify.record_alert(settings, AlertKind.RECOVERED, flow.full_name, text, occasion)
            alerts.close_trouble(home, trouble)


def _silence(look: Look) -> str:
    silent = describe_age(look.silent) if look.silent is not None else "?"
    age = "It never committed" if look.age is None else f"Its last commit was {describe_age(look.age)} ago"
    return (
        f"{look.flow} has committed nothing for {silent}, although input is waiting: {look.waits}. {age}"
        f" ({look.position}); {look.driver}. {troubles.advice(AlertKind.NO_PROGRESS)}"
    )
