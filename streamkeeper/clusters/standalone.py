"""Spark's own clusters: what a standalone master says of the drivers that it runs, and how it ends one.

The master is asked by its pages (``spark.master.ui.port``, 8080). Its worker starts the driver
as ``org.apache.spark.deploy.PythonRunner``, in a folder named after the driver, and reports the end of that
process. So the master's word proves an end; a driver whose worker was lost is proven nothing of
(``ERROR``), for it may run on. The states are those of Spark's ``DriverState``.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Any

from streamkeeper.clusters.pages import GONE, Unbegun, read_json
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.web import ask

RUNNER = "org.apache.spark.deploy.PythonRunner"
"""Class that runs a Python application as a driver, since standalone masters take no Python file."""
AWAITED = "spark.standalone.submit.waitAppCompletion"
"""Setting by which spark-submit stays until the end of a driver that a standalone master runs."""
ID = re.compile(r"driver-[0-9]{14}-[0-9]{4,}")
_ENDED = ("FINISHED", "FAILED", "KILLED")
_BYTES = re.compile(rb"==== Bytes ([0-9]+)-([0-9]+) of ([0-9]+) of [^\n]* ====\n")


def own_id() -> str | None:
    """Return the id of the driver that this process is: the worker names its folder after it."""
    folder = Path.cwd().name
    return folder if ID.fullmatch(folder) else None


def ended(driver: ClusterDriver) -> str | None:
    """Return the state in which a driver ended; None if the master does not say that it did.

    :raises OSError: the master's page does not answer.
    """
    master_state = read_json(f"{driver.page}/json/")
    completed = _entry_of(master_state.get("completeddrivers", ()), driver)
    return completed["state"] if completed and completed["state"] in _ENDED else None


def unbegun(driver: ClusterDriver) -> Unbegun:
    """Return what the master says of a driver without a lease: it is over if the master neither runs it nor
    keeps it waiting.

    :raises OSError: the master's page does not answer, or is that of a standby.
    """
    master_state = read_json(f"{driver.page}/json/")
    if master_state.get("status") != "ALIVE":
        raise OSError(f"the master at {driver.page} is {master_state.get('status')}")
    active = _entry_of(master_state.get("activedrivers", ()), driver)
    if active is None:
        completed = _entry_of(master_state.get("completeddrivers", ()), driver)
        return Unbegun(over=str(completed["state"]) if completed else GONE)
    if active["state"] != "SUBMITTED":
        return Unbegun()
    return Unbegun(waits_for=f"a worker with {active['cores']} free cores and {active['memory']} MiB")


def end(driver: ClusterDriver) -> None:
    """Ask the master to end a driver: its worker sends SIGTERM, and SIGKILL after 10 s.

    :raises OSError: the master's page does not answer, or refuses (``spark.ui.killEnabled``).
    """
    form = urllib.parse.urlencode({"id": driver.id, "terminate": "true"}).encode()
    ask(f"{driver.page}/driver/kill/", form)


def output(driver: ClusterDriver, start: int, size: int) -> tuple[bytes, int]:
    """Return up to ``size`` bytes of a driver's output from byte ``start`` on, by its worker's page, and the
    byte behind them.

    :raises OSError: a page does not answer.
    """
    head, text = _log(driver, start, size)
    text = text if head is not None and int(head[1]) == start else b""
    return text, start + len(text)


def near_end(driver: ClusterDriver, size: int) -> int:
    """Return the byte of a driver's output that has ``size`` bytes behind it, or 0 if it has less.

    :raises OSError: a page does not answer.
    """
    head, _ = _log(driver, 0, 1)
    return max(0, int(head[3]) - size) if head is not None else 0


def _log(driver: ClusterDriver, start: int, size: int) -> tuple[re.Match[bytes] | None, bytes]:
    master_state = read_json(f"{driver.page}/json/")
    entry = _entry_of(
        (*master_state.get("activedrivers", ()), *master_state.get("completeddrivers", ())), driver
    )
    worker = next((one for one in master_state["workers"] if entry and one["id"] == entry["worker"]), None)
    if worker is None:
        return None, b""
    query = {"driverId": driver.id, "logType": "stdout", "offset": start, "byteLength": size}
    text = ask(f"{worker['webuiaddress']}/log/?{urllib.parse.urlencode(query)}")
    head = _BYTES.match(text)
    return head, text[head.end() :] if head else b""


def _entry_of(drivers: Any, driver: ClusterDriver) -> dict[str, Any] | None:
    return next((entry for entry in drivers if entry["id"] == driver.id), None)
