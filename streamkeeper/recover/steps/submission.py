"""The submission of a recovery's Spark step."""

from __future__ import annotations

from streamkeeper.declare.model import AnyFlow
from streamkeeper.drivers.submit import (
    RECOVERY_JOB,
    Submission,
    connections_of,
    environment_of,
    job_settings,
)
from streamkeeper.flows import ledger
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.plans import plan as plans
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper.storage import open_storage


def recovery_step(
    settings: Settings, pipeline: str, recovery: str, step: str, master: str = DEFAULT_MASTER
) -> Submission:
    """Return the submission of one step of a recovery, with the ``spark_conf`` of the recovery's flows."""
    arguments = ("--pipeline", pipeline, "--recovery", recovery, "--step", step)
    conf = job_settings(settings, _flows_of(settings, pipeline, recovery), master)
    of_pipeline = [flow for flow in read_manifest(settings).flows() if flow.pipeline.name == pipeline]
    env, named = environment_of(settings, master), connections_of(of_pipeline)
    name = f"{recovery} {step}"
    return Submission(name, RECOVERY_JOB, arguments, conf, master, env, connections=named)


def _flows_of(settings: Settings, pipeline: str, recovery: str) -> list[AnyFlow]:
    """Return the flows of a recovery: those of its plan and of its tables, else all of the pipeline."""
    manifest, planned = (
        read_manifest(settings),
        ledger.open(open_storage(settings.state), pipeline, recovery).find(ledger.PLANNED),
    )
    flows = [flow for flow in manifest.flows() if flow.pipeline.name == pipeline]
    if planned is not None:
        plan = plans.from_json(planned.evidence)
        named = {flow.flow for flow in plan.flows}
        flows = [
            flow for flow in flows if flow.full_name in named or flow.declaration.target in plan.tables
        ] or flows
    return [flow.declaration for flow in flows]
