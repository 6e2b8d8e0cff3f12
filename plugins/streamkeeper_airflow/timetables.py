"""When DAGs run that run by the clock."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable

FORGIVEN = timedelta(minutes=5)
"""How long a time may be over that nothing ran at yet: a DAG file is parsed again and again, also between the
time and its run.
"""


def by_the_clock(cron: str) -> CronTriggerTimetable:
    """Return the timetable of a DAG that has no start date: switched on, it waits for its next time and
    catches up on nothing.

    With a start date, Airflow runs it at once for the last time before, though the DAG was not there then.

    :param cron: in UTC.
    """
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=FORGIVEN)
