"""YARN: what a resource manager says of the applications whose drivers it runs, and how it ends one.

It is asked by its REST interface (``yarn.resourcemanager.webapp.address``, 8088). What it says of an end is
proven by the node alone on which the driver's container ran, since the resource manager also gives up
applications of nodes that it does not hear any more, whose processes may run on.

What asks YARN raises :class:`OSError` where a page does not answer.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
from dataclasses import dataclass

from streamkeeper.clusters.pages import GONE, Unbegun, read_json
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.web import ask

ID = re.compile(r"application_[0-9]{13}_[0-9]{4,}")
AWAITED = "spark.yarn.submit.waitAppCompletion"
"""Setting by which spark-submit stays until the end of its application."""
ATTEMPTS = "spark.yarn.maxAppAttempts"
"""Setting of how often YARN itself starts a driver: a second one would fight a park."""
CODE = "spark.yarn.dist.pyFiles"
"""Setting of Python files that go along; spark-submit adds those that a flow declares."""
ENVIRONMENT = "spark.yarn.appMasterEnv."
"""Prefix of the settings by which a driver gets variables of the environment."""
_CONTAINER = re.compile(r"container_(?:e[0-9]+_)?([0-9]{13}_[0-9]{4,})_[0-9]+_[0-9]+")
_ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of an application that is over, and below of a container."""
_OVER = ("COMPLETE", "DONE")
_HEAD = re.compile(rb"\nLogLength:([0-9]+)\nLogContents:\n")
"""Ends what a node says before the content of a log; behind it comes more."""


@dataclass(frozen=True)
class _Attempt:
    """An attempt of an application: the address of its node's pages, and the container of its driver."""

    node: str
    container: str

    @property
    def page(self) -> str:
        return f"{self.node}/ws/v1/node/containers/{self.container}"


def own_id() -> str | None:
    """Return the id of the application whose driver this process is: its container is named after it."""
    match = _CONTAINER.fullmatch(os.environ.get("CONTAINER_ID", ""))
    return f"application_{match[1]}" if match else None


def ended(driver: ClusterDriver) -> str | None:
    """Return the state in which a driver ended; None unless its node, too, says that it is over.

    :raises OSError: the resource manager or the node does not answer.
    """
    application = read_json(_application(driver))["app"]
    if application["state"] not in _ENDED:
        return None
    if not all(_is_over(attempt) for attempt in _attempts(driver)):
        return None
    succeeded = application["state"] == "FINISHED" and application["finalStatus"] == "SUCCEEDED"
    return "FINISHED" if succeeded else "KILLED" if application["state"] == "KILLED" else "FAILED"


def unbegun(driver: ClusterDriver) -> Unbegun:
    """Return what the resource manager says of an application whose driver has no lease: it is over if it
    does not run any more, or is not known.

    :raises OSError: it does not answer.
    """
    try:
        application = read_json(_application(driver))["app"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return Unbegun(over=GONE)
    state = str(application["state"])
    if state in _ENDED:
        return Unbegun(over=state)
    if state not in ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"):
        return Unbegun()
    diagnostics = " ".join(str(application.get("diagnostics") or "").split())
    return Unbegun(waits_for=f"a container ({state}{f': {diagnostics}' if diagnostics else ''})")


def end(driver: ClusterDriver) -> None:
    """Ask the resource manager to end an application: its nodes send SIGTERM, and SIGKILL soon after.

    :raises OSError: it does not answer, or refuses.
    """
    form = json.dumps({"state": "KILLED"}).encode()
    ask(f"{_application(driver)}/state", form, {"Content-Type": "application/json"}, method="PUT")


def output(driver: ClusterDriver, start: int, size: int) -> tuple[bytes, int]:
    """Return up to ``size`` bytes of a driver's output from byte ``start`` on, by its node, and the byte
    behind them.
    """
    text = _output(driver, start)[:size]
    return text, start + len(text)


def near_end(driver: ClusterDriver, size: int) -> int:
    """Return the byte of a driver's output that has ``size`` bytes behind it, or 0 if it has less."""
    attempt = _newest(driver)
    return max(0, _size(attempt) - size) if attempt else 0


def _output(driver: ClusterDriver, start: int) -> bytes:
    """Return all of a driver's output from byte ``start`` on."""
    attempt = _newest(driver)
    length = _size(attempt) if attempt else 0
    while attempt is not None and start < length:
        # A node gives the beginning or, by a negative size, the end; never a part between them.
        size = length - start
        text = ask(f"{attempt.page}/logs/stdout?size={-size}")
        head = _HEAD.search(text)
        if head is None:
            return b""
        length = int(head[1])
        begins = length - min(size, length)
        if begins <= start:
            return text[head.end() + start - begins : head.end() + min(size, length)]
        # It has grown since its length was asked for: what is given begins too late.
    return b""


def _application(driver: ClusterDriver) -> str:
    return f"{driver.page}/ws/v1/cluster/apps/{driver.id}"


def _attempts(driver: ClusterDriver) -> list[_Attempt]:
    """Return the attempts of an application that got a container, the oldest first."""
    attempts = read_json(f"{_application(driver)}/appattempts")["appAttempts"]["appAttempt"]
    return [
        _Attempt(f"http://{one['nodeHttpAddress']}", one["containerId"])
        for one in sorted(attempts, key=lambda one: int(one["id"]))
        if one.get("containerId") and one.get("nodeHttpAddress")
    ]


def _newest(driver: ClusterDriver) -> _Attempt | None:
    return next(iter(_attempts(driver)[::-1]), None)


def _is_over(attempt: _Attempt) -> bool:
    """Return whether a node says that a container's processes are gone."""
    try:
        return bool(read_json(attempt.page)["container"]["state"] in _OVER)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return True  # it forgets a container once that is over


def _size(attempt: _Attempt) -> int:
    try:
        logs = read_json(f"{attempt.page}/logs")
    except urllib.error.HTTPError:
        return 0  # it has written nothing yet, or the node has removed its log
    files = logs["containerLogsInfo"]["containerLogInfo"]
    return next((int(file["fileSize"]) for file in files if file["fileName"] == "stdout"), 0)
