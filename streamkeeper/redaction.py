"""Removal of secrets from everything that is shown or kept: plans, notes, errors, the ledger.

In JSON, a value is hidden if its key names a secret (``password``, ``sasl.jaas.config``,
``fs.s3a.secret.key``). In texts, a value is hidden behind something that reads like such a key, in an address
with a password or a signature, and in a private key. A key counts by its last word, so a source named
``password_resets`` keeps its value. Secrets without a key are found by their form: keys of AWS, tokens of
GitHub and Slack, JSON web tokens, addresses of webhooks.

Every shown text passes these patterns, so each pattern is linear: it begins where a word begins, and its
repetitions are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "***"

_LAST_WORDS = frozenset(
    {
        "password", "passwords", "pass", "passwd", "pwd", "passphrase", "secret", "token", "credential",
        "credentials", "apikey", "jaas", "authorization", "keytab", "webhook",
    }
)  # fmt: skip
_NEVER_NAMES = frozenset({"password", "passwords", "passwd", "pwd", "passphrase", "apikey"})
"""Last words that no table or flow has: numbers and lists under them are no versions or positions."""
_WHOLE = re.compile(
    r"(?:.*[._-])?(?:sasl[._-]jaas[._-]config|(?:secret|access|api|private|account|signing|encryption|fernet)[._-]?key(?:[._-]id)?|"
    r"account[._-]key|sas[._-]token|webhook[._-]?ur[il]|ssl[._-](?:key|keystore[._-]key)(?:[._-]pem)?|userinfo)",
    re.IGNORECASE,
)
_OF_A_STORE = (
    r"fs[.]azure[.](?:[\w-]{1,63}[.]){0,6}?(?:account[.]key|client[.]secret|sas(?:[.]fixed[.]token)?|password)(?:[.][\w-]{1,63}){1,9}|"
    r"fs[.]s3a[.]bucket[.][\w.-]{1,100}?[.](?:secret|access|session)[.](?:key|token)"
)
"""Hadoop's keys of one account or bucket, with its name at the end or in the middle."""
_STORE = re.compile(rf"(?:spark[.]hadoop[.])?(?:{_OF_A_STORE})", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_KEY = (
    r"(?:(?:[\w.-]{0,100}[._-])?pass|[\w.-]{0,200}?(?:passwords?|passwd|pwd|passphrase|secret|token|credentials?|"
    r"(?:api|secret|account|signing|encryption|fernet)[._-]?key|webhook(?:[._-]?ur[il])?|access[._-]?key(?:[._-]id)?|private[._-]key|"
    r"sasl[._-]jaas[._-]config|" + _OF_A_STORE + "))"
)
_PAIR = re.compile(
    rf"""(?P<key>(?<![\w.-])["']?{_KEY}["']?\s*[=:]\s*)(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)}}\]"']+)""",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?P<key>(?<!\S)--?[\w-]{0,60}(?:password|passwd|passphrase|secret|token|api-key)\s{1,9})(?P<value>[^\s-]\S{0,999})",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"(?P<key>(?:(?<!\S)(?:-u|--user)\s{1,9}|basic[._]auth[._](?:user[._]info|credentials)\s{0,9}[=:]\s{0,9})[^\s:]{1,100}:)"
    r"(?P<value>\S{1,999})",
    re.IGNORECASE,
)
"""A name and a password behind one key."""
_JAAS = re.compile(
    r"(?P<key>(?<![\w.])[\w.]{1,200}LoginModule\s{1,20}(?:required|requisite|sufficient|optional)\s)"
    r"""(?P<value>(?:"(?:[^"\\]|\\.)*"|[^;])*;?)"""
)
_SCHEME = r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://"
_USER = re.compile(
    rf"(?P<key>{_SCHEME}[^\s/:@]{{0,256}}:(?!\d{{1,5}}/))(?P<value>[^\s/]{{1,999}}|[^\s\"]{{1,999}})(?=@)",
    re.IGNORECASE,
)
_BEFORE_AT = re.compile(r"(?<!\S)\S*@")
"""What may have a login, of a run of characters: without this look, each address is searched for one."""
_TOKEN_FOR_USER = re.compile(
    r"(?P<key>(?<![a-z0-9+.-])https?://)(?P<value>[^\s/:@]{12,999})(?=@)", re.IGNORECASE
)
_WEBHOOK = re.compile(
    r"(?P<key>https://(?:hooks\.slack\.com/|[\w-]{1,63}\.webhook\.office\.com/|outlook\.office(?:365)?\.com/webhook|"
    r"discord(?:app)?\.com/api/webhooks/|chat\.googleapis\.com/v1/spaces/|api\.telegram\.org/bot|"
    r"(?:events|api)\.(?:eu\.)?pagerduty\.com/integration/|[\w.-]{1,99}\.logic\.azure\.com/|hooks\.zapier\.com/))(?P<value>[^\s\"'<>]+)",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"(?P<key>(?<![\w-]))(?P<value>(?:AKIA|ASIA)[A-Z0-9]{16}(?![\w-])|gh[pousr]_[A-Za-z0-9]{20,255}|xox[abeprs]-[\w-]{10,255}|"
    r"github_pat_\w{20,255}|glpat-[\w-]{16,255}|hv[sb]\.[\w-]{16,255}|(?:sk|rk|pk)_(?:live|test)_\w{10,255}|sk-[\w-]{20,255}|"
    r"AIza[\w-]{30,60}|npm_[A-Za-z0-9]{30,60}|ya29\.[\w-]{16,2000}|dapi[0-9a-f]{32}(?:-\d)?|SG\.[\w-]{16,64}\.[\w-]{16,64}|"
    r"pypi-[\w-]{16,255}|xapp-[\w-]{10,255}|"
    r"eyJ[\w-]{5,4000}\.[\w-]{5,8000}\.[\w-]{0,1000})"
)
_SIGNED = re.compile(
    r"(?P<key>[?&](?:sig|X-Amz-Signature|X-Amz-Credential|X-Goog-Signature|Signature|Policy|Key-Pair-Id)=)(?P<value>[^\s&'\"]+)",
    re.IGNORECASE,
)
_PEM = re.compile(r"(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<value>.*?)(?=-----END|$)", re.DOTALL)
_BEARER = re.compile(r"(?P<key>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")


_BEFORE_LOGINS = (_PEM, _JAAS, _PAIR, _OPTION, _LOGIN)
_AFTER_LOGINS = (_TOKEN_FOR_USER, _WEBHOOK, _SIGNED, _BEARER, _BARE)


def is_secret(key: str) -> bool:
    """Return whether a key names a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(words and words[-1] in _LAST_WORDS) or any(form.fullmatch(key) for form in (_WHOLE, _STORE))


def redact(value: Any) -> Any:
    """Return a JSON value with its secrets hidden and everything else unchanged."""
    if isinstance(value, dict):
        return {
            key: _hidden(inner) if _hides(str(key), inner) else redact(inner) for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(inner) for inner in value]
    return redact_text(value) if isinstance(value, str) else value


def _hides(key: str, value: Any) -> bool:
    """Return whether a value is hidden because of its key."""
    if isinstance(value, str):
        return bool(value) and is_secret(key)
    # An object is never hidden whole: a table or a flow may have a name like a secret, with a position below
    # it.
    if isinstance(value, bool) or not isinstance(value, (int, float, list, tuple)):
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(words and words[-1] in _NEVER_NAMES)


def _hidden(value: Any) -> Any:
    return [HIDDEN] * len(value) if isinstance(value, (list, tuple)) else HIDDEN


def redact_text(text: str) -> str:
    """Return a text with its secrets hidden: after a key, in JAAS or an address, or by their form."""
    for pattern in _BEFORE_LOGINS:
        text = pattern.sub(_after_key, text)
    text = _BEFORE_AT.sub(lambda run: _USER.sub(_after_key, run[0]), text)
    for pattern in _AFTER_LOGINS:
        text = pattern.sub(_after_key, text)
    return text


def _after_key(match: re.Match[str]) -> str:
    return f"{match['key']}{HIDDEN}"


_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?!.*-----END)")
_KEY_LINE = re.compile(r"\s*[A-Za-z0-9+/]*={0,2}\s*")
_KEY_PART = 16
"""Characters from which on such a line, of which the beginning may be cut off, is hidden."""
_KEY_LINES = 150
"""Lines that a private key has at most."""


class Lines:
    """Hides the secrets of a text that comes line by line, private keys over several lines included.

    :param cut: whether the first line may be in the middle of a text: lines that read like a key's are then
        hidden until another one comes.
    """

    def __init__(self, *, cut: bool = False) -> None:
        self._cut, self._of_key = cut, 0

    def __call__(self, line: str) -> str:
        """Return the next line without its secrets."""
        if self._of_key:
            self._of_key = 0 if "-----END" in line else self._of_key - 1
            return HIDDEN
        self._cut = self._cut and _KEY_LINE.fullmatch(line) is not None
        if self._cut and len(line) >= _KEY_PART:
            return HIDDEN
        if _KEY_BEGINS.search(line):
            self._of_key = _KEY_LINES
        return redact_text(line)


def secrets_in(value: Any) -> Iterator[str]:
    """Return the texts that :func:`redact` hides by their keys, for callers that hide them elsewhere."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _hides(str(key), inner):
                yield from (str(item) for item in (inner if isinstance(inner, (list, tuple)) else (inner,)))
            else:
                yield from secrets_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from secrets_in(inner)


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal or a browser would obey: escapes, and marks that change the writing direction."""


def visible(text: str) -> str:
    """Return a text without control characters but tab and line feed, and without marks of direction."""
    return _CONTROL.sub("", text)


def visible_json(text: str) -> str:
    """Return JSON that means the same, with such characters written as escapes of JSON."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
