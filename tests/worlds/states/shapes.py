"""Shapes of queries with state: what each is, what arrives run by run, and what its table holds in the end by
plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.worlds.flow_world import SCHEMA, pipeline

Run = Mapping[str, Sequence[int]]
"""Numbers of the events that arrive before a run, by the folder of their source."""
Rows = list[tuple[Any, ...]]
SECOND = f'dp.create_source("second", format="json", path="{{data}}/second", schema="{SCHEMA}")'
BOTH: dict[str, Any] = {
    "more": SECOND,
    "sources": ("distinct_events", "second"),
    "parameters": "events, second",
}
DELAY = 10
"""Seconds of each watermark. The time of an event is its number in seconds, and its user the number modulo
7.
"""


@dataclass(frozen=True)
class Shape:
    """A query, what arrives before each of its runs, and its oracle: the rows in ``event_id``, ``user_id``,
    ``n`` that these make.
    """

    text: str
    runs: tuple[Run, ...]
    oracle: Callable[[tuple[Run, ...]], Rows]
    operators: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the table must hold after all runs."""
        return [dict(zip(("event_id", "user_id", "n"), row, strict=True)) for row in self.oracle(self.runs)]


def declared(flow: str, taken: str = "", **parts: Any) -> str:
    """Write the pipeline file of a query; ``taken`` are other parameters of its flow."""
    text = pipeline(view="", files=20, flow=flow, **parts)
    return text.replace('"200 milliseconds"', f'"200 milliseconds"{taken}')


def in_body(body: str) -> str:
    """Write a flow whose function is more than an expression, with its state in RocksDB."""
    text = declared("events", ', state_store="rocksdb"')
    return text.rpartition("    return ")[0] + body[1:]


def arrived(runs: Sequence[Run], folder: str = "events") -> list[int]:
    return [number for run in runs for number in run.get(folder, ())]


# State of one's own: lists and maps, timers, time to live
_PROCESSOR = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Own(StatefulProcessor):
{code}
        def close(self):
            pass

    by_user = events.withWatermark("event_time", "10 seconds").groupBy("user_id")
    return by_user.transformWithState(Own(), "event_id STRING, user_id INT, n INT", "Append", "{time}")
"""
LISTS_AND_MAPS = """
        def init(self, handle):
            self.numbers = handle.getListState("numbers", "n INT")
            self.kinds = handle.getMapState("kinds", "kind STRING", "many INT")

        def handleInputRows(self, key, rows, timers):
            for row in sorted(rows, key=lambda row: row.n):
                self.numbers.appendValue((row.n,))
                kind = ("odd" if row.n % 2 else "even",)
                many = self.kinds.getValue(kind)[0] if self.kinds.containsKey(kind) else 0
                self.kinds.updateValue(kind, (many + 1,))
                total = sum(number[0] for number in self.numbers.get())
                yield Row(event_id=row.event_id, user_id=many + 1, n=total)
"""
TIMERS = """
        def init(self, handle):
            self.handle = handle
            self.seen = handle.getValueState("seen", "first INT, many INT")

        def handleInputRows(self, key, rows, timers):
            numbers = sorted(row.n for row in rows)
            if not self.seen.exists():
                self.handle.registerTimer((TIME_OF_FIRST + numbers[0] + 10) * 1000)
            first, many = self.seen.get() if self.seen.exists() else (numbers[0], 0)
            self.seen.update((first, many + len(numbers)))
            return iter(())

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            first, many = self.seen.get()
            self.seen.clear()
            yield Row(event_id=f"user {key[0]}", user_id=many, n=first)
""".replace("TIME_OF_FIRST", "1_767_225_600")  # 2026-01-01
TIME_TO_LIVE = """
        def init(self, handle):
            self.kept = handle.getValueState("kept", "many INT", 3_600_000)
            self.brief = handle.getValueState("brief", "many INT", 1)

        def handleInputRows(self, key, rows, timers):
            kept, brief = (self.count(state) for state in (self.kept, self.brief))
            for row in sorted(rows, key=lambda row: row.n):
                kept, brief = kept + 1, brief + 1
                yield Row(event_id=row.event_id, user_id=kept, n=brief)
            self.kept.update((kept,))
            self.brief.update((brief,))

        def count(self, state):
            return state.get()[0] if state.exists() else 0
"""
IN_PANDAS = """
    import pandas as pd

    def count(key, parts, state):
        found = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((found,))
        yield pd.DataFrame({"event_id": ["user"], "user_id": [key[0]], "n": [found]})

    by_user, made = events.groupBy("user_id"), "event_id STRING, user_id INT, n INT"
    return by_user.applyInPandasWithState(count, made, "found INT", "append", "NoTimeout")
"""


def own(code: str, time: str) -> str:
    return in_body(_PROCESSOR.format(code=code[1:], time=time))


def lists_and_maps(runs: Sequence[Run]) -> Rows:
    found: Rows = []
    seen: dict[int, list[int]] = {}
    for number in arrived(runs):
        mine = seen.setdefault(number % 7, [])
        mine.append(number)
        found.append((f"e{number}", sum(other % 2 == number % 2 for other in mine), sum(mine)))
    return found


def timers(runs: Sequence[Run]) -> Rows:
    """After each run the timers that its watermark has passed fire, and their user begins anew."""
    found: Rows = []
    seen: dict[int, list[int]] = {}
    for at, run in enumerate(runs, 1):
        for number in run["events"]:
            seen.setdefault(number % 7, []).append(number)
        watermark = max(arrived(runs[:at])) - DELAY
        for user in [user for user, numbers in seen.items() if numbers[0] + 10 <= watermark]:
            numbers = seen.pop(user)
            found.append((f"user {user}", len(numbers), numbers[0]))
    return found


def time_to_live(runs: Sequence[Run]) -> Rows:
    """What lives for a millisecond is forgotten between two runs."""
    found: Rows = []
    kept: dict[int, int] = {}
    for run in runs:
        brief: dict[int, int] = {}
        for number in run["events"]:
            for counts in (kept, brief):
                counts[number % 7] = counts.get(number % 7, 0) + 1
            found.append((f"e{number}", kept[number % 7], brief[number % 7]))
    return found


def in_pandas(runs: Sequence[Run]) -> Rows:
    """Each run gives one row for each of its users."""
    found: Rows = []
    for at, run in enumerate(runs, 1):
        users = {number % 7 for number in run["events"]}
        so_far = [number % 7 for number in arrived(runs[:at])]
        found += [("user", user, so_far.count(user)) for user in users]
    return found


BY_USER: tuple[Run, ...] = (
    {"events": (1, 2, 8)}, {"events": (9, 10)}, {"events": (15, 16, 17)}, {"events": (22, 24)},
)  # fmt: skip
APART: tuple[Run, ...] = (
    {"events": (1, 2)}, {"events": (5, 30)}, {"events": (33, 35)}, {"events": (100,)},
)  # fmt: skip

# Windows
SESSIONS = (
    'events.withWatermark("event_time", "10 seconds")'
    '.groupBy(F.expr("n % 1"), F.session_window("event_time", "5 seconds"))'
    '.agg(F.count("*").alias("n"))'
    '.selectExpr("unix_seconds(session_window.start) % 86400 AS at", "session_window.end AS end", "n")'
    '.selectExpr("string(at) AS event_id", "int(unix_seconds(end) % 86400 - at) AS user_id", "int(n) AS n")'
)
COUNTS = (
    '.groupBy(F.window("event_time", "10 seconds")).count().selectExpr(\'"windows" AS event_id\','
    ' "int(unix_seconds(window.end) % 86400) AS user_id", "int(count) AS n")'
)
DISTINCT_COUNTS = (
    'events.withWatermark("event_time", "10 seconds").dropDuplicates(["event_id", "event_time"])' + COUNTS
)
UNION = (
    'events.withWatermark("event_time", "10 seconds")'
    '.unionByName(second.withWatermark("event_time", "5 seconds"))' + COUNTS
)


def sessions(runs: Sequence[Run]) -> Rows:
    found: list[list[int]] = []
    for number in sorted(arrived(runs)):
        if not found or number > found[-1][-1] + 5:
            found.append([])
        found[-1].append(number)
    watermark = max(arrived(runs)) - DELAY
    closed = [session for session in found if session[-1] + 5 <= watermark]
    return [(str(one[0]), one[-1] + 5 - one[0], len(one)) for one in closed]


def windows(numbers: Sequence[int], watermark: int) -> Rows:
    counts: dict[int, int] = {}
    for number in numbers:
        end = number // 10 * 10 + 10
        counts[end] = counts.get(end, 0) + 1
    return [("windows", end, count) for end, count in counts.items() if end <= watermark]


def distinct_windows(runs: Sequence[Run]) -> Rows:
    return windows(sorted(set(arrived(runs))), max(arrived(runs)) - DELAY)


def union_windows(runs: Sequence[Run], policy: Callable[[int, int], int]) -> Rows:
    """Rows whose window was closed before their run are dropped as late."""
    counted: list[int] = []
    watermark = 0
    for at, run in enumerate(runs, 1):
        counted += [number for number in arrived([run]) if number // 10 * 10 + 10 > watermark]
        counted += [number for number in arrived([run], "second") if number // 10 * 10 + 10 > watermark]
        newest = [max(arrived(runs[:at], folder), default=0) for folder in ("events", "second")]
        watermark = max(watermark, policy(newest[0] - 10, newest[1] - 5))
    return windows(counted, watermark)


# Joins of two streams
def joined(kind: str, chosen: str) -> str:
    right = (
        'second.withWatermark("event_time", "10 seconds")'
        '.selectExpr("event_id AS other", "n AS m", "event_time AS at")'
    )
    same = "event_id = other AND at BETWEEN event_time AND event_time + INTERVAL 10 SECONDS"
    left = f'events.withWatermark("event_time", "10 seconds").join({right}, F.expr("{same}"), "{kind}")'
    return declared(f"{left}.selectExpr({chosen})", **BOTH)


def join(runs: Sequence[Run], left: bool = False, right: bool = False) -> Rows:
    """Rows without a match come once no match can any more."""
    one, other = arrived(runs), arrived(runs, "second")
    watermark = min(max(one), max(other)) - DELAY
    found: Rows = [(f"e{number}", number, number) for number in one if number in other]
    if left:
        found += [(f"e{n}", -1, n) for n in one if n not in other and n + 10 < watermark]
    if right:
        found += [(f"e{n}", n, -1) for n in other if n not in one and n < watermark]
    return found


MATCHED = '"coalesce(event_id, other) AS event_id", "coalesce(m, -1) AS user_id", "coalesce(n, -1) AS n"'
TWO: tuple[Run, ...] = (
    {"events": (1, 20), "second": (1,)},
    {"events": (60,), "second": (45, 60, 62)},
    {"events": (62, 70)},
    {"events": (100,), "second": (100,)},
)
FAST_AND_SLOW: tuple[Run, ...] = (
    {"events": (1, 3), "second": (2,)},
    {"events": (50,), "second": (14,)},
    {"events": (55,), "second": (12,)},
    {"events": (90,), "second": (80,)},
)
JOIN = ("symmetricHashJoin",)
OWN = ("transformWithStateInPySparkExec",)

SHAPES: Mapping[str, Shape] = {
    "list and map state": Shape(own(LISTS_AND_MAPS, "None"), BY_USER, lists_and_maps, OWN),
    "event-time timers": Shape(own(TIMERS, "EventTime"), APART, timers, OWN),
    "time to live": Shape(own(TIME_TO_LIVE, "ProcessingTime"), BY_USER, time_to_live, OWN),
    "applyInPandasWithState": Shape(in_body(IN_PANDAS), BY_USER, in_pandas, ("applyInPandasWithState",)),
    "session windows": Shape(
        declared(SESSIONS),
        ({"events": (1, 2, 30)}, {"events": (33,)}, {"events": (36,)}, {"events": (100,)}),
        sessions,
        ("stateStoreSave",),
    ),
    "aggregation after deduplication": Shape(
        declared(DISTINCT_COUNTS),
        ({"events": (1, 1, 3)}, {"events": (3, 35)}, {"events": (35, 38)}, {"events": (100,)}),
        distinct_windows,
        ("dedupe", "stateStoreSave"),
    ),
    "two watermarks, the slowest": Shape(
        declared(UNION, ', watermark_policy="min"', **BOTH),
        FAST_AND_SLOW,
        partial(union_windows, policy=min),
        ("stateStoreSave",),
    ),
    "two watermarks, the fastest": Shape(
        declared(UNION, ', watermark_policy="max"', **BOTH),
        FAST_AND_SLOW,
        partial(union_windows, policy=max),
        ("stateStoreSave",),
    ),
    "inner join": Shape(joined("inner", MATCHED), TWO, join, JOIN),
    "left outer join": Shape(joined("left_outer", MATCHED), TWO, partial(join, left=True), JOIN),
    "full outer join": Shape(joined("full_outer", MATCHED), TWO, partial(join, left=True, right=True), JOIN),
    "left semi join": Shape(joined("left_semi", '"event_id", "n AS user_id", "n"'), TWO, join, JOIN),
}
