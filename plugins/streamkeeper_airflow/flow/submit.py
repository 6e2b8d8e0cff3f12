"""The spark-submit command and environment of every job, from an Airflow connection.

The Spark provider's hook knows masters, deploy modes, queues, keytabs and their connection fields.
streamkeeper.drivers.submit knows what is submitted, and with which settings on which master. A driver must
outlive its supervisor, for which the hook cannot start it: only the hook's command is used. The private parts
of the hook that this needs are pinned in tests/airflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowRuntimeError

from streamkeeper.clusters import cluster_drivers, kubernetes
from streamkeeper.drivers import submit
from streamkeeper.drivers.submit import Submission
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.support.connections import discard
from streamkeeper_airflow.flow.connections import handed

if not hasattr(spark_submit, "kube_client"):
    # For k8s:// masters the hook asks whether the provider of Kubernetes is there. We need nothing of it, and
    # its import takes each parsed file, and each task, two seconds.
    spark_submit.kube_client = object()  # type: ignore[attr-defined]


class Hook(SparkSubmitHook):
    """Submits a job with its own environment instead of Airflow's.

    Airflow's environment holds passwords, and a job may run the user's code.
    """

    def __init__(self, job: Submission, connection: str) -> None:
        super().__init__(
            conn_id=connection,
            conf=dict(job.conf),
            application_args=list(job.arguments),
            java_class=job.java_class,
            name=job.name,
        )
        self._should_track_driver_status = False  # spark-submit itself waits, where anybody does
        self.job = job
        self._driver: ClusterDriver | None = None

    def command(self) -> list[str]:
        """Return the whole command.

        :raises SettingsError: this host lacks something that every job needs.
        """
        self.job.check_host()
        return self._build_spark_submit_command(str(self.job.application))

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job and wait for its end.

        :raises AirflowException: it failed.
        """
        try:
            outcome: str | None = super().submit(
                str(self.job.application), **{**kwargs, "env": dict(self.job.environment)}
            )
        finally:
            discard(self.job.environment)
        return outcome

    def on_kill(self) -> None:
        """End the job of a task that is killed: by its cluster's pages, where a cluster runs it. The hook's
        own ways are programs and packages that a worker need not have; Spark's masters it asks nothing.
        """
        self._yarn_application_id = None
        if self._driver is not None and self._submit_sp is not None and self._submit_sp.poll() is None:
            self._end(self._driver)
        super().on_kill()

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(map(self._find_driver, itr))

    def _find_driver(self, line: str) -> str:
        page = self.job.environment.get(cluster_drivers.PAGE_VARIABLE)
        is_known = self._is_kubernetes or self._driver is not None
        id = None if is_known else cluster_drivers.submitted_id(line)
        if page and id:
            self._driver = ClusterDriver(page, id)
        return line

    def _delete_driver_pod(self) -> None:
        """End the pod of a job whose task is killed, by its deadline: so it stays, with its log."""
        id = f"{self._connection['namespace'] or 'default'}:{self._kubernetes_driver_pod}"
        self._end(ClusterDriver(_api_server(str(self._connection["master"])), id))

    def _end(self, driver: ClusterDriver) -> None:
        try:
            cluster_drivers.end(driver)
        except OSError:
            self.log.exception("%s could not be ended; end it by hand", driver.id)

    def _get_spark_binary_path(self) -> list[str]:
        binary = self._connection["spark_binary"]
        return [submit.spark_submit() if binary == "spark-submit" else binary]


class SubmitJob(SparkSubmitOperator):
    """Runs a job to its end, with one spark-submit on the connection of the flows."""

    def __init__(self, *, job: Path, **kwargs: Any) -> None:
        # A step that is run again finds what it did: nothing needs to reconnect to an earlier application.
        connection = Settings.from_environment().connection
        super().__init__(conn_id=connection, application=str(job), durable=False, **kwargs)
        self._job: Submission | None = None

    def take(self, make: Callable[[str], Submission]) -> None:
        """Set the submission to run.

        :param make: called with Spark's master.
        :raises AirflowFailException: the connection does not exist, or names a deploy mode that cannot be
            supervised yet.
        :raises SettingsError: this host lacks something that every job needs.
        """
        master = find_master(self._conn_id)
        self._job = make(master.master)
        self._job.check_host()
        self._job = handed(self._job, master.page)
        if master.page is not None:
            self._job = self._job.by_cluster(master.page, Settings.from_environment(), wait=True)
        self.conf, self.application_args = dict(self._job.conf), list(self._job.arguments)

    def _get_hook(self) -> SparkSubmitHook:
        if self._job is None:
            return super()._get_hook()
        return Hook(replace(self._job, conf=dict(self.conf or {})), self._conn_id)


def prepare(
    settings: Settings, flows: Flow | Sequence[Flow], connection: str, log: Path, take_over: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the whole environment of a driver, of one flow or of flows that share it.

    :param take_over: whether it tries a changed declaration, and takes over from the driver that runs.
    :raises AirflowFailException: the connection does not exist, or names a deploy mode that cannot be
        supervised yet.
    :raises SettingsError: this host lacks something that every driver needs.
    """
    master = find_master(connection)
    job = submit.driver(settings, [flows] if isinstance(flows, Flow) else flows, master.master)
    if take_over:
        job = replace(job, arguments=(*job.arguments, submit.TAKE_OVER))
    more = {submit.LOG_VARIABLE: str(log), submit.SUPERVISED_VARIABLE: "1"}
    job = replace(job, environment={**job.environment, **more})
    if master.page is not None:
        job = job.by_cluster(master.page, settings)
    hook = Hook(job, connection)
    command = hook.command()
    return command, dict(handed(job, master.page).environment)


@dataclass(frozen=True)
class Master:
    """Spark's master, as a connection names it. ``page`` is the address of its pages if it runs drivers
    itself, None in client mode.
    """

    master: str
    page: str | None


def trust_pages(connection: str) -> None:
    """Let the pages that the connection names be asked after drivers that run there already. Of one that
    cannot be read, whoever submits is told.
    """
    with suppress(AirflowFailException):
        find_master(connection)


def find_master(connection: str) -> Master:
    """Return Spark's master. Its pages may be asked from now on.

    Its pages are at the connection's extra ``cluster-page``; or, of a standalone master, at its host with
    Spark's usual port; of Kubernetes, the API server that the master names.

    :raises AirflowFailException: the connection does not exist, or names a deploy mode that cannot be
        supervised yet.
    """
    master = _master_of(connection)
    if master.page is not None:
        cluster_drivers.trust(master.page)
    return master


def _master_of(connection: str) -> Master:
    extra = _read(connection).extra_dejson
    hook_connection = SparkSubmitHook(conn_id=connection)._connection
    master = str(hook_connection["master"])
    if hook_connection["deploy_mode"] != "cluster":
        return Master(master, None)
    if master == submit.YARN and extra.get("cluster-page"):
        return Master(master, str(extra["cluster-page"]).rstrip("/"))
    if master.startswith(kubernetes.MASTER):
        return Master(master, _api_server(master))
    if not master.startswith("spark://"):
        raise AirflowFailException(
            f"The connection {connection!r} asks for deploy mode cluster on the master {master!r}. In that"
            " mode drivers are supervised on Spark's own masters (spark://…), on Kubernetes (k8s://…), and on"
            " yarn where the extra cluster-page has the resource manager's web address (http://…:8088). Add"
            " that, set the mode to client, or remove it."
        )
    host = master.removeprefix("spark://").partition(",")[0].rpartition(":")[0]
    return Master(master, str(extra.get("cluster-page") or f"http://{host}:8080").rstrip("/"))


def _api_server(master: str) -> str:
    """Return the address of the API server that a master names; Spark takes https where it has no scheme."""
    address = master.removeprefix(kubernetes.MASTER).rstrip("/")
    return address if "://" in address else f"https://{address}"


def _read(connection: str) -> Connection:
    """Return a connection, which must exist: without it, the hook would only log that, and use YARN."""
    try:
        return BaseHook.get_connection(connection)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        raise AirflowFailException(
            f"There is no connection {connection!r}, so the Spark master is unknown. Add one of type spark"
            " with the master as its host: "
            f"""AIRFLOW_CONN_{connection.upper()}='{{"conn_type": "spark", "host": "local[2]"}}'."""
        ) from error
