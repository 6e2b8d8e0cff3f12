"""Values that nobody expects, and a run of a command with them."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.exceptions import Abort, Exit, TyperException

from streamkeeper.cli.commands import app

NASTY: tuple[Any, ...] = (
    *(None, True, "", "x", "9" * 4000, [], {}, [[]], {"a": 1}, -1, 0, 10**18, 2**63, -(2**70), 1e300, 0.5),
    *(
        float("inf"),
        float("nan"),
        "\ud800",
        "../../etc/passwd",
        "2026-11-21T10:00:00",
        "99999-01-01",
        [1, "x"],
    ),
)
"""Values of another type, of no range, or of no meaning."""
TEXTS: tuple[str, ...] = (
    *("", " ", "-", "--", "-1", "0", "1e400", "nan", "inf", "9" * 5000, "１０", "1_0", "x" * 70_000),
    *("[" * 20_000, '{"a":' * 3_000, "[[[", "{}", "null", '{"events_raw": {"logOffset": -1}}'),
    *("\ud800", "\0"),
    *("../../etc/passwd", "/etc", "/proc/self", "file:etc", "file:///etc", "foo://x", "zip://a::file:///etc"),
    *("http://127.0.0.1:9/x", "s3://", "~nobody/x", "a,b,,", "events.clean_events", "events", "latest"),
    *("2026-11-21T10:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "24:00", "2h", "99999999999d"),
    *("id = 1", "id IN (SELECT 1)", "reflect('a', 'b')", "'", "\x1b]52;c;x\a", "\u202e"),
    *("{{ x }}", "$(id)", "`id`"),
)
"""Texts that people, scripts and attackers type."""


def text(dice: random.Random) -> str:
    """Return one of them, or a part of one, or two together."""
    one, other = dice.choice(TEXTS), dice.choice(TEXTS)
    made = dice.choice([one, one, one[: dice.randrange(len(one) + 1)], f"{one}{other}"])
    return "s3://" if made.startswith("s3://") else made  # a bucket would be looked for


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Fail where this process takes 500 MB more than it ever had."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert most < before + 500 * 1024, f"{(most - before) // 1024} MiB more"


def run(arguments: list[str]) -> Exception | None:
    """Run a command; return the error that ended it."""
    try:
        typer.main.get_command(app)(arguments, standalone_mode=False)
    except (SystemExit, Exit, Abort, TyperException):
        return None
    except Exception as error:  # noqa: BLE001 - what is looked for
        return error
    return None
