"""A flow that numbers the events of each user, from a number that an initial state gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.worlds.flow_world import Flowbed, pipeline

SEEN = {1: 10, 2: 20}
"""How many events of each user the initial state has."""
ROWS = f"rows={[{'user_id': user, 'seen': seen} for user, seen in SEEN.items()]}"
COLUMNS = 'schema="user_id INT, seen INT"'
TABLE = 'table="known"'
HANDED_ON = 'given.groupBy("user_id")'
READ = "given.seen"

_CODE = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Numbering(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "{state}")

        def handleInitialState(self, key, given, timers):
            self.seen.update(({read},{more}))

        def handleInputRows(self, key, rows, timers):
            count = self.seen.get()[0] if self.seen.exists() else 0
            for row in sorted(rows, key=lambda row: row.n):
                count += {by}
                yield Row(event_id=row.event_id, user_id=count, n=row.n)
            self.seen.update((count,{more}))

        def close(self):
            pass

    by_user = events.groupBy("user_id")
    return by_user.transformWithState(
        Numbering(), "event_id STRING, user_id INT, n INT", "Append", "None", {handed_on}
    )
"""


def numbering(
    *given: str,
    handed_on: str | None = HANDED_ON,
    read: str = READ,
    state: str = "count INT",
    more: str = "",
    by: int = 1,
) -> str:
    """Write the pipeline file: ``given`` declares the initial state, by default two rows; none is declared
    where ``given`` is one empty text.
    """
    declared = ", ".join(given or (ROWS, COLUMNS))
    text = pipeline(
        view="",
        files=1,
        more=f'dp.create_initial_state("known", {declared})' if declared else "",
        parameters="events, given" if declared else "events",
    )
    takes = ', initial_state="known"' if declared else ""
    text = text.replace('"200 milliseconds"', f'"200 milliseconds", state_store="rocksdb"{takes}')
    handed = f"initialState={handed_on}" if declared and handed_on else ""
    return text.rpartition("    return ")[0] + _CODE[1:].format(
        state=state, read=read, more=more, handed_on=handed, by=by
    )


def numbered(events: Iterable[Mapping[str, Any]], seen: Mapping[int, int] = SEEN) -> list[dict[str, Any]]:
    """The oracle: each event with its number among those of its user."""
    counts, found = dict(seen), []
    for item in events:
        user = item["user_id"]
        counts[user] = counts.get(user, 0) + 1
        found.append({**item, "user_id": counts[user]})
    return found


def put_table(bed: Flowbed, seen: Mapping[int, Any] = SEEN, columns: str = "user_id INT, seen INT") -> None:
    """Append rows to the table of the initial state."""
    frame = bed.spark.createDataFrame(list(seen.items()), columns)
    frame.write.format("delta").mode("append").save(str(bed.root / "warehouse" / "known"))
