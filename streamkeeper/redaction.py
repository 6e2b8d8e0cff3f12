"""Keeping secrets out of what is shown and kept: plans, notes, errors, the ledger.

A value is taken out where its key says that it is a secret (``password``, ``sasl.jaas.config``,
``fs.s3a.secret.key``); in texts, where something that reads like such a key stands before it, where an
address names a password or is signed, and in private keys. Keys that only sound alike, such as a source named
``password_resets``, keep their value: a key counts by its last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "***"

_LAST_WORDS = frozenset(
    {
        "password",
        "passwd",
        "pwd",
        "passphrase",
        "secret",
        "token",
        "credential",
        "credentials",
        "apikey",
        "jaas",
        "authorization",
        "keytab",
    }
)
_WHOLE = re.compile(
    r"(?:.*[._-])?(?:sasl[._-]jaas[._-]config|(?:secret|access|api|private|account|signing|encryption)[._-]?key(?:[._-]id)?|"
    r"account[._-]key|sas[._-]token|ssl[._-](?:key|keystore[._-]key)(?:[._-]pem)?|userinfo)",
    re.IGNORECASE,
)
_OF_A_STORE = (
    r"fs[.]azure[.](?:[\w-]+[.])*?(?:account[.]key|client[.]secret|sas(?:[.]fixed[.]token)?|password)(?:[.][\w-]+)+|"
    r"fs[.]s3a[.]bucket[.][\w.-]+?[.](?:secret|access|session)[.](?:key|token)"
)
"""Hadoop's keys of one account or bucket, whose name comes last or between."""
_STORE = re.compile(rf"(?:spark[.]hadoop[.])?(?:{_OF_A_STORE})", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_KEY = (
    r"[\w.-]*?(?:password|passwd|pwd|passphrase|secret|token|credentials?|(?:api|secret|account|signing|encryption)[._-]?key|"
    r"access[._-]?key(?:[._-]id)?|private[._-]key|"
    r"sasl[._-]jaas[._-]config|" + _OF_A_STORE + ")"
)
_PAIR = re.compile(
    rf"""(?P<key>(?<![\w.-])["']?{_KEY}["']?\s*[=:]\s*)(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)}}\]"']+)""",
    re.IGNORECASE,
)
_JAAS = re.compile(
    r"(?P<key>[\w.]+LoginModule\s+(?:required|requisite|sufficient|optional)\s)(?P<value>[^;]*;?)"
)
_USER = re.compile(r"(?P<key>[a-z][a-z0-9+.-]*://[^\s/:@]*:)(?P<value>[^\s/]+)(?=@)", re.IGNORECASE)
_SIGNED = re.compile(
    r"(?P<key>[?&](?:sig|X-Amz-Signature|X-Amz-Credential|X-Goog-Signature)=)(?P<value>[^\s&'\"]+)",
    re.IGNORECASE,
)
_PEM = re.compile(r"(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<value>.*?)(?=-----END|$)", re.DOTALL)
_BEARER = re.compile(r"(?P<key>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")


def is_secret(key: str) -> bool:
    """Say whether a key names a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(words and words[-1] in _LAST_WORDS) or any(form.fullmatch(key) for form in (_WHOLE, _STORE))


def redact(value: Any) -> Any:
    """Give a JSON value without its secrets; what is no secret stays as it is."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(inner, str) and inner and is_secret(str(key)) else redact(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(inner) for inner in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Give a text without the secrets that stand in it after their keys, in a JAAS configuration, or in an
    address.
    """
    for pattern in (_PEM, _JAAS, _PAIR, _USER, _SIGNED, _BEARER):
        text = pattern.sub(lambda found: f"{found['key']}{HIDDEN}", text)
    return text


def secrets_in(value: Any) -> Iterator[str]:
    """Give the texts that :func:`redact` would take out by their keys, for those who hide them elsewhere."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and inner and is_secret(str(key)):
                yield inner
            else:
                yield from secrets_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from secrets_in(inner)
