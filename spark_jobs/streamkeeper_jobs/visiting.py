"""The writers' turn for who is no flow: tidying, and whoever must read target and tombstones as they belong together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from streamkeeper.clock import now
from streamkeeper.errors import TableLocked
from streamkeeper.home import TableTurns
from streamkeeper.leases import Process
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.turns import Holder, WritersTurn, describe
from streamkeeper_jobs.saying import say
from streamkeeper_jobs.turn_taking import jvm_process

TURN_SECONDS = 900.0
"""How long a turn is waited for."""
_NOBODY = "tables"
"""What stands for the flow of a turn that no flow has: no flow may be called so."""


def visitors_turn(
    spark: SparkSession, settings: Settings, pipeline: str, table: str, then: str
) -> Callable[[], AbstractContextManager[None]]:
    """Give a way to the writers' turn on a table.

    :param then: what to do where it does not come in time, as a sentence.
    :raises TableLocked: when it is waited for: it did not come, or its holder is silent and cannot be proven gone.
    """
    me = Holder(_NOBODY, 0, 0, None, Process.current(), jvm_process(spark), now())
    turns = TableTurns(open_storage(settings.state), pipeline, table)
    deadline = time.monotonic() + TURN_SECONDS

    def wait(seconds: float) -> None:
        if time.monotonic() >= deadline:
            raise TableLocked(f"The turn on {table} did not come within {TURN_SECONDS:g} s. {then}")
        time.sleep(seconds)

    return WritersTurn(turns, me, settings.lease_term, check=lambda: None, shut_out=_leave_it, wait=wait, say=say)


def _leave_it(holder: Holder) -> None:
    """A visitor shuts no flow out: that is for a flow that must write."""
    raise TableLocked(f"{describe(holder)} has the turn, is silent and cannot be proven gone. A flow that writes the table deals with it.")
