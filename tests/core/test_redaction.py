"""Secrets stay out of plans, notes, errors and ledgers; what only sounds like one stays in."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import holds, ledger
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.redaction import HIDDEN, is_secret, redact, redact_text, secrets_in
from streamkeeper.support.amounts import SourceImpact
from tests.worlds.recover.recoveries import plan_reset
from tests.worlds.small_world import World

SECRET = "hunter2-hunter2"
SECRETS = (
    "password", "PASSWORD", "db_password", "kafka.ssl.keystore.password", "ssl.key.password", "token",
    "accessToken", "oauth.token", "client_secret", "clientSecret", "kafka.sasl.jaas.config",
    "fs.s3a.secret.key", "fs.s3a.access.key", "aws_secret_access_key", "aws_access_key_id",
    "fs.azure.account.key", "private_key", "api-key", "apiKey", "credentials", "spark.ssl.keytab",
    "Authorization", "fs.azure.account.key.lake.dfs.core.windows.net",
    "fs.azure.account.oauth2.client.secret.lake.dfs.core.windows.net",
    "fs.azure.sas.raw.lake.blob.core.windows.net", "fs.azure.sas.fixed.token.lake.dfs.core.windows.net",
    "passwords", "db_passwords", "pass", "smtp.pass", "fernet_key", "AIRFLOW__CORE__FERNET_KEY",
    "webhook_url", "slack_webhook", "spark.hadoop.fs.s3a.bucket.raw.secret.key",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
)  # fmt: skip
PLAIN = (
    "password_resets", "tokens_raw", "secretary", "path", "subscribe", "key", "keys", "event_key",
    "logOffset", "maxFilesPerTrigger", "kafka.bootstrap.servers", "compass", "partition.key", "keyspace",
    "sequence", "fs.azure.account.auth.type.lake.dfs.core.windows.net", "fs.s3a.bucket.raw.endpoint",
)  # fmt: skip


def test_a_value_under_a_key_that_names_a_secret_is_taken_out() -> None:
    assert [key for key in SECRETS if not is_secret(key)] == []
    options = [{key: SECRET, "path": "/data"} for key in SECRETS]
    assert redact({"options": options}) == {"options": [{key: HIDDEN, "path": "/data"} for key in SECRETS]}
    assert [
        next(iter(option)) for option in options if list(secrets_in({"options": [option]})) != [SECRET]
    ] == []


def test_a_value_under_another_key_stays() -> None:
    value = {**dict.fromkeys(PLAIN, "value"), "n": {key: {"0": 5} for key in PLAIN}, "t": (1, None, True)}
    assert redact(value) == {**value, "t": [1, None, True]}


def test_positions_under_a_source_or_topic_that_is_named_like_a_secret_stay() -> None:
    position = {"token": {"secret": {"0": 5, "1": -2}}, "password": {"logOffset": 7}, "secret": None}
    assert redact(position) == position


TEXTS = {
    "option": f"Kafka said no: password={SECRET}, retries=3",
    "quoted": f"""options {{'kafka.ssl.keystore.password': '{SECRET}', 'subscribe': 'orders'}}""",
    "with spaces": f'client_secret = "{SECRET} and more"',
    "jaas": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada"'
        f' password="{SECRET}";'
    ),
    "address": f"cannot reach https://ada:{SECRET}@host:8080/x",
    "header": f"Authorization: Bearer {SECRET}",
    "s3": f"fs.s3a.secret.key={SECRET}",
    "azure": f"--conf spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net={SECRET} --name x",
    "azure bus": (
        f"Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={SECRET};EntityPath=e"
    ),
    "odbc": f"Driver=x;Server=y;UID=ada;PWD={SECRET};",
    "jdbc": f"jdbc:postgresql://host/db?user=ada&password={SECRET}&ssl=true",
    "a password with an at": f"amqp://ada:p@{SECRET}@host/x",
    "a signed address": f"https://lake.blob.core.windows.net/raw/x?sv=2024-01-01&sig={SECRET}&se=2026",
    "a signed address of s3": f"https://b.s3.amazonaws.com/x?X-Amz-Expires=60&X-Amz-Signature={SECRET}",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\nabc\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    "a password with a slash": f"postgresql://ada:pa/{SECRET}@host/db",
    "a token for a user": f"cannot clone https://{SECRET}@git.example.org/x",
    "slack": f"POST https://hooks.slack.com/services/T000/B000/{SECRET} said 404",
    "teams": f"POST https://contoso.webhook.office.com/webhookb2/1-2/IncomingWebhook/{SECRET}",
    "an option of a command": f"mc alias set --secret {SECRET} x",
    "an option of two words": f"run --db-password {SECRET} --now",
    "pass": f"pass={SECRET}",
    "fernet": f"fernet_key: {SECRET}",
    "webhook": f"webhook_url={SECRET}",
    "jaas with an escaped quote": (
        f'x.PlainLoginModule required username="a" password="b\\";{SECRET}" serviceName="kafka";'
    ),
    "json": f'{{"user": "ada", "password": "{SECRET}"}}',
    "a login of curl": f"curl -u ada:{SECRET} http://host/x",
    "a login of a registry": f"basic.auth.user.info=ada:{SECRET}",
    "a signed address of a cdn": f"https://d1.cloudfront.net/x?Expires=1&Signature={SECRET}&Key-Pair-Id=K",
    "telegram": f"POST https://api.telegram.org/bot123456:{SECRET}/sendMessage said 404",
    "pagerduty": f"POST https://events.pagerduty.com/integration/{SECRET}/enqueue",
    "power automate": f"https://prod-1.westeurope.logic.azure.com/workflows/x?sig={SECRET}",
    "discord": f"https://discord.com/api/webhooks/123/{SECRET}",
    "google chat": f"https://chat.googleapis.com/v1/spaces/A/messages?key=k&token={SECRET}",
    "redis": f"redis://:{SECRET}@cache:6379/0",
    "mongo": f"mongodb+srv://ada:{SECRET}@db.example.org/shop?w=1",
    "a property of the jvm": f"java -Djavax.net.ssl.trustStorePassword={SECRET} -jar x.jar",
    "an environment": f"AIRFLOW__CORE__FERNET_KEY={SECRET} DB_PASSWORD={SECRET}",
    "yaml": f"spring:\n  datasource:\n    password: {SECRET}\n",
    "basic": f"Authorization: Basic {SECRET}",
}


PLAIN_TEXTS = (
    "To continue anyway, accept `data-loss`.",
    "The source password_resets: files log 7 (42K03)",
    "s3://bucket/token/_delta_log: 3 files, 1.2 kB",
    "token: a batch, 3 secrets were found; 10:30 at host:9092",
    "http://host:8080/x and ada@example.org",
    "s3a://bucket:80/a/b?c=d",
    "http://host:8080/x?mail=ada@example.org",
    "the compass: north; bypass=yes; surpass = 3",
    "ssh://git@example.org/x and http://ada@example.org",
    "AKIA is what keys of AWS begin with; eyJ what tokens do",
)


def test_a_secret_in_a_text_is_taken_out() -> None:
    found = {name: redact_text(text) for name, text in TEXTS.items()}
    assert {name: text for name, text in found.items() if SECRET in text or HIDDEN not in text} == {}


def test_a_text_without_secrets_stays() -> None:
    assert [text for text in PLAIN_TEXTS if redact_text(text).replace(HIDDEN, "a") != text] == []


_ANY = "0123456789abcdefghij0123456789abcdef"
BARE = {
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "github": f"ghp_{_ANY}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    # In two parts, so that no scanner takes them for somebody's.
    **{
        kind: f"{begins}{_ANY}"
        for kind, begins in {
            "github, fine": "github" + "_pat_",
            "gitlab": "glpat" + "-",
            "vault": "hvs" + ".",
            "stripe": "sk" + "_live_",
            "an api": "sk" + "-proj-",
            "google": "AI" + "za",
            "npm": "npm" + "_",
            "oauth of google": "ya29" + ".",
            "pypi": "pypi" + "-",
            "slack": "xox" + "b-",
            "slack's app": "xapp" + "-1-",
        }.items()
    },
    "databricks": "dapi" + "0123456789abcdef" * 2,
    "sendgrid": f"SG.{_ANY[:22]}.{_ANY}",
}


def test_a_secret_without_a_key_is_taken_out_by_its_form() -> None:
    said = {kind: redact_text(f"it said {bare}, and no more") for kind, bare in BARE.items()}
    assert {kind: text for kind, text in said.items() if text != f"it said {HIDDEN}, and no more"} == {}


def test_numbers_and_lists_under_a_password_are_taken_out_and_positions_stay() -> None:
    given = {"password": 123456, "passwords": ["a", 7], "token": 5, "events.secret": 12, "apikey": True}
    assert redact(given) == {**given, "password": HIDDEN, "passwords": [HIDDEN, HIDDEN]}
    assert list(secrets_in(given)) == ["123456", "a", "7"]


UNKIND = {
    "letters": "a",
    "a scheme's letters": "a+",
    "keys of a store": "account.key.",
    "azure": "fs.azure.a.",
    "keys": "token",
    "dots": "x.",
    "modules": "LoginModule ",
    "addresses": "a://",
    "users": "a://b:",
    "tokens": "eyJ-",
    "options": "--token ",
    "spaces": " ",
    "quotes": "password='",
    "certificates": "-----BEGIN PRIVATE KEY-----",
}


@pytest.mark.parametrize("part", UNKIND.values(), ids=UNKIND.keys())
def test_a_long_text_is_looked_through_in_a_moment(part: str) -> None:
    """Quadratic patterns took minutes for these, and a search of each address for a login some seconds."""
    text = "password" + part * (1_000_000 // len(part))
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 3


def test_an_error_is_cut_before_it_is_looked_through() -> None:
    said = str(RecoveryError("x" * 1_000_000))
    assert len(said) < 66_000
    assert said.endswith("… (934,464 characters more are left out)")


def test_a_reason_that_nobody_would_read_is_refused_before_anything_is_planned(world: World) -> None:
    with pytest.raises(RequestError, match=r"reason has 2,001 characters\. Allowed are 2,000\. Shorten it"):
        plan_reset(world, "earliest", reason="x" * 2_001)
    with pytest.raises(RequestError, match="2,001 characters"):
        holds.put(world.home, holds.person("ada"), "x" * 2_001, "ada")
    assert world.home.owners() == []


def test_neither_plan_nor_words_nor_ledger_have_a_secret(world: World) -> None:
    world.processed(2)
    made = plan_reset(world)
    impact = SourceImpact("events_raw", f"token={SECRET}", "then", notes=(f"api_key: {SECRET}",))
    made = plans.as_stored(
        replace(
            made,
            flows=(replace(made.flows[0], impacts=(impact,)),),
            notes=(f"https://ada:{SECRET}@host",),
            details={"password": SECRET},
        )
    )
    assert HIDDEN in str(plans.to_json(made)["flows"])
    book = ledger.open(world.home.storage, "events", "r1")
    book.record("hold.failed", {"error": f"OSError: cannot read: secret={SECRET}"})
    corpus = [*TEXTS.values(), *BARE.values()]
    assert len(corpus) >= 55
    made = plans.as_stored(replace(made, notes=tuple(corpus)))
    for number, text in enumerate(corpus):
        book.record(f"{number}.failed", {"error": text, "deep": [{"x": text}]})
        events.note(world.home, Kind.STARTED, text, number, by="driver")
    kept = "".join(str(asdict(event)) for event in book.events())
    kept += str(events.read(world.home.storage, "events"))
    kept += "".join(file.read_text() for file in Path(world.settings.state).rglob("*.json"))
    hidden = [SECRET, _ANY, "AKIAIOSFODNN7", "0123456789abcdef" * 2, "dozjgNry"]
    shown = f"{plans.to_json(made)}{explain.as_markdown(made)}{explain.as_text(made)}{kept}"
    assert [part for part in hidden if part in shown] == []
