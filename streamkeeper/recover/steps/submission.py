"""The submission of a recovery's Spark step."""

from __future__ import annotations

from streamkeeper.drivers.submit import (
    RECOVERY_JOB,
    Submission,
    connections_of,
    environment_of,
    job_settings,
)
from streamkeeper.flows import ledger
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.recover.plans import plan as plans
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper.storage import open_storage


def recovery_step(
    settings: Settings, pipeline: str, recovery: str, step: str, master: str = DEFAULT_MASTER
) -> Submission:
    """Return the submission of one step of a recovery, with the ``spark_conf`` of the recovery's flows."""
    arguments = ("--pipeline", pipeline, "--recovery", recovery, "--step", step)
    of_pipelines, flows = _flows_of(settings, pipeline, recovery)
    conf = job_settings(settings, [flow.declaration for flow in flows], master)
    env, named = environment_of(settings, master), connections_of(of_pipelines)
    name = f"{recovery} {step}"
    return Submission(name, RECOVERY_JOB, arguments, conf, master, env, connections=named)


def _flows_of(settings: Settings, pipeline: str, recovery: str) -> tuple[list[Flow], list[Flow]]:
    """Return the flows of a recovery's pipelines, and its own: those of its plan and of its tables, else
    all.
    """
    manifest, planned = (
        read_manifest(settings),
        ledger.open(open_storage(settings.state), pipeline, recovery).find(ledger.PLANNED),
    )
    plan = None if planned is None else plans.from_json(planned.evidence)
    pipelines = (pipeline,) if plan is None else plan.pipelines
    flows = [flow for flow in manifest.flows() if flow.pipeline.name in pipelines]
    if plan is None:
        return flows, flows
    named = {flow.flow for flow in plan.flows}
    own = [flow for flow in flows if flow.full_name in named or flow.declaration.target in plan.tables]
    return flows, own or flows
