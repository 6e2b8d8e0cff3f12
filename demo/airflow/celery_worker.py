"""Celery's worker in a container, which the flows' drivers live and die with.

python -m demo.airflow.celery_worker

A driver has a session of its own, so that it outlives its task. What tells the container to stop would not
reach it: it would be killed in the middle of its batch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from types import FrameType

from demo.airflow.service import living_drivers
from streamkeeper.errors import StorageError
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from tools.waiting import NotYet, wait_until

STORE_SECONDS = 300.0
"""How long a store that is no folder may take until it answers."""


def await_store(state: str) -> None:
    """Wait for the store of the state folder, where it is a server that may start beside this worker.

    :raises NeverCame: it did not answer in time.
    """

    def answers() -> bool:
        try:
            open_storage(state).names()
        except StorageError as error:
            raise NotYet(str(error)) from error
        return True

    if "://" in state:
        wait_until(answers, STORE_SECONDS, f"{state} answers", tell=print)


def main() -> int:
    """Run the worker until its end. At SIGTERM it takes no more tasks, and the drivers end after their
    batches; with them end their tasks, and so does the worker.
    """
    settings = Settings.from_environment()
    await_store(settings.state)
    # Executors find their driver by the container's own name, whatever other networks it is in.
    environment = {**os.environ, "SPARK_LOCAL_HOSTNAME": socket.gethostname()}
    worker = subprocess.Popen(["airflow", "celery", "worker"], env=environment)

    def stop(_number: int, _frame: FrameType | None) -> None:
        worker.terminate()
        for lease, stopping in living_drivers(settings):
            # A second SIGTERM would end it at once.
            if not stopping:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lease.process.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    return worker.wait()


if __name__ == "__main__":
    sys.exit(main())
