"""Kubernetes on this machine: an API server of the tests' own, whose pods podman runs as real containers.

The server keeps what it is given, holds each object against Kubernetes' own schemas, and answers lists,
watches and patches as Spark and its client ask for them. What a cluster adds to a pod is added: its account,
its address, and the names of services. Pods have no network of their own, but the host's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from streamkeeper.jars.java import find_java
from streamkeeper.settings import PROJECT
from tests.worlds.clusters.pages import Page, Pages
from tools.ports import free_ports

IMAGE = "localhost/streamkeeper-pods:tests"
NAMESPACE = "streams"
VERSION = "1.34"
"""Release of Kubernetes against whose schemas objects are held."""
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_LIMITS = '"nofile=20000:20000", "nproc=20000:20000"'
_CONF = f'[containers]\ndefault_ulimits = [{_LIMITS}]\n[engine]\nruntime = "runc"\n'
_KEPT = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "alternatives", "java-17-openjdk", "ssl/certs")
"""What the image has of this machine's ``/etc``; ``/usr`` is mounted."""
_OBJECT = re.compile(
    r"/apis?(?:/[a-z.0-9]+)?/v1/namespaces/[^/]+/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/[a-z]+)?"
)


_MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}


class LacksPodman(Exception):
    """This machine cannot run pods; the message says what to install."""


@dataclass
class Kubernetes:
    """A cluster. ``page`` is the address of its API server; ``objects`` has all that there is, by kind and
    name; ``invalid`` what its schemas refuse; ``store`` is podman's.
    """

    folder: Path
    store: str
    port: int
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    invalid: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 0

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def master(self) -> str:
        return f"k8s://{self.page}"

    def drivers(self) -> dict[str, str]:
        """Return the state of each driver, by its id."""
        states = {"Running": "RUNNING", "Pending": "RUNNING", "Succeeded": "FINISHED"}
        return {
            f"{NAMESPACE}:{name}": states.get(
                pod["status"]["phase"], "KILLED" if "activeDeadlineSeconds" in pod["spec"] else "FAILED"
            )
            for (kind, name), pod in list(self.objects.items())
            if kind == "pods" and pod["metadata"]["labels"]["spark-role"] == "driver"
        }

    def jvm_of(self, driver: str) -> str:
        """Return what the command line of a driver's JVM, and of no other process, matches."""
        return "^[^ ]*java .*SparkSubmit --deploy-mode client --conf spark.driver.bindAddress=.*run_flow"

    def defaults(self, shared: Path) -> str:
        """Return Spark's settings of the cluster: the image, and what its pods see of this machine.

        :param shared: a folder that pods see, for state, tables and pipelines.
        """
        python = Path(sys.executable).resolve().parents[1]
        seen = {
            "usr": Path("/usr"),
            "python": python,
            "project": PROJECT,
            "cache": (PROJECT / ".cache").resolve(),
        }
        lines = [
            f"spark.kubernetes.container.image {IMAGE}",
            f"spark.kubernetes.driver.master {self.page}",
            "spark.kubernetes.authenticate.driver.serviceAccountName spark",
            "spark.kubernetes.driverEnv.SPARK_PUBLIC_DNS 127.0.0.1",
            "spark.kubernetes.driver.request.cores 0.1",
            "spark.kubernetes.executor.request.cores 0.1",
            "spark.executor.instances 1",
            *(f"{name} {port}" for name, port in zip(
                ("spark.driver.port", "spark.driver.blockManager.port"), free_ports(2), strict=True
            )),
        ]  # fmt: skip
        for role in ("driver", "executor"):
            for name, path in {**seen, "shared": shared}.items():
                volume = f"spark.kubernetes.{role}.volumes.hostPath.{name}"
                lines += [
                    f"{volume}.mount.path {path}",
                    f"{volume}.mount.readOnly {str(name != 'shared').lower()}",
                    f"{volume}.options.path {path}",
                ]
        return "\n".join(lines)

    def put(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        """Keep an object as the newest of its name."""
        with self.changed:
            self.version += 1
            made["metadata"]["resourceVersion"] = str(self.version)
            self.objects[kind, made["metadata"]["name"]] = made
            self.changed.notify_all()
        return made

    def take(self, kind: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Keep a new object, and run it if it is a pod."""
        try:
            kubernetes_validate.validate(asked, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            self.invalid.append(f"{asked.get('kind')}: {error}")
        name = asked["metadata"]["name"]
        asked["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{name}", "creationTimestamp": _now()}
        if kind != "pods":
            return self.put(kind, asked)
        asked["status"] = {"phase": "Pending"}
        made = self.put(kind, asked)
        threading.Thread(target=self._run, args=(made,), daemon=True).start()
        return made

    def podman(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run podman on storage of the tests' own."""
        places = (
            "--root",
            f"{self.store}/root",
            "--runroot",
            f"{self.store}/run",
            "--cgroup-manager",
            "cgroupfs",
        )
        return subprocess.run(
            ["podman", *places, *words],
            env={**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf")},
            input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip

    def log(self, name: str, asked: dict[str, list[str]]) -> bytes:
        """Return the output of a pod, as its server would."""
        since = ["--since", f"{asked['sinceSeconds'][0]}s"] if "sinceSeconds" in asked else []
        tail = ["--tail", asked["tailLines"][0]] if "tailLines" in asked else []
        stamps = ["--timestamps"] if asked.get("timestamps", ["false"])[0].lower() == "true" else []
        return self.podman("logs", *stamps, *since, *tail, _container(self.objects["pods", name])).stdout

    def stop(self, name: str) -> None:
        """End a pod as a kubelet does: SIGTERM, and SIGKILL after its grace."""
        pod = self.objects["pods", name]
        grace = str(pod["spec"].get("terminationGracePeriodSeconds", 30))
        threading.Thread(
            target=self.podman, args=("stop", "--time", grace, _container(pod)), daemon=True
        ).start()

    def delete(self, kind: str, name: str) -> None:
        """Remove an object, a pod with its container."""
        if kind == "pods":
            self.podman("pod", "rm", "--force", "--time", "5", name)
        with self.changed:
            self.objects.pop((kind, name), None)
            self.changed.notify_all()

    def _run(self, pod: dict[str, Any]) -> None:
        """Run a pod to its end, and say what its container says."""
        name = pod["metadata"]["name"]
        mounted = _mounted(pod)
        with self.changed:
            self.changed.wait_for(lambda: mounted <= {*self.objects})
        ran = self.podman("kube", "play", "--log-driver", "k8s-file", "-", data=self._played(pod))
        (self.folder / f"{name}.played").write_bytes(ran.stdout)
        while ("pods", name) in self.objects:
            found = self.podman("inspect", "--format", "{{json .State}}", _container(pod))
            state = json.loads(found.stdout) if not found.returncode else {"Status": "lost", "ExitCode": 128}
            over = state["Status"] not in ("created", "configured", "initialized", "running", "stopping")
            status = _status(pod, state, over)
            if status != self.objects["pods", name].get("status"):
                self.put("pods", {**self.objects["pods", name], "status": status})
            if over:
                (self.folder / f"{name}.log").write_bytes(found.stdout + self.log(name, {}))
                return
            time.sleep(0.5)

    def _played(self, pod: dict[str, Any]) -> bytes:
        """Return a pod for podman, with what a cluster would add, and the configuration that it mounts."""
        found = deepcopy(pod)
        spec = found["spec"]
        found.pop("status", None)
        spec["hostNetwork"] = True
        names = [name for kind, name in self.objects if kind == "services"]
        names = [
            pod["metadata"]["name"],
            "localhost",
            *(part for name in names for part in (name, f"{name}.{NAMESPACE}.svc")),
        ]
        hosts = self.folder / f"{names[0]}.hosts"
        hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in names))
        seen = {"account": (self.folder / "account", _ACCOUNT), "hosts": (hosts, "/etc/hosts")}
        for name, (path, _) in seen.items():
            spec["volumes"].append({"name": name, "hostPath": {"path": str(path)}})
        for container in spec["containers"]:
            container.pop("ports", None)  # they are the host's
            container["volumeMounts"] += [
                {"name": name, "mountPath": place, "readOnly": True} for name, (_, place) in seen.items()
            ]
            for variable in container["env"]:
                by = variable.pop("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                if by is not None:
                    variable["value"] = {
                        "status.podIP": "127.0.0.1",
                        "metadata.name": pod["metadata"]["name"],
                    }[by]
        maps = [self.objects[at] for at in sorted(_mounted(pod))]
        return "\n---\n".join(json.dumps(part) for part in (*maps, found)).encode()


@contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    """Run a cluster until the block ends.

    :raises LacksPodman: podman, or what it runs pods by, is not there, or cannot run here.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "runc", "catatonit"))):
        raise LacksPodman(
            "Pods need root and podman. Debian: apt-get install --no-install-recommends podman runc netavark"
            " aardvark-dns catatonit iptables."
        )
    (folder / "containers.conf").write_text(_CONF)
    (folder / "account").mkdir()
    (folder / "account" / "namespace").write_text(NAMESPACE)
    (folder / "account" / "token").write_text("of-the-tests")
    # A short path, as podman demands, and not below /tmp of a container: overlays do not stack everywhere.
    with tempfile.TemporaryDirectory(prefix="pods-", dir="/var/tmp", ignore_cleanup_errors=True) as store:
        made = Kubernetes(folder, store, free_ports(1)[0])
        _import_image(made)
        server = Pages(_handler(made), made.port)
        try:
            yield made
        finally:
            made.podman("pod", "rm", "--all", "--force", "--time", "1")
            server.close()


def _import_image(cluster: Kubernetes) -> None:
    """Make an image that has this machine's programs by mounts alone, and the entry point of ours."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as image:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            image.addfile(link)
        for name in ("tmp", "var", "usr", "etc", "proc", "sys", "dev", "opt/spark/work-dir"):
            made = tarfile.TarInfo(name)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            image.addfile(made)
        for name in _KEPT:
            if (Path("/etc") / name).exists():
                image.add(Path("/etc") / name, f"etc/{name}")
        image.add(PROJECT / "docker" / "pod.py", "opt/pod.py")
    python = f"{Path(sys.executable).parent}"
    home = Path(find_java()).resolve().parents[1]
    changes = (
        f'ENTRYPOINT ["{sys.executable}", "/opt/pod.py"]',
        f"ENV PATH={python}:/usr/bin:/bin",
        f"ENV JAVA_HOME={home}",
        f"ENV PYTHONPATH={PROJECT}",
        "ENV HOME=/tmp",
    )
    flags = [part for change in changes for part in ("--change", change)]
    answer = cluster.podman("import", *flags, "-", IMAGE, data=packed.getvalue())
    if answer.returncode:
        raise LacksPodman(f"podman cannot make an image here:\n{answer.stdout.decode()[-2000:]}")


def _mounted(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Return kind and name of each configuration that a pod mounts."""
    volumes = pod["spec"]["volumes"]
    return {("configmaps", volume["configMap"]["name"]) for volume in volumes if "configMap" in volume}


def _container(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['name']}-{pod['spec']['containers'][0]['name']}"


def _status(pod: dict[str, Any], state: dict[str, Any], over: bool) -> dict[str, Any]:
    """Return what a kubelet would report of a pod's only container."""
    code = int(state["ExitCode"])
    told: dict[str, Any] = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    if not over:
        told = {"running": {"startedAt": _now()}} if state["Status"] == "running" else {"waiting": {}}
    before = pod.get("status", {}).get("containerStatuses", [{}])[0].get("state", {})
    if "running" in told and "running" in before:
        told = before
    container = pod["spec"]["containers"][0]
    running = "running" in told
    return {
        "phase": ("Failed" if code else "Succeeded") if over else "Running" if running else "Pending",
        "podIP": "127.0.0.1",
        "conditions": [{"type": "Ready", "status": str(running).capitalize()}],
        "containerStatuses": [
            {
                "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                "ready": running, "state": told,
            }
        ],
    }  # fmt: skip


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fits(made: dict[str, Any], selector: str) -> bool:
    """Return whether an object has the labels that a selector asks for."""
    labels = made["metadata"].get("labels") or {}
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        if at := re.fullmatch(r"([^!=\s]+)\s*(!=|==?)\s*(.*)", part):
            if (labels.get(at[1]) == at[3]) != (at[2] != "!="):
                return False
        elif at := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", part):
            if (labels.get(at[1]) in at[3].split(",")) != (at[2] == "in"):
                return False
        elif (part.lstrip("!") in labels) == part.startswith("!"):
            return False
    return True


def _merged(before: Any, patch: Any) -> Any:
    """Return an object with a merge patch (RFC 7386) applied."""
    if not isinstance(patch, dict) or not isinstance(before, dict):
        return patch
    merged = {**before, **{name: _merged(before.get(name), value) for name, value in patch.items()}}
    return {name: value for name, value in merged.items() if value is not None}


def _handler(cluster: Kubernetes) -> type[Page]:
    class API(Page):
        protocol_version = "HTTP/1.1"

        def _asked(self) -> tuple[str, str | None, dict[str, list[str]], dict[str, Any]]:
            """Return the kind and the name that are asked for, the query and the body."""
            asked = urlsplit(self.path)
            at = _OBJECT.fullmatch(asked.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind, name = (at["kind"], at["name"]) if at else ("", None)
            return kind, name, parse_qs(asked.query), json.loads(body) if body.strip() else {}

        def do_POST(self) -> None:
            kind, _, _, given = self._asked()
            self._say(201, cluster.take(kind, given))

        def do_GET(self) -> None:
            kind, name, query, _ = self._asked()
            if name is None:
                self._list(kind, query)
            elif (kind, name) not in cluster.objects:
                self._say(404, _MISSING)
            elif urlsplit(self.path).path.endswith("/log"):
                self.say(200, cluster.log(name, query), "text/plain")
            else:
                self._say(200, cluster.objects[kind, name])

        def do_PATCH(self) -> None:
            kind, name, _, given = self._asked()
            known = cluster.objects.get((kind, str(name)))
            if known is None:
                self._say(201, cluster.take(kind, given))
                return
            made = cluster.put(kind, _merged(known, given))
            if kind == "pods" and "activeDeadlineSeconds" in given.get("spec", {}):
                cluster.stop(str(name))
            self._say(200, made)

        def do_DELETE(self) -> None:
            kind, name, query, _ = self._asked()
            for one in self._found(kind, query, name):
                cluster.delete(kind, one["metadata"]["name"])
            self._say(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _found(
            self, kind: str, query: dict[str, list[str]], name: str | None = None
        ) -> list[dict[str, Any]]:
            selector, only = query.get("labelSelector", [""])[0], query.get("fieldSelector", [""])[0]
            name = name or only.removeprefix("metadata.name=")
            return [
                made
                for (of, called), made in list(cluster.objects.items())
                if of == kind and name in ("", called) and _fits(made, selector)
            ]

        def _list(self, kind: str, query: dict[str, list[str]]) -> None:
            if query.get("watch", ["false"])[0] == "true":
                self._watch(kind, query)
                return
            listed = {"pods": "PodList", "persistentvolumeclaims": "PersistentVolumeClaimList"}.get(
                kind, "List"
            )
            known = {
                "kind": listed,
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(cluster.version)},
            }
            self._say(200, {**known, "items": self._found(kind, query)})

        def _watch(self, kind: str, query: dict[str, list[str]]) -> None:
            """Tell of each change until the client goes; over HTTP, as behind a proxy without web sockets."""
            if self.headers.get("Upgrade"):
                self.say(200)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            told: dict[str, str] = {}
            until = time.monotonic() + 3600
            try:
                while time.monotonic() < until:
                    found = {one["metadata"]["name"]: one for one in self._found(kind, query)}
                    for name, one in found.items():
                        version = one["metadata"]["resourceVersion"]
                        if told.get(name) != version:
                            self._chunk("MODIFIED" if name in told else "ADDED", one)
                            told[name] = version
                    for name in {*told} - {*found}:
                        self._chunk(
                            "DELETED", {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}}
                        )
                        del told[name]
                    with cluster.changed:
                        cluster.changed.wait(1.0)
            except OSError:
                pass  # the client went
            self.close_connection = True

        def _chunk(self, what: str, made: dict[str, Any]) -> None:
            line = json.dumps({"type": what, "object": made}).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()

        def _say(self, code: int, made: dict[str, Any]) -> None:
            self.say(code, json.dumps(made).encode())

        def log_message(self, text: str, *parts: object) -> None:
            with (cluster.folder / "api.log").open("a") as log:
                log.write(text % parts + "\n")

    return API
