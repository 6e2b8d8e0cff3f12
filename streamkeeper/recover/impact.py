"""What the recovery costs that a verdict names."""

from __future__ import annotations

from dataclasses import replace

from streamkeeper.errors import StreamkeeperError
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import kind
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import in_words
from streamkeeper.trial.verdict import Verdict


def with_impact(settings: Settings, verdict: Verdict) -> Verdict:
    """Add what a reset after the last batch costs, by its own plan, if the verdict needs one.

    The plan is of the declaration that is deployed: what it compares are positions, which a change of the
    query leaves as they are.
    """
    if verdict.recovery != "reset_checkpoint":
        return verdict
    manifest: Manifest = read_manifest(settings)
    recovery = kind(verdict.recovery)
    try:
        request = recovery.parse({"flow": verdict.flow}, manifest, "preflight")
        plan = engine.plan(settings, recovery, request, engine.recovery_id(recovery.name, "preflight"))
    except StreamkeeperError as error:
        return replace(verdict, impact=(f"Its plan is refused: {error}",))
    impact = tuple(
        f"{one.source}: data loss: {in_words(one.lost)}; duplicates: {in_words(one.repeated)}; state from"
        f" {in_words(one.replayed)}"
        for flow in plan.flows
        for one in flow.impacts
    )
    return replace(verdict, impact=(*impact, *(refusal.message for refusal in plan.refusals)))
