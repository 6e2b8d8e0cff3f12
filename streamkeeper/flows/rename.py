"""``streamkeeper rename``: a new name for a flow or a pipeline, which keeps its generations, tables and
history.

The rename is one new file (streamkeeper.manifest.names); nothing else is written or moved. So a killed rename
was either made or not, and running it again completes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamkeeper.declare.model import NAME, OUR_FOLDERS
from streamkeeper.errors import LeaseHeld, RecoveryError, RequestError
from streamkeeper.flows import leases, ledger
from streamkeeper.flows.files import FlowHome, kept_flows, kept_pipelines
from streamkeeper.manifest import names
from streamkeeper.manifest.names import Names
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage


@dataclass(frozen=True)
class Renamed:
    """Result of a rename: the flows with their newest generations; none if it was done before."""

    old: str
    new: str
    flows: dict[str, int]
    done_before: bool = False


def rename(settings: Settings, old: str, new: str, by: str) -> Renamed:
    """Rename a flow (``pipeline.flow``) or a pipeline.

    :raises RequestError: a name is not valid, nothing is kept under the old one, or something is under the
        new one.
    :raises LeaseHeld: a driver of a flow may be alive.
    :raises RecoveryError: a recovery of the pipeline is not over.
    """
    storage = open_storage(settings.state)
    while True:
        name_history = names.read(storage)
        _check_names(old, new)
        if _present(name_history, old) == new:
            return Renamed(old, new, {}, done_before=True)
        homes = _homes(storage, name_history, old)
        _check_free(storage, name_history, old, new)
        _check_quiet(storage, old.partition(".")[0], homes)
        after = name_history.renamed(old, new)
        if names.write(storage, after, old=old, new=new, by=by):
            numbers = {
                after.present(home.full_name): home.generations()[-1] for home in homes if home.generations()
            }
            return Renamed(old, new, numbers)


def _check_names(old: str, new: str) -> None:
    for name in (old, new):
        parts = name.split(".")
        if (
            len(parts) > 2
            or not all(NAME.fullmatch(part) for part in parts)
            or any(part.lower() in OUR_FOLDERS for part in parts)
        ):
            raise RequestError(
                f"{name!r} names no flow and no pipeline. Allowed are PIPELINE.FLOW and PIPELINE, each of"
                f" letters, digits and underscores, a letter first, and none of {', '.join(OUR_FOLDERS)}."
            )
    if ("." in old) != ("." in new) or old == new:
        raise RequestError(
            f"{old} cannot become {new}. Give two names of a flow, as PIPELINE.FLOW, or two of a pipeline."
        )
    if "." in old and old.partition(".")[0] != new.partition(".")[0]:
        raise RequestError(
            f"{old} cannot become {new}: a flow stays in its pipeline, which has its tables. Keep the"
            f" pipeline's name, or rename the pipeline: streamkeeper rename {old.partition('.')[0]}"
            f" {new.partition('.')[0]}."
        )


def _present(name_history: Names, name: str) -> str:
    return name_history.present(name) if "." in name else name_history.pipeline_in(name_history.folder(name))


def _homes(storage: Storage, name_history: Names, old: str) -> list[FlowHome]:
    """Return the files of the flows to rename.

    :raises RequestError: nothing is kept under the old name.
    """
    pipeline, _, flow = old.partition(".")
    homes = (
        [home for home in kept_flows(storage, pipeline) if flow in ("", home.flow)]
        if _present(name_history, old) == old
        else []
    )
    if not homes:
        pipeline_homes = kept_flows(storage, pipeline) if flow else []
        names_with_state = (
            ", ".join(home.full_name for home in pipeline_homes)
            if flow
            else ", ".join(kept_pipelines(storage))
        )
        now = "" if _present(name_history, old) == old else f" It is named {_present(name_history, old)} now."
        raise RequestError(
            f"There is no state of {old!r}, so there is nothing to rename.{now} There is state of:"
            f" {names_with_state or 'none'}. A flow that never ran needs no rename."
        )
    return homes


def _check_free(storage: Storage, name_history: Names, old: str, new: str) -> None:
    """Check that nothing else has, or had, the new name."""
    pipeline, _, flow = new.partition(".")
    if flow:
        mine = FlowHome(storage, pipeline, old.partition(".")[2]).root
        taken = FlowHome(storage, pipeline, flow).root != mine and bool(
            storage.names(FlowHome(storage, pipeline, flow).root)
        )
    else:
        taken = name_history.folder(new) != name_history.folder(old) and bool(
            storage.names(name_history.folder(new))
        )
    if taken or _present(name_history, new) not in (new, old):
        raise RequestError(
            f"{old} cannot become {new}: there is state under that name already, of"
            f" {_present(name_history, new)}. Nothing was renamed. If {new} was started by mistake, as"
            f" {old} under another name, its rows are duplicated in the table: give"
            f" {old} its old name again, and check the table first. Otherwise choose a"
            " name that was never used."
        )


def _check_quiet(storage: Storage, pipeline: str, homes: list[FlowHome]) -> None:
    """Check that no driver and no recovery works under the old name."""
    for home in homes:
        if leases.may_run(home):
            lease = leases.current(home)
            raise LeaseHeld(
                f"A driver of {home.full_name} may be alive ({leases.describe(lease) if lease else '?'}), so"
                f" nothing was renamed. Stop it: streamkeeper hold --wait {home.full_name}. The hold stays"
                " with the flow: release it by its new name."
            )
    for recovery, pipelines in ledger.open_recoveries(storage).items():
        if pipeline in pipelines:
            raise RecoveryError(
                f"The recovery {recovery} of {pipeline} is not over, and uses the old names of its flows,"
                f" so nothing was renamed. Let it end, or give it up: streamkeeper abandon {recovery}."
            )
