"""The holds that keep a flow from starting now, for the gate and for the task that runs the flow."""

from __future__ import annotations

from collections.abc import Sequence

from streamkeeper.flows import holds
from streamkeeper.flows.files import open_home
from streamkeeper.flows.holds import PARK, Hold
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings


def blocking(settings: Settings, flow: str) -> list[Hold]:
    """Return the holds that forbid a start of ``pipeline.flow`` now; none if it may start.

    A park belongs to the declaration that failed: once the flow's fingerprint has changed, the driver lifts
    the park for one try, so it does not count here. Only for that question the manifest is read.

    :raises StreamkeeperError: the state folder or the manifest cannot be read.
    """
    found = holds.all_of(open_home(settings, flow))
    if [hold.owner for hold in found] != [PARK]:
        return found
    failed = found[0].details.get("fingerprint")
    if failed is None:
        return found
    manifest = read_manifest(settings)
    # A file that raises keeps its last fingerprint in the manifest: starting it would only park it again.
    unreadable = flow.partition(".")[0] in manifest.errors
    return found if unreadable or failed == manifest.find(flow).fingerprint else []


def all_held(settings: Settings, flows: Sequence[str]) -> str:
    """Return the owners and reasons of the holds of some flows; an empty text once one of them may start.

    :raises StreamkeeperError: the state folder or the manifest cannot be read.
    """
    said = []
    for flow in flows:
        found = blocking(settings, flow)
        if not found:
            return ""
        said.append(describe(found) if len(flows) == 1 else f"{flow}: {describe(found)}")
    return "\n".join(said)


def describe(found: list[Hold]) -> str:
    """Return the owners and reasons of holds, one line for each."""
    return "\n".join(f"{hold.owner}, by {hold.by}, since {hold.at}: {hold.reason}" for hold in found)
