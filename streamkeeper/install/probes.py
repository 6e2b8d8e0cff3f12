"""Probes of an installation: each answers in rows, within a deadline, and never by a traceback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkeeper.errors import StreamkeeperError

OK, WARN, FAIL = "ok", "warn", "fail"
STATES = (OK, WARN, FAIL)


@dataclass(frozen=True)
class Row:
    """One line of an answer: its subject, its state (``ok``, ``warn`` or ``fail``), finding and advice."""

    name: str
    state: str
    detail: str
    advice: str = ""

    @classmethod
    def from_json(cls, value: Any) -> Row:
        """Return a row that another process printed.

        :raises ValueError: it is none.
        """
        if not isinstance(value, Mapping) or value.get("state") not in STATES:
            raise ValueError(f"{value!r} is no row of a probe")
        return cls(*(str(value.get(name, "")) for name in ("name", "state", "detail", "advice")))


Probe = Callable[[], Iterable[Row]]


def run_all(probes: Mapping[str, Probe], deadline: float) -> list[Row]:
    """Run all probes beside one another, and return their rows in the order of the probes.

    A probe that raises, or that has not answered after ``deadline`` seconds, becomes a ``fail`` row. A probe
    that hangs, as on a dead network mount, is left behind: its thread ends with the process.
    """
    answers: dict[str, Sequence[Row]] = {}

    def answer(name: str, probe: Probe) -> None:
        answers[name] = _answered(name, probe)

    threads = {
        name: threading.Thread(target=answer, args=(name, probe), daemon=True, name=f"probe {name}")
        for name, probe in probes.items()
    }
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(deadline)
    return [row for name in probes for row in answers.get(name, [_late(name, deadline)])]


def _answered(name: str, probe: Probe) -> Sequence[Row]:
    try:
        return list(probe())
    except StreamkeeperError as error:
        return [Row(name, FAIL, str(error))]
    except Exception as error:  # noqa: BLE001 - whatever is wrong there, the other rows are what is needed now
        advice = "This was not expected: please report it with this line."
        return [Row(name, FAIL, f"{type(error).__name__}: {error}", advice)]


def _late(name: str, deadline: float) -> Row:
    advice = "What it asks hangs or is very slow: a network mount, a store or a database. Look there first."
    return Row(name, FAIL, f"There was no answer within {deadline:g} s.", advice)
