"""Slack and PagerDuty, by Airflow's own providers, against local servers that speak their API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

import pagerduty
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from streamkeeper_airflow.operate.notify import deliver

from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.settings import PROJECT
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.conftest import alert, configure, notifiers_of
from tests.airflow.listeners import Inbox, webhook

FLOW = "first.first_flow"
SLACK = r"""dp.notifier(
    "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier",
    slack_webhook_conn_id="slack",
    text="*{{ alert.subject }}*\n{{ alert.text }}\n<{{ alert.link }}|its page>",
)"""
PAGERDUTY = """dp.notifier(
    "airflow.providers.pagerduty.notifications.pagerduty.PagerdutyNotifier",
    pagerduty_events_conn_id="pagerduty",
    summary="{{ alert.subject }}",
    severity="error",
    source="{{ alert.flow }}",
    action="{{ alert.action }}",
    dedup_key="{{ alert.incident }}",
    custom_details={"text": "{{ alert.text }}"},
    links=[{"href": "{{ alert.link }}", "text": "the stream's page"}],
)"""
"""As docs/operations/alerts.md has them."""
PAGE = "http://airflow/dags/flow__first__first_flow/plugin/stream"


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    with webhook() as inbox:
        inbox.says = b"ok"
        connection = {
            "conn_type": "slackwebhook",
            "host": f"http://127.0.0.1:{inbox.port}/services",
            "password": "T0/B0/a-token",
        }
        monkeypatch.setenv("AIRFLOW_CONN_SLACK", json.dumps(connection))
        yield inbox


def certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1 with its key: PagerDuty's client takes HTTPS alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    begins = datetime.now(timezone.utc) - timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = folder / "certificate.pem"
    pem = serialization.Encoding.PEM
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, form, plain))
    return file


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    proof = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(proof))
    with webhook(proof) as inbox:
        inbox.says = b'{"status": "success", "message": "Event processed", "dedup_key": "x"}'
        inbox.answers = [(202, {}, inbox.says)] * 4
        connection = {"conn_type": "pagerduty_events", "password": "R0UTING"}
        monkeypatch.setenv("AIRFLOW_CONN_PAGERDUTY", json.dumps(connection))
        monkeypatch.setattr(
            pagerduty.EventsApiV2Client, "default_base_url", f"https://127.0.0.1:{inbox.port}"
        )
        yield inbox


def test_the_examples_are_those_of_the_docs() -> None:
    docs = (PROJECT / "docs" / "operations" / "alerts.md").read_text()
    assert [example for example in (SLACK, PAGERDUTY) if example not in docs] == []


def test_slack_is_told_with_a_link_and_again_later_if_it_limits_the_rate(
    project: Path, home: FlowHome, slack: Inbox
) -> None:
    settings = configure(project, f"notifiers=[{SLACK}]")
    slack.answers = [(429, {"Retry-After": "30"}, b"rate_limited")]
    assert not alert(settings, AlertKind.BEHIND, FLOW, "400 s behind", "since 1", link=PAGE)
    (pending,) = alerts.pending(home)
    later = storage_now(home.storage) + alerts.PAUSE + 1
    assert deliver(home, pending, notifiers_of(settings), later)
    assert slack.paths == ["/services/T0/B0/a-token"] * 2
    (body,) = slack.bodies
    assert body["text"] == f"*{FLOW} is behind*\n400 s behind\n<{PAGE}|its page>"
    assert alerts.pending(home) == []


def test_pagerduty_gets_one_incident_that_is_resolved_when_it_is_over(project: Path, pager: Inbox) -> None:
    settings = configure(project, f"notifiers=[{PAGERDUTY}]")
    assert alert(settings, AlertKind.BEHIND, FLOW, "400 s behind", "since 1", link=PAGE)
    assert alert(settings, AlertKind.RELIEVED, FLOW, "0 s behind", "behind since 1", link=PAGE)
    assert alert(settings, AlertKind.PARKED, FLOW, "it broke", "then", link=PAGE)
    begins, ends, other = pager.bodies
    assert pager.paths == ["/v2/enqueue"] * 3
    assert [one["event_action"] for one in pager.bodies] == ["trigger", "resolve", "trigger"]
    assert begins["routing_key"] == "R0UTING"
    assert begins["dedup_key"] == ends["dedup_key"] != other["dedup_key"]
    payload = begins["payload"]
    assert (payload["summary"], payload["source"]) == (f"{FLOW} is behind", FLOW)
    assert payload["custom_details"] == {"text": "400 s behind"}
    assert begins["links"] == [{"href": PAGE, "text": "the stream's page"}]
