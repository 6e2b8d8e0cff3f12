"""Telling people by a pipeline's notifiers: real ones of Airflow's providers, real local servers."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.log import mask_secret
from markdown_it import MarkdownIt
from streamkeeper_airflow.operate import notify
from streamkeeper_airflow.operate.notify import deliver, unusable
from streamkeeper_airflow.operate.run_note import CONNECTION, set_run_note

from streamkeeper.declare.model import Notifier
from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.conftest import alert, configure, notifiers_of
from tests.airflow.listeners import Inbox, mail_server

FLOW = "first.first_flow"
SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
HTTP = "airflow.providers.http.notifications.http.HttpNotifier"
MAIL = {
    "to": "ops@example.org",
    "from_email": "streamkeeper@example.org",
    "subject": "[{{ alert.kind }}] {{ alert.subject }}",
    "html_content": "{{ alert.html }}",
}
HOOK = {
    "http_conn_id": "chat",
    "endpoint": "hook",
    "json": {"text": "{{ alert.subject }}: {{ alert.text }}", "link": "{{ alert.link }}"},
}


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    with mail_server() as inbox:
        plain = {"disable_ssl": True, "disable_tls": True, "timeout": 10, "retry_limit": 1}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": inbox.port, "extra": plain}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
        yield inbox


def declare(project: Path, *notifiers: tuple[str, dict[str, Any]]) -> Settings:
    """Let the pipeline ``first`` declare these notifiers."""
    listed = ", ".join(f"dp.notifier({classpath!r}, **{arguments!r})" for classpath, arguments in notifiers)
    return configure(project, f"notifiers=[{listed}]")


def test_a_mail_and_a_webhook_are_sent_once_for_an_occasion(
    project: Path, mail: Inbox, chat: Inbox, home: FlowHome
) -> None:
    settings = declare(project, (SMTP, MAIL), (HTTP, HOOK))
    assert alert(
        settings, AlertKind.PARKED, FLOW, "a & b broke", "park 1", link="http://airflow/dags/reset_checkpoint"
    )
    assert not alert(settings, AlertKind.PARKED, FLOW, "a & b broke", "park 1")
    assert alert(settings, AlertKind.PARKED, FLOW, "it broke again", "park 2")
    assert [message["subject"] for message in mail.mails] == [f"[parked] {FLOW} is parked"] * 2
    body = mail.mails[0].get_body()
    assert body is not None
    assert body.get_content().strip() == (
        '<pre>a &amp; b broke</pre><p><a href="http://airflow/dags/reset_checkpoint">http://airflow/dags/reset_checkpoint</a></p>'
    )
    assert chat.bodies[0] == {
        "text": f"{FLOW} is parked: a & b broke",
        "link": "http://airflow/dags/reset_checkpoint",
    }
    assert len(chat.bodies) == 2
    assert alerts.pending(home) == []


@pytest.mark.parametrize("says", [b"<html>", b"{}", b"[]"], ids=["no JSON", "no token", "no object"])
def test_what_answers_and_is_no_airflow_sets_no_note_and_the_task_goes_on(
    says: bytes, chat: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", f"http://ada:secret@127.0.0.1:{chat.port}")
    chat.says = says
    set_run_note("flow__first__first_flow", "manual__1", "It is parked.")
    assert "The note of the run could not be set" in caplog.text


def test_a_note_is_text_whatever_people_typed(chat: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", f"http://ada:secret@127.0.0.1:{chat.port}")
    chat.says = b'{"access_token": "t"}'
    typed = "a_b [click](https://evil.example) ![x](https://evil.example/x.png) <b>\u202e\n# Yes\n==\n---"
    set_run_note("flow__first__first_flow", "manual__1", f"Refused: {typed}\n\nRun `streamkeeper flows`.")
    html = MarkdownIt().render(chat.bodies[-1]["note"])
    assert not [mark for mark in ("<a", "<img", "<b>", "<h1", "<h2", "<hr", "\u202e") if mark in html], html
    assert "a_b [click](https://evil.example)" in html, "it is there to be read"
    assert "<code>streamkeeper flows</code>" in html


def test_two_tasks_at_once_tell_once(project: Path, chat: Inbox) -> None:
    settings = declare(project, (HTTP, HOOK))
    read_manifest(settings)
    with ThreadPoolExecutor(6) as pool:
        told = list(
            pool.map(lambda _: alert(settings, AlertKind.CRASH_LOOP, FLOW, "again", "epoch 7"), range(6))
        )
    assert (sum(told), len(chat.bodies)) == (1, 1)


def test_a_notifier_that_fails_is_counted_and_told_later_and_the_others_are_not_told_again(
    project: Path, mail: Inbox, chat: Inbox, home: FlowHome, caplog: pytest.LogCaptureFixture
) -> None:
    settings = declare(project, (SMTP, MAIL), (HTTP, HOOK))
    chat.refuse = True
    assert alert(settings, AlertKind.PARKED, FLOW, "it broke", "park 1")
    assert (
        "HttpNotifier could not be told that first.first_flow is parked, attempt 1 (the monitor tries again):"
        in caplog.text
    )
    assert "503" in caplog.text
    [waiting] = alerts.pending(home)
    notifiers = notifiers_of(settings)
    later = storage_now(home.storage) + alerts.PAUSE + 1
    assert not deliver(home, waiting, notifiers, later - 60), "the pause after a failure is not over"
    assert not deliver(home, waiting, notifiers, later), "refused again"
    chat.refuse = False
    [waiting] = alerts.pending(home)
    assert waiting.attempts == 2
    assert deliver(home, waiting, notifiers, later + alerts.PAUSE)
    assert (len(mail.mails), len(chat.bodies), alerts.pending(home)) == (1, 1, [])


def test_an_alert_that_no_notifier_gets_is_given_up_at_the_last_attempt(
    project: Path, mail: Inbox, home: FlowHome, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    settings = declare(project, (SMTP, MAIL))
    mail.refuse = True
    monkeypatch.setattr(alerts, "MOST_ATTEMPTS", 2)
    assert not alert(settings, AlertKind.PARKED, FLOW, "it broke", "park 1")
    [waiting] = alerts.pending(home)
    later = storage_now(home.storage) + alerts.PAUSE + 1
    assert not deliver(home, waiting, notifiers_of(settings), later)
    assert "attempt 2 (no further attempt)" in caplog.text
    assert alerts.pending(home) == []


def test_a_pipeline_without_notifiers_tells_its_log(
    project: Path, home: FlowHome, caplog: pytest.LogCaptureFixture
) -> None:
    assert alert(Settings.from_environment(), AlertKind.PARKED, FLOW, "it broke", "park 1")
    assert not alert(Settings.from_environment(), AlertKind.PARKED, FLOW, "it broke", "park 1")
    assert caplog.text.count("Alert: first.first_flow is parked") == 1
    assert alerts.pending(home) == []


def test_secrets_that_airflow_knows_are_in_no_alert(project: Path, chat: Inbox, home: FlowHome) -> None:
    mask_secret("t0k3n-4lerts")
    assert alert(
        declare(project, (HTTP, HOOK)), AlertKind.PARKED, FLOW, "login with t0k3n-4lerts failed", "park 1"
    )
    assert chat.bodies[0]["text"].endswith("login with *** failed")
    for file in (project / "state" / "first").rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes()


def test_a_storage_that_cannot_be_written_does_not_break_the_task(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = declare(project)
    read_manifest(settings)
    (project / "state" / "first").write_text("in the way")
    with caplog.at_level(logging.ERROR):
        assert not alert(settings, AlertKind.PARKED, FLOW, "it broke", "park 1")
    assert "The alert of first.first_flow, parked, could not be recorded" in caplog.text


class OnlyAsync(BaseNotifier):
    """A notifier that has only the asynchronous way."""

    heard: list[str] = []  # noqa: RUF012
    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def async_notify(self, context: Any) -> None:
        self.heard.append(self.text)


def test_a_notifier_that_is_only_asynchronous_is_awaited(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "import_string", lambda path: OnlyAsync)
    assert alert(
        declare(project, ("x.OnlyAsync", {"text": "{{ alert.flow }}"})), AlertKind.SETTINGS, FLOW, "…", "1"
    )
    assert OnlyAsync.heard == [FLOW]


def test_a_notifier_that_hangs_is_left_after_its_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(notify, "NOTIFIER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = {"conn_type": "http", "host": "127.0.0.1", "port": silent.getsockname()[1]}
        monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
        assert not alert(declare(project, (HTTP, HOOK)), AlertKind.PARKED, FLOW, "it broke", "park 1")
    assert "it took more than 0.5 s" in caplog.text


def test_a_mail_of_which_nothing_is_declared_says_what_happened(project: Path, mail: Inbox) -> None:
    addresses = {"to": "ops@example.org", "from_email": "streamkeeper@example.org"}
    settings = declare(project, (SMTP, addresses))
    assert alert(settings, AlertKind.PARKED, FLOW, "its {{ state }} broke", "park 1", link="http://airflow/a")
    [message] = mail.mails
    body = message.get_body()
    assert body is not None
    text, link = body.get_content().strip().split("<p>")
    assert (message["subject"], text) == (f"{FLOW} is parked", "<pre>its {{ state }} broke</pre>")
    assert 'href="http://airflow/a"' in link


@pytest.mark.parametrize(
    ("notifier", "said"),
    [
        pytest.param(
            ("no.such.Notifier", {}),
            "there is no notifier 'no.such.Notifier'.*Correct the classpath",
            id="no module",
        ),
        pytest.param((f"{SMTP}s", {}), 'does not define a "SmtpNotifiers"', id="no class"),
        pytest.param(
            ("airflow.sdk.DAG", {}),
            "airflow.sdk.DAG is no notifier: it must be a class that extends",
            id="no notifier",
        ),
        pytest.param(
            (SMTP, {"recipient": "x"}),
            "cannot be used with the arguments recipient: TypeError.*'to'",
            id="arguments",
        ),
        pytest.param(
            (SMTP, {"to": "{{ alert."}),
            "TemplateSyntaxError.*templates may use alert.subject, text",
            id="template",
        ),
        pytest.param(
            (SMTP, {"to": "{{ alert.topic }}"}), "UndefinedError.*topic", id="a field that alerts have not"
        ),
    ],
)
def test_a_wrong_notifier_is_named_with_its_pipeline(
    notifier: tuple[str, dict[str, Any]], said: str, project: Path
) -> None:
    settings = declare(project, notifier)
    [pipeline] = [pipeline for pipeline in read_manifest(settings).pipelines if pipeline.name == "first"]
    [fault] = unusable(pipeline)
    assert fault.startswith("Pipeline first (first.py): ")
    assert re.search(said, fault)
    assert not alert(settings, AlertKind.PARKED, FLOW, "it broke", "park 1"), (
        "and telling through it fails, too"
    )


def test_right_notifiers_are_made_without_telling_anyone(project: Path, mail: Inbox, chat: Inbox) -> None:
    pipelines = read_manifest(declare(project, (SMTP, MAIL), (HTTP, HOOK))).pipelines
    assert [unusable(pipeline) for pipeline in pipelines] == [[], []]
    assert (mail.mails, chat.bodies) == ([], [])


def test_a_notifier_keeps_its_declared_templates_for_the_next_alert(project: Path, chat: Inbox) -> None:
    notifier = Notifier(HTTP, HOOK)
    before = json.dumps(HOOK)
    notify.prepare(notifier, alerts.Alert(AlertKind.PARKED, FLOW, "…", "1", "…"))
    assert json.dumps(HOOK) == before
