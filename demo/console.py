"""What the demo prints while it runs: each flow's state, generation, batch and age, and the row count of its
table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from demo.tables import count_rows
from streamkeeper.errors import StreamkeeperError
from streamkeeper.health.flows import RETRYING, UNREADABLE, FlowHealth, look_now
from streamkeeper.settings import Settings
from streamkeeper.support.times import describe_age


@dataclass
class Console:
    """Looks at every flow, and prints a line for each; nothing is changed by looking.

    :param write: where lines go; standard output by default.
    """

    settings: Settings
    write: Callable[[str], None] = print
    _printed: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Print a line a flow, once what a state means that asks for somebody, and what has no answer."""
        try:
            manifest, rows = look_now(self.settings)
        except StreamkeeperError as error:
            self._once("the pipeline files", str(error))
            return
        for health in rows:
            self.write(line(health, count_rows(self.settings.table_path(health.table))))
            if health.state in ("parked", "held", "down", RETRYING, UNREADABLE):
                self._once(health.flow, f"{health.state}: {health.detail}")
            else:
                self._printed.pop(health.flow, None)
        for pipeline, message in manifest.errors.items():
            self._once(f"pipeline {pipeline}", message)

    def _once(self, about: str, message: str) -> None:
        if self._printed.get(about) != message:
            self._printed[about] = message
            self.write(f"          {about}: {message}")


def line(health: FlowHealth, rows: int | None, moment: datetime | None = None) -> str:
    """Return a flow's line, in columns that stay where they are.

    :param rows: of its table, or None where there is no table yet.
    :param moment: the present by default.
    """
    age = "–" if health.age is None else describe_age(health.age)
    counted = "no table yet" if rows is None else f"{rows:,} rows"
    return (
        f"{moment or datetime.now():%H:%M:%S}  {health.flow:<37} {health.state:<14} generation"
        f" {_or_dash(health.generation):<3} batch {_or_dash(health.batch):<5} age {age:<7}"
        f" {health.table}: {counted}"
    )


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
