"""A driver from its command line to its exit code: one flow, or the flows of a shared Spark application.

Flows that share an application begin together and end together. Whatever ends one of them (a failure, a hold,
a changed declaration, a newer generation) ends the application: the others end their batch, stop and leave
their leases. The next start runs all flows that are free then, without one that was parked.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from streamkeeper.declare.model import Pipeline
from streamkeeper.errors import (
    DeclarationError,
    FlowHeld,
    LeaseHeld,
    RequestError,
    StreamkeeperError,
    UsageError,
)
from streamkeeper.exit_codes import Outcome, of_all
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import UNREADABLE, Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.driver.changed import load, tried
from streamkeeper_jobs.driver.driver import (
    DriverRequest,
    check_holds,
    declared_in,
    drive,
    find,
    is_done,
    take_lease,
    watch_over,
)
from streamkeeper_jobs.driver.waiting_flows import WaitingFlows
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import SharedApplication, open_session
from streamkeeper_jobs.stream.declaration_watch import Declaration
from streamkeeper_jobs.stream.watch import Watch


@dataclass(frozen=True)
class _Part:
    """One flow of the application, with its lease."""

    request: DriverRequest
    lease: Lease
    watch: Watch

    @property
    def name(self) -> str:
        return self.request.home.full_name


def run(
    settings: Settings, names: Sequence[str], available_now: bool = False, take_over: bool = False
) -> Outcome:
    """Run flows until they are told to stop, one fails, or (``available_now``) all data is processed.

    Return how it ended.

    :param names: full names of flows, all of one pipeline; more than one only if it declares
        ``shared_driver``.
    :param take_over: wait for the end of the driver that runs, once the changed declaration was tried.
    """
    try:
        return _run(settings, names, available_now, take_over)
    except UsageError as error:
        print(error, file=sys.stderr, flush=True)
        return Outcome.USAGE
    except (FlowHeld, LeaseHeld) as error:
        say(str(error))
        return Outcome.HELD if isinstance(error, FlowHeld) else Outcome.LEASE_HELD
    except StreamkeeperError as error:
        print(f"{', '.join(names)} does not start: {error}", file=sys.stderr, flush=True)
        return Outcome.FAILED


def _run(settings: Settings, names: Sequence[str], available_now: bool, take_over: bool) -> Outcome:
    homes, file = _find(settings, names)
    files = Declaration(settings, file.stem)
    declarations = [Declaration(settings, home.full_name) for home in homes]
    pipeline, texts = load(settings, file, homes)
    if len(homes) > 1 and isinstance(pipeline, Pipeline) and not pipeline.shared_driver:
        raise RequestError(
            f"--flow is given {len(homes)} times, but {pipeline.file} does not let its flows share a driver."
            " Start a driver for each of them, or declare dp.configure_pipeline(shared_driver=True)."
        )
    requests = [
        replace(_ask(settings, home, declaration, pipeline, available_now), files=texts)
        for home, declaration in zip(homes, declarations, strict=True)
    ]
    if all(is_done(item) for item in requests):  # once flows share no driver, so this is one flow
        say(
            f"{', '.join(names)} is done: it runs once and has read all its input. To run it again, reset"
            " it: reset_checkpoint."
        )
        return Outcome.DONE
    if len(requests) == 1 and not tried(requests[0], take_over):
        return Outcome.CHANGE_REFUSED
    free, held_homes = _sort(requests)
    parts = [
        _Part(item, lease, watch_over(item, lease))
        for item, lease in zip(free, _take_leases(free), strict=True)
    ]
    if isinstance(pipeline, DeclarationError) or not pipeline.shared_driver:
        return of_all([_alone(part) for part in parts])
    bystanders = None if available_now else WaitingFlows(files, held_homes, _fingerprints(pipeline))
    return _together(parts, SharedApplication(settings, pipeline).session, bystanders, settings.look_interval)


def _find(settings: Settings, names: Sequence[str]) -> tuple[list[FlowHome], Path]:
    """Return the homes of flows of one pipeline, and its file."""
    locations = [find(settings, name) for name in names]
    if len({file for _, file in locations}) != 1:
        raise RequestError(
            f"--flow names flows of several pipelines: {', '.join(names)}. A driver runs flows of one."
        )
    if len(set(names)) != len(names):
        raise RequestError(f"--flow names a flow twice: {', '.join(names)}. Name each once.")
    return [home for home, _ in locations], locations[0][1]


def _ask(
    settings: Settings,
    home: FlowHome,
    declaration: Declaration,
    pipeline: Pipeline | DeclarationError,
    available_now: bool,
) -> DriverRequest:
    flow = pipeline if isinstance(pipeline, DeclarationError) else declared_in(pipeline, home.flow)
    declaration.fingerprint = UNREADABLE if isinstance(flow, DeclarationError) else flow.fingerprint
    return DriverRequest(settings, home, declaration, available_now, flow)


def _sort(requests: Sequence[DriverRequest]) -> tuple[list[DriverRequest], list[FlowHome]]:
    """Separate the flows that may run from those that are held.

    :raises FlowHeld: none may run.
    """
    free, holds = [], []
    for item in requests:
        try:
            free.append(replace(item, lifts_park=check_holds(item.home, item.declaration.fingerprint)))
        except FlowHeld as error:
            holds.append((item.home, error))
    if not free:
        raise FlowHeld("\n".join(str(hold) for _, hold in holds))
    for _, hold in holds:
        say(str(hold))
    return free, [home for home, _ in holds]


def _take_leases(free: Sequence[DriverRequest]) -> list[Lease]:
    """Take the lease of each flow, or of none.

    The first is taken before the others, so that of two applications that start at once one gets all. The
    others are taken in parallel: if the previous driver was on another host, each may have to be waited for.

    :raises LeaseHeld: another driver has one of them; no flow is started.
    """
    taken = [(free[0], take_lease(free[0]))]
    with ThreadPoolExecutor(len(free), "streamkeeper-lease") as pool:
        taking = [(item, pool.submit(take_lease, item)) for item in free[1:]]
    refused = [error for _, future in taking if (error := future.exception()) is not None]
    taken += [(item, future.result()) for item, future in taking if future.exception() is None]
    if refused:
        for item, lease in taken:
            leases.leave(item.home, lease, "not begun")
        raise refused[0]
    return [lease for _, lease in taken]


def _alone(part: _Part) -> Outcome:
    with _ended_by_sigterm([part.watch]):
        return drive(part.request, part.lease, part.watch, partial(open_session, part.request.settings))


def _together(
    parts: Sequence[_Part],
    session: Callable[[Flow], SparkSession],
    bystanders: WaitingFlows | None,
    interval: float,
) -> Outcome:
    """Run flows as queries of one application, each in a thread of its own, until all have ended.

    :param interval: seconds between two looks at the flows that it does not run, at least.
    """
    watches = [part.watch for part in parts]
    outcomes = []
    with _ended_by_sigterm(watches), ThreadPoolExecutor(len(parts), "streamkeeper-flow") as pool:
        running = {pool.submit(_one_of_several, part, session): part for part in parts}
        try:
            while running:
                ended, _ = wait(running, timeout=interval, return_when=FIRST_COMPLETED)
                for future in ended:
                    part, outcome = running.pop(future), future.result()
                    outcomes.append(outcome)
                    if not (part.request.available_now and outcome is Outcome.STOPPED):
                        _end(
                            watches,
                            f"{part.name} ended ({outcome.words}), and flows that share a driver end"
                            " together",
                        )
                freed = bystanders.look() if running and bystanders else None
                if freed:
                    _end(watches, freed)
        finally:
            _end(watches, "the application ends")
    return of_all(outcomes)


def _one_of_several(part: _Part, session: Callable[[Flow], SparkSession]) -> Outcome:
    try:
        return drive(part.request, part.lease, part.watch, session)
    except StreamkeeperError as error:
        print(f"{part.name} ends: {error}", file=sys.stderr, flush=True)
        return Outcome.FAILED


def _end(watches: Iterable[Watch], words: str) -> None:
    for watch in watches:
        watch.terminate(words)


def _fingerprints(pipeline: Pipeline) -> dict[str, str]:
    return {f"{pipeline.name}.{flow.name}": fingerprint(pipeline, flow) for flow in pipeline.flows}


@contextmanager
def _ended_by_sigterm(watches: Sequence[Watch]) -> Iterator[None]:
    """Make the first SIGTERM end the flows after their batches, and a second one the process.

    Only the main thread can receive signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end_all(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        for watch in watches:
            watch.terminate()

    before = signal.signal(signal.SIGTERM, end_all)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
