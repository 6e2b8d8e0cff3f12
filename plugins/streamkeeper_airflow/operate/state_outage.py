"""Alerts of a state folder that fails: a full disk, an object store that does not answer.

No alert can be recorded there meanwhile. So the monitor calls the notifiers of each pipeline itself, and
keeps in a variable of Airflow, whose database is another store, which pipelines were told.
"""

from __future__ import annotations

import logging

from airflow.sdk import Variable

from streamkeeper.declare.model import Pipeline
from streamkeeper.errors import StorageError
from streamkeeper.manifest.manifest import Manifest, declared
from streamkeeper.settings import Settings, dag_id
from streamkeeper.support.times import now
from streamkeeper.watch.alerts import Alert, AlertKind
from streamkeeper_airflow.operate import notify

TOLD = "streamkeeper_state_outage"
"""Variable of Airflow: a JSON object with the time of the alert by pipeline, until it is taken back."""

log = logging.getLogger(__name__)


def tell(settings: Settings, error: StorageError) -> None:
    """Alert each pipeline once that the state folder fails; again by the next look where no notifier worked.

    :raises StreamkeeperError: the pipeline files cannot be imported.
    """
    alerted = _alerted()
    text = (
        f"No flow can use the state folder: {error}\nDrivers end, and are started again until it works. No"
        " other alert can be sent meanwhile."
    )
    # The manifest is in the state folder.
    for pipeline in declared(settings).pipelines:
        at = now()
        if pipeline.name not in alerted and _send(pipeline, AlertKind.STATE_FAILS, text, at, at):
            alerted[pipeline.name] = at
            Variable.set(TOLD, alerted, serialize_json=True)


def take_back(manifest: Manifest) -> None:
    """Tell the pipelines that were alerted that the state folder works; again by the next look where no
    notifier worked.
    """
    alerted = _alerted()
    if not alerted:
        return
    pipelines = {pipeline.name: pipeline for pipeline in manifest.pipelines}
    remaining = {}
    for name, at in alerted.items():
        text = f"The state folder works again. The alert of {at} is resolved."
        occasion = f"{AlertKind.STATE_FAILS.value} {at}"
        if name in pipelines and not _send(pipelines[name], AlertKind.RELIEVED, text, occasion, now()):
            remaining[name] = at
    if remaining:
        Variable.set(TOLD, remaining, serialize_json=True)
    else:
        Variable.delete(TOLD)


def _alerted() -> dict[str, str]:
    alerted: dict[str, str] = Variable.get(TOLD, default={}, deserialize_json=True)
    return alerted


def _send(pipeline: Pipeline, kind: AlertKind, text: str, occasion: str, at: str) -> bool:
    """Call a pipeline's notifiers; return whether one worked, or none is declared."""
    link = notify.page(dag_id("monitor_flows"))
    alert = Alert(kind, pipeline.name, notify.masked(text), occasion, at, link)
    log.warning("Alert: %s\n%s", alert.subject, alert.text)
    failures = [notify.send(notifier, alert) for notifier in pipeline.notifiers]
    for failure in filter(None, failures):
        log.error("A notifier could not be told that %s: %s", alert.subject, failure)
    return not failures or None in failures
