"""What Kubernetes says of its drivers; tests/airflow/flow/test_cluster_mode.py runs pods."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from streamkeeper.clusters import cluster_drivers, kubernetes
from streamkeeper.drivers import submit
from streamkeeper.flows import leases
from streamkeeper.flows.files import open_home
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.settings import PROJECT
from tests.core.clusters.conftest import Submit
from tests.worlds.clusters.pages import Page, Pages
from tests.worlds.small_world import World

ENTRY_POINT = runpy.run_path(str(PROJECT / "docker" / "pod.py"), run_name="pod")
POD = "first-flow-0123456789abcdef-driver"
ID = f"streams:{POD}"
SAID = (
    "2026-11-24T13:00:00.000000001Z one\n2026-11-24T13:00:00.000000002Z two\n"
    "2026-11-24T14:00:01.5+01:00 three\n2026-11-24T13:00:02Z four\n"
)
RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-24T13:00:00Z"}}
OVER: dict[str, Any] = {"terminated": {"exitCode": 1}}


class Server(Pages):
    """An API server with one pod, which says what it is told to. ``asked`` has what it was asked for, and the
    token that came along.
    """

    def __init__(self) -> None:
        self.phase, self.container, self.spec = "Running", RUNNING, dict[str, Any]()
        self.conditions, self.metadata = list[dict[str, Any]](), dict[str, Any]()
        self.there, self.asked = True, list[tuple[str, str, str | None]]()
        self.given = ""
        server = self

        class API(Page):
            def do_GET(self) -> None:
                server.asked.append(("GET", self.path, self.headers.get("Authorization")))
                at = urlsplit(self.path)
                if at.path != f"/api/v1/namespaces/streams/pods/{POD}" and not at.path.endswith("/log"):
                    self.say(500, b"{}")
                elif not server.there:
                    self.say(404, b"{}")
                elif at.path.endswith("/log"):
                    asked = parse_qs(at.query)
                    assert asked["timestamps"] == ["True"]
                    lines = SAID.splitlines(keepends=True)
                    self.say(200, "".join(lines[-int(asked.get("tailLines", ["99"])[0]) :]).encode())
                else:
                    self.say(200, json.dumps(server.pod()).encode())

            def do_PATCH(self) -> None:
                server.asked.append(("PATCH", self.path, self.headers.get("Authorization")))
                server.given = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.say(200, json.dumps(server.pod()).encode())

        super().__init__(API)
        self.page = f"http://{self.place}"
        self.driver = ClusterDriver(self.page, ID)

    def pod(self) -> dict[str, Any]:
        told = {"name": "d", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{**told, "state": self.container}] if self.container else []
        spec = {"containers": [{"name": "d"}], **self.spec}
        status = {"phase": self.phase, "containerStatuses": statuses, "conditions": self.conditions}
        return {"metadata": self.metadata, "spec": spec, "status": status}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    found = Server()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("phase", "container", "spec", "state"),
    [
        ("Running", RUNNING, {}, None),
        ("Running", OVER, {}, None),
        ("Pending", {}, {}, None),
        ("Failed", RUNNING, {}, None),
        ("Failed", OVER, {}, "FAILED"),
        ("Failed", {}, {}, "FAILED"),
        ("Failed", OVER, {"activeDeadlineSeconds": 1}, "KILLED"),
        ("Succeeded", OVER, {}, "FINISHED"),
    ],
)
def test_an_end_is_what_the_kubelet_says_of_the_containers(
    server: Server, phase: str, container: dict[str, Any], spec: dict[str, Any], state: str | None
) -> None:
    """A controller alone calls pods of a lost node failed, whose containers may run on."""
    server.phase, server.container, server.spec = phase, container, spec
    assert cluster_drivers.ended(server.driver) == state


@pytest.mark.parametrize(
    ("phase", "metadata", "expected"),
    [
        ("Running", {}, None),
        ("Pending", {}, None),
        ("Failed", {}, "Failed"),
        ("Running", {"deletionTimestamp": "2026-11-24T13:00:00Z"}, "being removed"),
    ],
)
def test_a_pod_without_a_lease_is_over_by_anybody_s_word(
    server: Server, phase: str, metadata: dict[str, Any], expected: str | None
) -> None:
    server.phase, server.metadata = phase, metadata
    assert cluster_drivers.unbegun(server.driver).over == expected
    server.there = False
    assert cluster_drivers.unbegun(server.driver).over == cluster_drivers.GONE


UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}  # fmt: skip
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "i"'}}


@pytest.mark.parametrize(
    ("phase", "conditions", "container", "expected"),
    [
        ("Pending", [UNSCHEDULABLE], {}, "Unschedulable: 0/3 nodes are available: 3 Insufficient memory."),
        ("Pending", [], NO_IMAGE, 'ImagePullBackOff: Back-off pulling image "i"'),
        ("Pending", [], {}, "Pending"),
        ("Running", [UNSCHEDULABLE], RUNNING, None),
    ],
)
def test_a_pod_that_has_not_begun_says_what_it_waits_for(
    server: Server,
    phase: str,
    conditions: list[dict[str, Any]],
    container: dict[str, Any],
    expected: str | None,
) -> None:
    server.phase, server.conditions, server.container = phase, conditions, container
    found = cluster_drivers.unbegun(server.driver).waits_for
    assert found == (expected and f"a node to run its pod ({expected})")
    server.there = False
    assert cluster_drivers.unbegun(server.driver).waits_for is None


def test_a_pod_that_is_gone_proves_no_end_and_is_waited_for_no_longer(server: Server, world: World) -> None:
    home = open_home(world.settings, world.flow.full_name)
    lease = leases.acquire(home, 1, term=60, cluster=server.driver)
    server.there = False
    assert cluster_drivers.ended(server.driver) == cluster_drivers.GONE
    assert not cluster_drivers.note_end(home, lease)
    assert leases.life(home, lease) is not leases.Life.LEFT
    server.there, server.phase, server.container = True, "Succeeded", OVER
    assert cluster_drivers.note_end(home, lease)
    assert leases.life(home, lease) is leases.Life.LEFT


def test_a_server_that_does_not_answer_says_nothing(server: Server) -> None:
    assert cluster_drivers.ended_if_known(ClusterDriver("http://127.0.0.1:1", ID)) is None
    other = ClusterDriver(server.page, f"elsewhere:{POD}")
    with pytest.raises(OSError, match=r"refuses: 500"):
        cluster_drivers.ended(other)


def test_a_driver_is_ended_by_a_deadline_so_that_its_pod_stays(server: Server) -> None:
    cluster_drivers.end(server.driver)
    assert json.loads(server.given) == {"spec": {"activeDeadlineSeconds": 1}}
    assert [method for method, _, _ in server.asked] == ["PATCH"]


def test_the_log_is_read_on_by_the_times_of_its_lines(server: Server) -> None:
    lines, position = list[bytes](), 0
    while True:
        text, position = cluster_drivers.output(server.driver, position, 4)
        if not text:
            break
        lines.append(text)
    assert lines == [b"one\n", b"two\n", b"three\n", b"four\n"]
    assert position == 1795525202 * 10**9
    text, _ = cluster_drivers.output(server.driver, 0, 1000)
    assert text == b"one\ntwo\nthree\nfour\n"
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked]
    assert "sinceSeconds" not in asked[0]
    assert all(int(query["sinceSeconds"][0]) > 60 for query in asked[1:-1]), "clocks differ"
    for size, expected in ((0, b""), (5, b"four\n"), (11, b"three\nfour\n"), (99, text)):
        start = cluster_drivers.near_end(server.driver, size)
        assert cluster_drivers.output(server.driver, start, 1000)[0] == expected


def test_credentials_go_to_the_server_alone_that_they_are_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    user = {"name": "u", "user": {"token": "s3cr3t"}}

    def known(address: str) -> None:
        cluster = {"name": "c", "cluster": {"server": address}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        file.write_text(
            yaml.dump({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"})
        )

    known(f"{server.page}/")
    cluster_drivers.ended(server.driver)
    known("https://elsewhere:6443")
    cluster_drivers.ended(server.driver)
    assert [token for _, _, token in server.asked] == ["Bearer s3cr3t", None]


def test_a_pod_knows_the_server_within_its_own_cluster(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "namespace").write_text("streams")
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv(cluster_drivers.PAGE_VARIABLE, server.page)
    assert cluster_drivers.here() is None, "nobody named its pod"
    monkeypatch.setenv(kubernetes.POD_VARIABLE, POD)
    assert cluster_drivers.here() == server.driver
    cluster_drivers.ended(server.driver)
    assert server.asked[-1][2] is None, "it is no server of this cluster"


@pytest.mark.parametrize("name", ["first.first_flow", "Ä", "a" * 90, "x-" * 40])
def test_the_name_of_a_pod_is_a_label_and_another_one_each_time(name: str) -> None:
    made = kubernetes.pod_name(name)
    assert len(made) <= 63
    assert cluster_drivers.submitted_id(f"submission ID streams:{made} into Kubernetes") == f"streams:{made}"
    assert kubernetes.pod_name(name) != made


def test_a_submission_names_what_is_in_the_image_and_takes_no_secret_along(
    world: World, submission: Submit
) -> None:
    taken = submission("k8s://https://there:6443").by_cluster("https://there:6443", world.settings)
    assert str(taken.application) == f"local:{submit.JOB}"
    assert all(jar.startswith("local:///") for jar in taken.conf["spark.jars"].split(",") if jar)
    given = "spark.kubernetes.driverEnv."
    assert taken.conf[f"{given}STREAMKEEPER_STATE"] == str(world.root / "state")
    assert taken.conf[f"{given}{cluster_drivers.PAGE_VARIABLE}"] == "https://there:6443"
    name = taken.conf["spark.kubernetes.driver.pod.name"]
    assert taken.conf[f"{given}{kubernetes.POD_VARIABLE}"] == name
    assert taken.conf["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert not any("s3cr3t" in part for part in taken.command())


def test_an_image_runs_what_spark_gives_its_pods_and_any_other_command(tmp_path: Path) -> None:
    driver = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:/run_flow.py"]
    command = ENTRY_POINT["command"]
    line = command(driver, {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"}, tmp_path)
    assert line[0] == "spark-submit"
    assert line[line.index("--deploy-mode") :] == ["--deploy-mode", "client", *driver[1:]]
    assert "spark.driver.bindAddress=10.1.2.3" in line
    environment = {
        **{name: name.lower() for _, name in ENTRY_POINT["_NAMED"]},
        "SPARK_JAVA_OPT_10": "-Dlast=a b",
        "SPARK_JAVA_OPT_2": "-Dfirst",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "JAVA_HOME": "/java",
    }
    line = command(["executor"], environment, tmp_path)
    assert line[:5] == ["/java/bin/java", "-Dfirst", "-Dlast=a b", "-Xms512m", "-Xmx512m"]
    assert line[line.index("--driver-url") + 1] == "spark_driver_url"
    assert f"{tmp_path}/jars/*" in line
    assert command(["airflow", "scheduler"], {}, tmp_path) == ["airflow", "scheduler"]
