"""Lineage by OpenLineage: a flow is a job, each of its drivers a run; a recovery is a job, with one run.

The monitor tells it, once a look, to where OpenLineage's own variables or the settings of Airflow's provider
lead. What was told is noted after it was taken: an event may come twice, with the same run and the same
content, and none is lost. Datasets are named by the naming spec of OpenLineage: a table by its path, a topic
by its broker.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from streamkeeper import __version__
from streamkeeper.declare.model import FILE_SINKS, KAFKA_SINK, Source
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import newest_summary
from streamkeeper.drivers import failures
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import generations, leases, ledger
from streamkeeper.flows.files import LINEAGE, FlowHome
from streamkeeper.flows.leases import Lease, Life
from streamkeeper.flows.ledger import ENDED, OVER, PLANNED, Ledger
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import now
from streamkeeper.watch.batch_numbers import told_by

PRODUCER = f"https://pypi.org/project/streamkeeper-airflow/{__version__}"
NAMESPACE = "OPENLINEAGE_NAMESPACE"
_DISABLED = "OPENLINEAGE_DISABLED"
_WANTED = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_TRANSPORT = "OPENLINEAGE__TRANSPORT"
_MOST_EPOCHS = 20
"""Drivers of a flow that are told of in one look, the newest: a crash loop may have had many."""
_RUNS = uuid.UUID("0c4f2a3e-9d1b-5f7a-8a53-6d2b7e1f4c90")
START, RUNNING, COMPLETE, FAIL, ABORT = "START", "RUNNING", "COMPLETE", "FAIL", "ABORT"


class LineageFailed(StreamkeeperError):
    """Lineage could not be told; the message says why."""


@dataclass(frozen=True)
class Dataset:
    """A dataset by OpenLineage's naming spec; ``fields`` are names and types of its columns, if known."""

    namespace: str
    name: str
    fields: tuple[tuple[str, str], ...] = ()
    version: int | None = None


@dataclass(frozen=True)
class RunReport:
    """An event of a run. ``facet`` is that of ours: ``streamkeeper_driver`` or ``streamkeeper_recovery``."""

    state: str
    at: str
    run: str
    job: str
    job_type: str
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]
    facet: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True)
class _Driver:
    """What was told of a flow's newest driver."""

    epoch: int
    batch: int | None = None
    is_over: bool = False


@dataclass(frozen=True)
class _Note:
    """What was told: the newest driver by flow, and the state by recovery."""

    drivers: Mapping[str, _Driver] = field(default_factory=dict)
    recoveries: Mapping[str, str] = field(default_factory=dict)


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether OpenLineage's variables ask for lineage."""
    if environment.get(_DISABLED, "").strip().lower() == "true":
        return False
    return any(environment.get(name) for name in _WANTED) or any(
        name.startswith(_TRANSPORT) for name in environment
    )


def tell(
    settings: Settings,
    storage: Storage,
    manifest: Manifest,
    transport: Mapping[str, Any] | None = None,
    namespace: str | None = None,
) -> int:
    """Tell what came since the last look, and return the number of events.

    :param transport: as OpenLineage configures it; that of the environment by default.
    :param namespace: of the jobs; that of the environment by default, else ``default``.
    :raises LineageFailed: the package is missing, or an event was not taken. What was taken is noted.
    :raises StorageError: the state folder cannot be read or written.
    """
    client = _Client(transport, namespace or os.environ.get(NAMESPACE) or "default")
    way = "Remove it; the next look then tells of all present drivers again."
    note = read_record(storage, LINEAGE, _Note, "a note of lineage", way)
    written, count = note or _Note(), 0
    try:
        for reports, after in _news(settings, storage, manifest, written, is_first=note is None):
            for report in reports:
                client.emit(report)
            count += len(reports)
            drivers = {**written.drivers, **after.drivers}
            written = _Note(drivers, {**written.recoveries, **after.recoveries})
    finally:
        client.close()
        if written != note:
            storage.overwrite(LINEAGE, to_json(asdict(written)))
    return count


def _news(
    settings: Settings, storage: Storage, manifest: Manifest, note: _Note, is_first: bool
) -> Iterator[tuple[list[RunReport], _Note]]:
    """Yield what is to be told, and what to note once it is: of each flow, and of each recovery."""
    for flow in manifest.flows():
        home = FlowHome(storage, flow.pipeline.name, flow.name)
        before = note.drivers.get(flow.full_name)
        reports, after = _of_flow(settings, home, flow, before)
        if after is not None and after != before:
            yield reports, _Note({flow.full_name: after})
    for pipeline in manifest.pipelines:
        for recovery in ledger.recoveries(storage, pipeline.name):
            state_before = note.recoveries.get(recovery)
            if state_before in (COMPLETE, ABORT):
                continue
            book = ledger.open(storage, pipeline.name, recovery)
            reports, state = _of_recovery(settings, book, pipeline.name, state_before)
            # What was over before the first look is past.
            if state is not None and state != state_before:
                yield [] if is_first and state != START else reports, _Note({}, {recovery: state})


def _of_flow(
    settings: Settings, home: FlowHome, flow: Flow, before: _Driver | None
) -> tuple[list[RunReport], _Driver | None]:
    """Return the events of a flow's drivers since the last look, and what to note of the newest."""
    observed = Observed(home)
    newest = observed.lease
    if newest is None:
        return [], None
    first = newest.epoch if before is None else before.epoch + (1 if before.is_over else 0)
    opened = opened_flow(flow, settings, opened_if_possible)
    inputs, outputs = inputs_of(opened), outputs_of(settings, flow)
    reports, after = [], before
    for epoch in range(max(first, newest.epoch - _MOST_EPOCHS), newest.epoch + 1):
        lease = leases.read(home, epoch)
        if lease is None:
            continue
        is_new = before is None or epoch > before.epoch
        report = _report_of(home, flow, lease, inputs, outputs)
        if is_new:
            reports.append(replace(report, state=START, at=lease.at))
        is_over = epoch < newest.epoch or observed.life in (Life.LEFT, Life.DEAD)
        batch = observed.own_commit if epoch == newest.epoch else None
        if is_over:
            reports.append(_ended(home, lease, report))
        elif not is_new and before is not None and batch != before.batch:
            reports.append(replace(report, state=RUNNING, at=now()))
        after = _Driver(epoch, batch, is_over)
    return reports, after


def _report_of(
    home: FlowHome, flow: Flow, lease: Lease, inputs: tuple[Dataset, ...], outputs: tuple[Dataset, ...]
) -> RunReport:
    decided = generations.read(home, lease.generation)
    beat = leases.read_heartbeat(home, lease.epoch)
    facet = {
        "epoch": lease.epoch,
        "generation": lease.generation,
        "start": None if decided is None else str(decided.start.mode),
        "recovery": None if decided is None else decided.recovery,
        "batch": None if beat is None else beat.batch,
        "rows_read": told_by(beat).totals.rows,
        "application": lease.application_id if beat is None else beat.application_id,
    }
    run = str(uuid.uuid5(_RUNS, f"{home.root}/{lease.epoch}"))
    return RunReport(START, lease.at, run, flow.full_name, "STREAMING", inputs, outputs, facet)


def _ended(home: FlowHome, lease: Lease, report: RunReport) -> RunReport:
    """Return how a driver's run ended: with its failure, in good order, or nobody knows."""
    details = leases.failure_of(home, lease.epoch)
    if details is not None:
        failure = failures.read(details)
        error = "The driver failed." if failure is None else failures.brief(failure)
        return replace(report, state=FAIL, at=str(details.get("at") or now()), error=redact_text(error))
    leaving = leases.told_leaving(home, lease)
    if leaving:
        return replace(report, state=COMPLETE, at=str(leaving.get("at") or now()))
    following = leases.read(home, lease.epoch + 1)
    return replace(report, state=ABORT, at=now() if following is None else following.at)


def _of_recovery(
    settings: Settings, book: Ledger, pipeline: str, state_before: str | None
) -> tuple[list[RunReport], str | None]:
    """Return the events of a recovery since the last look, and the state to note."""
    names = book.names()
    begun = next((name for name in names if name.endswith(".started")), None)
    end = next((name for name in names if name in OVER), None)
    planned = book.find(PLANNED)
    if begun is None or planned is None:
        return [], None
    plan = planned.evidence
    recovery = book.folder.rpartition("/")[2]
    kind = recovery.partition("-")[0]
    flows = [flow["flow"] for flow in plan.get("flows") or ()]
    request = plan.get("request") or {}
    who = {name: request.get(name) for name in ("by", "reason")}
    facet = {"kind": kind, "id": recovery, "flows": flows, **who}
    tables = tuple(dataset_of(settings.table_path(table)) for table in plan.get("tables") or ())
    run = str(uuid.uuid5(_RUNS, book.folder))
    report = RunReport(START, planned.at, run, f"{pipeline}.{kind}", "BATCH", (), tables, facet)
    reports = [] if state_before == START else [report]
    if end is None:
        return reports, START
    ended = book.find(end)
    state = COMPLETE if end == ENDED else ABORT
    return [*reports, replace(report, state=state, at=planned.at if ended is None else ended.at)], state


def inputs_of(flow: Flow) -> tuple[Dataset, ...]:
    """Return what a flow reads; a source of rates or of a socket is no dataset.

    :param flow: with its sources opened as far as this process can.
    """
    return tuple(dataset for source in flow.sources for dataset in _of_source(source))


def outputs_of(settings: Settings, flow: Flow) -> tuple[Dataset, ...]:
    """Return what a flow writes: its table with its columns and version, or what its sink names."""
    sink = flow.sink
    if sink is None:
        path = settings.table_path(flow.declaration.target)
        summary = newest_summary(path)
        columns = tuple(
            (column["name"], _type_of(column.get("type"))) for column in (summary.fields if summary else ())
        )
        return (replace(dataset_of(path), fields=columns, version=delta_log.latest_version(path)),)
    if sink.sink in FILE_SINKS:
        return (dataset_of(sink.properties["path"]),)
    if sink.sink == KAFKA_SINK and "topic" in sink.properties:
        servers = sink.properties.get("kafka.bootstrap.servers", "")
        return tuple(_topics(servers, [sink.properties["topic"]]))
    return ()


def dataset_of(path: str) -> Dataset:
    """Return the dataset of a path or URL: store and bucket are the namespace, ``file`` for a disk."""
    url = urlsplit(path)
    if url.scheme in ("", "file"):
        return Dataset("file", url.path.rstrip("/") or "/")
    return Dataset(f"{url.scheme.replace('s3a', 's3')}://{url.netloc}", url.path.strip("/") or "/")


def _of_source(source: Source) -> list[Dataset]:
    if source.path is not None:
        return [dataset_of(source.path)]
    topics = [topic.strip() for topic in source.option("subscribe").split(",") if topic.strip()]
    topics += [source.option("subscribePattern")] if source.option("subscribePattern") else []
    topics += list(json.loads(source.option("assign"))) if source.option("assign") else []
    return list(_topics(source.option("kafka.bootstrap.servers"), topics))


def _topics(servers: str, topics: list[str]) -> Iterator[Dataset]:
    """Yield topics by the first of their brokers; none while a variable in its address is not set here."""
    broker = servers.split(",", maxsplit=1)[0].strip()
    if broker and "{env:" not in broker:
        yield from (Dataset(f"kafka://{broker}", topic) for topic in topics)


def _type_of(column_type: Any) -> str:
    return str(column_type.get("type")) if isinstance(column_type, dict) else str(column_type)


class _Client:
    """OpenLineage's client, loaded when it is needed."""

    def __init__(self, transport: Mapping[str, Any] | None, namespace: str) -> None:
        try:
            from openlineage.client import OpenLineageClient
        except ImportError as error:
            raise LineageFailed(
                f"Lineage is asked for, and needs a package that is not installed: {error}. Install"
                " streamkeeper-airflow[openlineage], or unset OpenLineage's variables."
            ) from error
        self.namespace = namespace
        try:
            self.client = OpenLineageClient(config={"transport": dict(transport)} if transport else None)
        except Exception as error:  # the client promises no kinds of errors
            raise LineageFailed(redact_text(f"OpenLineage's client cannot be set up: {error}")) from error

    def emit(self, report: RunReport) -> None:
        """Send an event.

        :raises LineageFailed: it was not taken.
        """
        try:
            self.client.emit(_event(report, self.namespace))
        except Exception as error:  # the client promises no kinds of errors
            raise LineageFailed(redact_text(f"{report.job} was not told to OpenLineage: {error}")) from error

    def close(self) -> None:
        self.client.close()


def _event(report: RunReport, namespace: str) -> Any:
    """Return an event as OpenLineage's client takes it."""
    from openlineage.client import event_v2, facet_v2
    from openlineage.client.generated.base import RunFacet

    event_v2.set_producer(PRODUCER)
    is_driver = report.job_type == "STREAMING"
    own = RunFacet().with_additional_properties(**report.facet)
    run_facets: dict[str, Any] = {"streamkeeper_driver" if is_driver else "streamkeeper_recovery": own}
    if report.error is not None:
        error = facet_v2.error_message_run.ErrorMessageRunFacet(report.error, programmingLanguage="Python")
        run_facets["errorMessage"] = error
    job_type = facet_v2.job_type_job.JobTypeJobFacet(
        report.job_type, "STREAMKEEPER", "FLOW" if is_driver else "RECOVERY"
    )
    inputs = [event_v2.InputDataset(one.namespace, one.name, facets=_facets(one)) for one in report.inputs]
    outputs = [event_v2.OutputDataset(one.namespace, one.name, facets=_facets(one)) for one in report.outputs]
    return event_v2.RunEvent(
        eventType=event_v2.RunState(report.state),
        eventTime=report.at,
        run=event_v2.Run(report.run, run_facets),
        job=event_v2.Job(namespace, report.job, {"jobType": job_type}),
        inputs=inputs,
        outputs=outputs,
        producer=PRODUCER,
    )


def _facets(dataset: Dataset) -> dict[str, Any]:
    """Return columns and version of a dataset, as far as they are known."""
    from openlineage.client.facet_v2 import dataset_version_dataset as versions
    from openlineage.client.facet_v2 import schema_dataset as schemas

    facets: dict[str, Any] = {}
    if dataset.fields:
        columns = [schemas.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in dataset.fields]
        facets["schema"] = schemas.SchemaDatasetFacet(fields=columns)
    if dataset.version is not None:
        facets["version"] = versions.DatasetVersionDatasetFacet(datasetVersion=str(dataset.version))
    return facets
