"""Kubernetes: what an API server says of the pods that run drivers, and how it ends one.

Spark makes one pod a driver, which is never restarted (``restartPolicy: Never``). Its end is proven by the
kubelet, which reports each container of the pod as terminated. A pod that is gone, or whose node is lost,
proves nothing. So a driver is ended by a deadline (``activeDeadlineSeconds``), not by a delete: the pod
stays, with its end and its log. Credentials are those of spark-submit: a context of the kubeconfig whose
server is the cluster's, or the account of the pod that asks.

What asks the API server raises :class:`OSError` where that does not answer, or refuses.
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkeeper.clusters.pages import GONE, Unbegun
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.web import ANSWER, MOST

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, V1Pod

MASTER = "k8s://"
"""Scheme of the masters; behind it is the address of the API server."""
ID = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?:[a-z0-9][a-z0-9-]*-[0-9a-f]{16}-driver")
"""Namespace and pod, as spark-submit names a submission. The pod's name is :func:`pod_name`'s."""
POD_NAME = "spark.kubernetes.driver.pod.name"
POD_VARIABLE = "STREAMKEEPER_DRIVER_POD"
"""Variable by which a driver learns the name of its pod, which is not always its host's."""
AWAITED = "spark.kubernetes.submission.waitAppCompletion"
"""Setting by which spark-submit stays until the end of its driver."""
ENVIRONMENT = "spark.kubernetes.driverEnv."
"""Prefix of the settings by which a driver gets variables of the environment."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LONGEST = 63
"""Characters of a label, which names of pods must fit."""
_SKEW = 60
"""Seconds by which the clocks of this host and of the API server may differ."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
_SECOND = 10**9


def pod_name(application: str) -> str:
    """Return a name for the pod of an application's driver, another one at each call."""
    unique = f"-{os.urandom(8).hex()}-driver"
    plain = re.sub(r"[^a-z0-9]+", "-", application.lower()).strip("-")
    return f"{plain[: _LONGEST - len(unique)].strip('-') or 'flow'}{unique}"


def own_id() -> str | None:
    """Return namespace and name of the pod that this process is in, if a submission of ours named it."""
    name, file = os.environ.get(POD_VARIABLE), _ACCOUNT / "namespace"
    return f"{file.read_text().strip()}:{name}" if name and file.exists() else None


def ended(driver: ClusterDriver) -> str | None:
    """Return the state in which a driver ended; None if no kubelet says that it did, :data:`GONE` if its pod
    is not there any more.
    """
    pod = _pod(driver)
    if pod is None:
        return GONE
    status = pod.status
    if status.phase not in ("Succeeded", "Failed") or any(
        container.state is None or container.state.terminated is None
        for container in status.container_statuses or ()
    ):
        return None
    if status.phase == "Succeeded":
        return "FINISHED"
    return "KILLED" if pod.spec.active_deadline_seconds is not None else "FAILED"


def unbegun(driver: ClusterDriver) -> Unbegun:
    """Return what the API server says of a pod whose driver has no lease: it is over if the pod has ended by
    anybody's word, is being removed, or is not there.
    """
    pod = _pod(driver)
    if pod is None:
        return Unbegun(over=GONE)
    if pod.status.phase in ("Succeeded", "Failed"):
        return Unbegun(over=str(pod.status.phase))
    if pod.metadata is not None and pod.metadata.deletion_timestamp:
        return Unbegun(over="being removed")
    if pod.status.phase != "Pending":
        return Unbegun()
    unmet = [one for one in pod.status.conditions or () if one.status == "False" and one.reason]
    waiting = [
        container.state.waiting
        for container in pod.status.container_statuses or ()
        if container.state is not None and container.state.waiting is not None
    ]
    reasons = dict.fromkeys(
        f"{one.reason}: {one.message}" if one.message else one.reason for one in waiting + unmet
    )
    return Unbegun(waits_for=f"a node to run its pod ({'; '.join(reasons) or 'Pending'})")


def end(driver: ClusterDriver) -> None:
    """Have a driver's pod end at once: its kubelet sends SIGTERM, and SIGKILL after the grace period."""
    with _pod_api(driver) as (api, at):
        api.patch_namespaced_pod(**at, body={"spec": {"activeDeadlineSeconds": 1}}, _request_timeout=ANSWER)


def output(driver: ClusterDriver, start: int, size: int) -> tuple[bytes, int]:
    """Return whole lines of a driver's output from a position on, of ``size`` bytes or a line, and the
    position behind them. A position is the time of the last line before it, in nanoseconds since 1970.
    """
    text, position = b"", start
    age = max(1, int(time.time() - start / _SECOND)) + _SKEW
    for stamp, line in _lines(driver, **({"since_seconds": age} if start else {})):
        if stamp <= start:
            continue
        if text and len(text) + len(line) > size and stamp != position:
            break
        text, position = text + line, stamp
    return text, position


def near_end(driver: ClusterDriver, size: int) -> int:
    """Return the position of a driver's output that has ``size`` bytes behind it, or 0 if it has less."""
    remaining = size
    # A line has a byte at least.
    for stamp, line in reversed([*_lines(driver, tail_lines=size + 1)]):
        remaining -= len(line)
        if remaining < 0:
            return stamp
    return 0


def _lines(driver: ClusterDriver, **part: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a driver's output with their times.

    :param part: which of those that are kept, as the API names it: ``since_seconds``, ``tail_lines``.
    """
    with _pod_api(driver) as (api, at):
        answer = api.read_namespaced_pod_log(
            **at, **part, timestamps=True, _preload_content=False, _request_timeout=ANSWER
        )
        text: bytes = answer.read(MOST)
    stamp = 0
    for line in text.splitlines(keepends=True):
        match = _STAMP.match(line)
        if match is not None:
            stamp = _nanoseconds(match)
        yield stamp, line[match.end() :] if match else line


def _nanoseconds(stamp: re.Match[bytes]) -> int:
    seconds = calendar.timegm(time.strptime(stamp[1].decode(), "%Y-%m-%dT%H:%M:%S"))
    zone = stamp[3].decode()
    if zone != "Z":
        ahead = 3600 * int(zone[1:3]) + 60 * int(zone[4:])
        seconds -= ahead if zone[0] == "+" else -ahead
    return seconds * _SECOND + int((stamp[2] or b"").ljust(9, b"0"))


def _pod(driver: ClusterDriver) -> V1Pod | None:
    try:
        with _pod_api(driver) as (api, at):
            return api.read_namespaced_pod(**at, _request_timeout=ANSWER)
    except FileNotFoundError:
        return None


@contextmanager
def _pod_api(driver: ClusterDriver) -> Iterator[tuple[CoreV1Api, dict[str, Any]]]:
    """Yield the API of a driver's cluster, and where its pod is. What goes wrong in the block is an
    :class:`OSError`; a pod that is not there is a :class:`FileNotFoundError`.
    """
    # Loading its modules takes a second, which only those pay who have such a cluster.
    from kubernetes.client import ApiClient, ApiException, CoreV1Api
    from urllib3.exceptions import HTTPError

    namespace, _, name = driver.id.partition(":")
    with ApiClient(_configuration(driver.page)) as client:
        try:
            yield CoreV1Api(client), {"name": name, "namespace": namespace}
        except ApiException as error:
            if error.status == 404:
                raise FileNotFoundError(f"{driver.page} has no pod {driver.id}") from error
            raise OSError(f"{driver.page} refuses: {error.status} {error.reason}") from error
        except HTTPError as error:
            raise OSError(f"{driver.page} does not answer: {error}") from error


def _configuration(page: str) -> Any:
    """Return how a server is asked. Credentials go only to the server that they are for, not to a lease's."""
    from kubernetes.client import Configuration
    from kubernetes.config import load_incluster_config, load_kube_config

    made = Configuration()
    context = _context_of(page)
    if context is not None:
        load_kube_config(context=context, client_configuration=made)
    elif (_ACCOUNT / "token").exists() and page in _servers_within():
        load_incluster_config(client_configuration=made)
    made.host, made.retries = page, False
    return made


def _context_of(page: str) -> str | None:
    """Return the context of the kubeconfig with a server, the current one first."""
    from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigMerger

    kubeconfig = KubeConfigMerger(KUBE_CONFIG_DEFAULT_LOCATION).config
    kubeconfig = kubeconfig.value if kubeconfig is not None else {}
    servers = {
        one["name"]: str(one["cluster"].safe_get("server")) for one in kubeconfig.get("clusters") or ()
    }
    fit = [
        one["name"]
        for one in kubeconfig.get("contexts") or ()
        if servers.get(one["context"]["cluster"], "").rstrip("/") == page
    ]
    current = kubeconfig.get("current-context")
    return current if current in fit else next(iter(fit), None)


def _servers_within() -> set[str]:
    """Return the addresses of the API server for pods of its cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    names = ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kubernetes.default", host)
    return {f"https://{name}{end}" for name in names if name for end in ("", f":{port}")}
