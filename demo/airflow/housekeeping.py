"""Removes what Airflow itself keeps for ever: old logs of tasks, and old rows of its records.

python -m demo.airflow.housekeeping LOGS DAYS DONE

``airflow db clean`` goes by when a run or a task began, and a flow's began months ago and goes on. So runs go
by their end, with all that belongs to them, and Airflow's own cleaning is asked for tables of what is past.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db_cleanup import run_cleanup
from airflow.utils.session import create_session
from airflow.utils.state import State
from sqlalchemy import delete, func, select

PAST = ["asset_event", "celery_taskmeta", "job", "log", "task_instance_history"]
"""Tables of what is past, whatever it belongs to. A task that runs is *pending* to Celery without its row."""
EMPTY = 3600.0
"""Seconds that an empty folder stays: a task makes its folder before its log."""


def living_logs() -> set[str]:
    """Return the logs of all tries that are not at their end, as Airflow names them, without their suffix."""
    tries = select(
        TaskInstance.dag_id,
        TaskInstance.run_id,
        TaskInstance.task_id,
        TaskInstance.map_index,
        TaskInstance.try_number,
    ).where(TaskInstance.state.in_([state for state in State.unfinished if state is not None]))
    with create_session() as session:
        return {
            f"dag_id={dag}/run_id={run}/task_id={task}/"
            f"{f'map_index={index}/' if index >= 0 else ''}attempt={number}"
            for dag, run, task, index, number in session.execute(tries)
        }


def remove_logs(logs: Path, before: datetime, living: set[str]) -> int:
    """Remove the logs that were not written since, but those of living tries and of drivers, which
    ``remove_driver_logs`` removes, and folders that are empty; return how many logs went.
    """
    removed = 0
    empty = datetime.now(timezone.utc).timestamp() - EMPTY
    for folder, _, names in os.walk(logs, topdown=False):
        place = Path(folder)
        last = place.stat().st_mtime
        for path in (place / name for name in names):
            name = path.relative_to(logs)
            # A quiet driver writes nothing for weeks, and only its lease says that it lives.
            protected = name.parts[0] == "drivers" or str(name).partition(".log")[0] in living
            if not protected and not path.is_symlink() and path.stat().st_mtime < before.timestamp():
                path.unlink()
                removed += 1
        if place != logs and last < empty:
            with contextlib.suppress(OSError):
                place.rmdir()
    return removed


def remove_rows(before: datetime) -> None:
    """Remove the runs that ended before, and the rows of what is past. The newest run of each kind stays in
    each DAG: without it a DAG that runs once would run again.
    """
    newest = select(func.max(DagRun.id)).group_by(DagRun.dag_id, DagRun.run_type)
    ended = DagRun.state.in_(State.finished_dr_states), DagRun.end_date < before
    with create_session() as session:
        session.execute(delete(DagRun).where(*ended, DagRun.id.not_in(newest)))
    run_cleanup(
        clean_before_timestamp=before,  # type: ignore[arg-type]  # it makes a pendulum's of any
        table_names=PAST,
        confirm=False,
        skip_archive=True,
        error_on_cleanup_failure=True,
    )


def main(arguments: list[str]) -> int:
    """Remove what is old, and leave a file in the folder DONE; return 0."""
    logs, days, done = Path(arguments[0]), float(arguments[1]), Path(arguments[2])
    before = datetime.now(timezone.utc) - timedelta(days=days)
    removed = remove_logs(logs, before, living_logs())
    remove_rows(before)
    done.mkdir(parents=True, exist_ok=True)
    (done / "done.json").write_text(json.dumps({"before": before.isoformat(), "logs": removed}))
    print(f"{removed} logs removed, and the rows before {before:%Y-%m-%d %H:%M} UTC", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
