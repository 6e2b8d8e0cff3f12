"""What YARN says of its drivers; tests/airflow/flow/test_cluster_mode.py asks a real one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamkeeper.clusters import cluster_drivers, packed_code
from streamkeeper.drivers import submit
from streamkeeper.errors import SettingsError
from streamkeeper.flows.leases import ClusterDriver
from tests.core.clusters.conftest import Submit
from tests.worlds.clusters.pages import Page, Pages
from tests.worlds.small_world import World

ID, CONTAINER = "application_1795518870000_0007", "container_e17_1795518870000_0007_01_000001"
SAID = b"generation 1, batch 0\ngeneration 1, batch 1\n"


class Cluster(Pages):
    """Pages of a resource manager, and of its only node, that say what they are told to. ``container`` is
    None where the node knows it no more, and ``silent`` is a node that does not answer.
    """

    def __init__(self) -> None:
        self.state, self.final = "RUNNING", "UNDEFINED"
        self.container: str | None = "RUNNING"
        self.silent, self.asked = False, list[str]()
        self.grown = b""
        cluster = self

        class Told(Page):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                answer = cluster.answer(path, query)
                self.say(200 if answer is not None else 404, answer or b"")

            def do_PUT(self) -> None:
                cluster.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.say(202)

        super().__init__(Told)
        self.driver = ClusterDriver(f"http://{self.place}", ID)

    def answer(self, path: str, query: str) -> bytes | None:
        application, node = f"/ws/v1/cluster/apps/{ID}", f"/ws/v1/node/containers/{CONTAINER}"
        files = [{"fileName": "stderr", "fileSize": "9"}, {"fileName": "stdout", "fileSize": str(len(SAID))}]
        place = "127.0.0.1:1" if self.silent else self.place  # nobody listens there
        attempt = {"id": 1, "containerId": CONTAINER, "nodeHttpAddress": place}
        known: dict[str, object] = {
            application: {
                "app": {
                    "state": self.state,
                    "finalStatus": self.final,
                    "diagnostics": "Queue's AM resource limit \n exceeded.",
                }
            },
            f"{application}/appattempts": {"appAttempts": {"appAttempt": [attempt]}},
            f"{node}/logs": {"containerLogsInfo": {"containerLogInfo": files}},
        }
        if self.container is not None:
            known[node] = {"container": {"state": self.container}}
        if path == f"{node}/logs/stdout":
            said = SAID + self.grown
            head = f"Container: {CONTAINER}\nLogType:stdout\nLogLength:{len(said)}\nLogContents:\n"
            return head.encode() + said[int(query.removeprefix("size=")) :] + b"\nEnd of LogType:stdout."
        return json.dumps(known[path]).encode() if path in known else None


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("state", "final", "container", "ended"),
    [
        ("ACCEPTED", "UNDEFINED", "RUNNING", None),
        ("RUNNING", "UNDEFINED", "RUNNING", None),
        ("FINISHED", "SUCCEEDED", None, "FINISHED"),
        ("FINISHED", "FAILED", None, "FAILED"),
        ("FAILED", "FAILED", "COMPLETE", "FAILED"),
        ("KILLED", "KILLED", None, "KILLED"),
        ("KILLED", "KILLED", "RUNNING", None),
    ],
)
def test_an_end_is_proven_by_the_node_alone(
    cluster: Cluster, state: str, final: str, container: str | None, ended: str | None
) -> None:
    cluster.state, cluster.final, cluster.container = state, final, container
    assert cluster_drivers.ended(cluster.driver) == ended


def test_an_application_without_a_lease_is_over_by_the_resource_manager_s_word(cluster: Cluster) -> None:
    cluster.silent = True
    assert cluster_drivers.unbegun(cluster.driver).over is None
    cluster.state = cluster.final = "FAILED"
    assert cluster_drivers.unbegun(cluster.driver).over == "FAILED"
    other = ClusterDriver(cluster.driver.page, "application_1795518870000_0008")
    assert cluster_drivers.unbegun(other).over == cluster_drivers.GONE


def test_an_application_that_has_no_container_waits_for_one(cluster: Cluster) -> None:
    assert cluster_drivers.unbegun(cluster.driver).waits_for is None
    cluster.state = "ACCEPTED"
    assert cluster_drivers.unbegun(cluster.driver).waits_for == (
        "a container (ACCEPTED: Queue's AM resource limit exceeded.)"
    )


def test_an_application_of_a_node_that_does_not_answer_may_run_on(cluster: Cluster) -> None:
    cluster.state = cluster.final = "FAILED"
    cluster.silent = True
    assert cluster_drivers.ended_if_known(cluster.driver) is None


def test_a_driver_is_ended_by_the_resource_manager(cluster: Cluster) -> None:
    cluster_drivers.end(cluster.driver)
    assert [json.loads(text) for text in cluster.asked] == [{"state": "KILLED"}]


@pytest.mark.parametrize(("start", "size"), [(0, 4), (0, 1000), (22, 1000), (22, 5), (len(SAID), 10)])
def test_the_output_is_read_from_where_it_was_read_to(cluster: Cluster, start: int, size: int) -> None:
    assert cluster_drivers.near_end(cluster.driver, 5) == len(SAID) - 5
    text = SAID[start : start + size]
    assert cluster_drivers.output(cluster.driver, start, size) == (text, start + len(text))


def test_no_output_is_left_out_where_it_grows_while_it_is_asked_for(cluster: Cluster) -> None:
    cluster.grown = b"generation 1, batch 2\n"
    assert cluster_drivers.output(cluster.driver, 22, 1000)[0] == (SAID + cluster.grown)[22:]


def test_a_driver_knows_itself_by_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster_drivers.PAGE_VARIABLE, "http://m:8088")
    for container in (CONTAINER, CONTAINER.replace("e17_", "")):
        monkeypatch.setenv("CONTAINER_ID", container)
        assert cluster_drivers.here() == ClusterDriver("http://m:8088", ID)
    monkeypatch.setenv("CONTAINER_ID", "something else")
    assert cluster_drivers.here() is None


def test_the_id_is_the_last_that_spark_submit_names() -> None:
    said = f"state of application_1795518870000_0001\nSubmitted application {ID}\n"
    assert cluster_drivers.submitted_id(said) == ID
    assert (
        cluster_drivers.submitted_id("driver-20261123010203-0007 is RUNNING") == "driver-20261123010203-0007"
    )
    assert cluster_drivers.submitted_id("no") is None


def test_a_submission_takes_code_and_settings_along_and_no_secret(world: World, submission: Submit) -> None:
    job = submission(submit.YARN)
    assert job.environment["AWS_SECRET_ACCESS_KEY"] == "s3cr3t"
    taken = job.by_cluster("http://m:8088", world.settings)
    given = "spark.yarn.appMasterEnv."
    assert taken.conf[f"{given}STREAMKEEPER_STATE"] == str(world.root / "state")
    assert taken.conf[f"{given}{cluster_drivers.PAGE_VARIABLE}"] == "http://m:8088"
    assert (taken.conf["spark.yarn.maxAppAttempts"], taken.conf["spark.yarn.submit.waitAppCompletion"]) == (
        "1",
        "false",
    )
    assert taken.application == submit.JOB
    assert not any("s3cr3t" in part for part in taken.command())
    with zipfile.ZipFile(taken.conf["spark.yarn.dist.pyFiles"]) as code:
        names = code.namelist()
    assert {"streamkeeper/settings.py", "streamkeeper_jobs/driver/application.py"} <= {*names}
    assert not any("__pycache__" in name for name in names)


def test_code_is_packed_once_and_not_where_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    packed = packed_code.packed_code()
    before = packed.stat().st_mtime_ns
    assert packed_code.packed_code() == packed
    assert packed.stat().st_mtime_ns == before
    packed.parent.chmod(0o777)
    with pytest.raises(SettingsError, match="others may write to it"):
        packed_code.packed_code()
