"""Alerts through the Airflow notifiers that a pipeline declares.

A notifier is called as Airflow does it, but for one thing: ``BaseNotifier.__call__`` logs what ``notify``
raises and returns as if the alert had been delivered (source: its code). So its three steps are called one by
one here, so that a failure is seen, and the monitor repeats the alert later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

from airflow.sdk import DAG, BaseNotifier, Context, conf
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout

from streamkeeper.declare.model import Notifier, Pipeline
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings
from streamkeeper.support.times import now
from streamkeeper.watch import alerts, progress
from streamkeeper.watch.alerts import Alert, AlertKind, Pending

NOTIFIER_SECONDS = 60
"""Seconds that a notifier may take: requests of the http provider have no limit of their own."""

log = logging.getLogger(__name__)


class NotifierUnusable(StreamkeeperError):
    """A declared notifier cannot be created: its class, its arguments or its templates are wrong."""


def record_alert(
    settings: Settings, kind: AlertKind, flow: str, text: str, occasion: str, *, link: str | None = None
) -> bool:
    """Record an alert of a flow, which the monitor sends in its next look; return whether it is a new one.

    It never raises for a storage that fails, so that the calling task continues; the log says what failed.

    :param flow: ``pipeline.flow``.
    :param occasion: identifies what happened, so that it is reported once: a park's time, a recovery's id, a
        lease epoch.
    :param link: where it is shown; the flow's page by default.
    """
    try:
        home = open_home(settings, flow)
        position = _position(home)
        alert = Alert(kind, flow, masked(text), occasion, now(), link, position.generation, position.batch)
        if not alerts.record(home, alert):
            return False
    except (StreamkeeperError, OSError) as error:
        log.exception("The alert of %s, %s, could not be recorded: %s", flow, kind.value, error)
        return False
    log.warning("Alert: %s\n%s", alert.subject, alert.text)
    return True


def _position(home: FlowHome) -> progress.Position:
    """Return where a flow stands; nowhere if that cannot be read, which its alert does not wait for."""
    try:
        return progress.position(Observed(home))
    except StreamkeeperError as error:
        log.warning("Where %s stands cannot be read: %s", home.full_name, error)
        return progress.Position()


def deliver(home: FlowHome, waiting: Pending, notifiers: Sequence[Notifier], at: float) -> bool:
    """Deliver a recorded alert to the notifiers that did not get it; return whether any got it now.

    Return True as well if none is declared.

    :param at: the storage's time, in seconds since 1970.
    :raises StorageError: the state folder cannot be read or written.
    """
    attempt = alerts.begin_attempt(home, waiting, at)
    if attempt is None:
        return False
    alert, number, is_last = attempt.alert, attempt.attempts, attempt.attempts >= alerts.MOST_ATTEMPTS
    remaining = [notifier for notifier in notifiers if not attempt.was_delivered_to(notifier)]
    failed_count = 0
    for notifier in remaining:
        failure = send(notifier, alert)
        if failure is None:
            attempt = alerts.note_delivered(home, attempt, notifier)
            log.info("%s was notified: %s.", notifier.classpath, alert.subject)
        else:
            failed_count += 1
            log.error(
                "%s could not be told that %s, attempt %d (%s): %s",
                notifier.classpath,
                alert.subject,
                number,
                "no further attempt" if is_last else "the monitor tries again",
                failure,
            )
    if not failed_count or is_last:
        alerts.settle(home, alert)
    return not notifiers or failed_count < len(remaining)


def send(notifier: Notifier, alert: Alert) -> str | None:
    """Call a notifier; return None, or the error that it raised, whatever it was.

    A notifier must not break the task that reports on a flow.
    """
    try:
        with timeout(NOTIFIER_SECONDS, f"it took more than {NOTIFIER_SECONDS} s"):  # type: ignore[no-untyped-call]
            made, context = prepare(notifier, alert)
            if type(made).notify is BaseNotifier.notify:
                asyncio.run(made.async_notify(context))
            else:
                made.notify(context)
    # What a notifier raises is returned and logged.
    except (Exception, AirflowTaskTimeout) as error:  # noqa: BLE001
        return str(redact(f"{type(error).__name__}: {error}"))
    return None


def prepare(notifier: Notifier, alert: Alert) -> tuple[BaseNotifier, Context]:
    """Create a notifier and render its arguments, which may use ``alert``.

    See :meth:`streamkeeper.watch.alerts.Alert.for_templates`.

    :raises NotifierUnusable: there is no such class, it is no notifier, it takes other arguments, or a
        template is wrong.
    """
    try:
        kind = import_string(notifier.classpath)
    except ImportError as error:
        raise NotifierUnusable(
            f"there is no notifier {notifier.classpath!r}: {error}. Correct the classpath, or install the"
            " provider that has it."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
        raise NotifierUnusable(
            f"{notifier.classpath} is no notifier: it must be a class that extends airflow.sdk.BaseNotifier."
        )
    context = cast("Context", {"alert": alert.for_templates()})
    try:
        made = kind(**_thawed(notifier.arguments))
        # A DAG's templates are strict; a notifier's own would render a misspelt field as an empty text.
        environment = made.get_template_env(DAG("alert"))
        made._update_context(context)
        made.render_template_fields(context, environment)
        _fill(made, alert)
    except Exception as error:
        raise NotifierUnusable(
            f"{notifier.classpath} cannot be used with the arguments"
            f" {', '.join(notifier.arguments) or '(none)'}: {type(error).__name__}: {error}. Correct the"
            " arguments; templates may use alert.subject, text, html, kind, flow, link, at, incident and"
            " action."
        ) from error
    return made, context


def unusable(pipeline: Pipeline) -> list[str]:
    """Create each notifier of a pipeline with a sample alert, and return which fail; no alert is sent."""
    sample = Alert(AlertKind.SETTINGS, f"{pipeline.name}.sample", "a sample", "sample", now())
    problems = []
    for notifier in pipeline.notifiers:
        try:
            prepare(notifier, sample)
        except NotifierUnusable as error:
            problems.append(str(redact(f"Pipeline {pipeline.name} ({pipeline.file}): {error}")))
    return problems


def masked(text: str) -> str:
    """Return a text without secrets: those that Airflow knows, and what looks like one."""
    return redact_text(str(redact(text)))


def page(dag_id: str, run_id: str | None = None) -> str:
    """Return the URL of the page of a DAG, or of one run of it."""
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/dags/{quote(dag_id)}" + (f"/runs/{quote(run_id)}" if run_id else "")


def stream_page(flow: Flow) -> str:
    """Return the URL of the tab *Stream* of a flow's DAG, which may have several flows."""
    return f"{page(flow.dag_id)}/plugin/stream?flow={quote(flow.full_name)}"


def _fill(made: BaseNotifier, alert: Alert) -> None:
    """Set subject and text of a mail if none are declared: Airflow's defaults describe a failed task."""
    words = alert.for_templates()
    for name, text in {"subject": words.subject, "html_content": words.html}.items():
        if name in made.template_fields and getattr(made, name) is None:
            setattr(made, name, text)


def _thawed(value: Any) -> Any:
    """Return JSON values that a notifier may change: Airflow renders templates in place."""
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, (list, tuple)) else value
