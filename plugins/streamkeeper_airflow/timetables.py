"""Timetables of DAGs that run at fixed times."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable

FORGIVEN = timedelta(minutes=5)
"""Age up to which a missed time still gets a run.

A DAG file is parsed repeatedly, also between the time and its run.
"""


def by_the_clock(cron: str) -> CronTriggerTimetable:
    """Return the timetable of a DAG without a start date: switched on, it waits for its next time.

    With a start date, Airflow would at once run the last time before, though the DAG did not exist then.

    :param cron: in UTC.
    """
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=FORGIVEN)
