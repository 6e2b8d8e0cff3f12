"""What a cluster says of the drivers that it runs itself, and how it ends one.

A driver's id tells which kind of cluster it is: each module of :data:`KINDS` knows its own. The word of a
cluster proves an end only where the process is known to be over: else the lease's term is waited for.

What asks a cluster raises :class:`OSError` where its page does not answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from streamkeeper.clusters import kubernetes, standalone, yarn
from streamkeeper.clusters.pages import GONE, Unbegun
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import ClusterDriver, Lease
from streamkeeper.settings import cluster_pages

PAGE_VARIABLE = "STREAMKEEPER_CLUSTER_PAGE"
"""Variable by which a driver that a cluster runs learns the address of the cluster's pages."""
FINISHED = "FINISHED"
"""State of a driver that ended in good order; of others, a cluster says ``FAILED`` or ``KILLED``."""


class Cluster(Protocol):
    """A kind of cluster. Its functions raise :class:`OSError` if a page does not answer."""

    ID: re.Pattern[str]
    """Matches the ids of its drivers, also in the output of spark-submit."""

    def own_id(self) -> str | None:
        """Return the id of the driver that this process is; None if no such cluster started it."""

    def ended(self, driver: ClusterDriver) -> str | None:
        """Return the final state of a driver; None if the cluster cannot prove that it ended."""

    def unbegun(self, driver: ClusterDriver) -> Unbegun:
        """Return what the cluster says of a driver that has taken no lease."""

    def end(self, driver: ClusterDriver) -> None:
        """Ask the cluster to end a driver."""

    def output(self, driver: ClusterDriver, start: int, size: int) -> tuple[bytes, int]:
        """Return about ``size`` bytes of a driver's output from a position on, and the position behind them.
        The first position is 0; of others, each kind has its own measure.
        """

    def near_end(self, driver: ClusterDriver, size: int) -> int:
        """Return the position of a driver's output that has ``size`` bytes behind it."""


KINDS: tuple[Cluster, ...] = (standalone, yarn, kubernetes)


_trusted: set[str] = set()
"""Pages of the connections that this process has read."""


def trust(page: str) -> None:
    """Let a page be asked that Airflow's connection names. One that a lease alone names is never asked: the
    code of a pipeline can write leases.
    """
    _trusted.add(page.rstrip("/"))


def here() -> ClusterDriver | None:
    """Return what this process is to its cluster; None if no cluster started it."""
    page = os.environ.get(PAGE_VARIABLE)
    own = next((driver_id for kind in KINDS if (driver_id := kind.own_id())), None)
    return ClusterDriver(page, own) if page and own else None


def submitted_id(submit_output: str) -> str | None:
    """Return the id of the driver that spark-submit's output names last; None if it names none."""
    matches = [match for kind in KINDS for match in kind.ID.finditer(submit_output)]
    return max(matches, key=lambda match: match.start())[0] if matches else None


def ended(driver: ClusterDriver) -> str | None:
    """Return the state in which a driver ended; None if its cluster does not prove that it did.

    A driver that the cluster knows no more is :data:`GONE`, where that is no proof.
    """
    with _kind(driver) as kind:
        return kind.ended(driver)


def ended_if_known(driver: ClusterDriver) -> str | None:
    """Return what :func:`ended` does; None too where a page does not answer, which says nothing."""
    try:
        return ended(driver)
    except OSError:
        return None


def unbegun(driver: ClusterDriver) -> Unbegun:
    """Return what its cluster says of a driver that has taken no lease; nothing where a page does not answer.

    That it is over is no proof that its process is gone. It is enough for such a driver: if it comes late,
    another has the lease.
    """
    try:
        with _kind(driver) as kind:
            return kind.unbegun(driver)
    except OSError:
        return Unbegun()


def note_end(home: FlowHome, lease: Lease) -> bool:
    """Record the end of a lease's driver if its cluster knows of it; return whether it did.

    The next driver then need not wait for the lease's term.
    """
    state = ended_if_known(lease.cluster) if lease.cluster else None
    if state is None or state == GONE:
        return False
    # Too late for a driver that left by itself: what it wrote stays.
    leases.leave(home, lease, "stopped" if state == FINISHED else "failed")
    return True


def end(driver: ClusterDriver) -> None:
    """Ask a driver's cluster to end it.

    :raises OSError: the cluster does not answer, or refuses.
    """
    with _kind(driver) as kind:
        kind.end(driver)


def output(driver: ClusterDriver, start: int, size: int) -> tuple[bytes, int]:
    """Return about ``size`` bytes of a driver's output from a position on, and the position behind them."""
    with _kind(driver) as kind:
        return kind.output(driver, start, size)


def near_end(driver: ClusterDriver, size: int) -> int:
    """Return the position of a driver's output that has ``size`` bytes behind it, or 0 if it has less."""
    with _kind(driver) as kind:
        return kind.near_end(driver, size)


@contextmanager
def _kind(driver: ClusterDriver) -> Iterator[Cluster]:
    """Yield the kind of a driver's cluster. Whatever its pages answer in the block is an :class:`OSError` if
    it cannot be read.

    :raises OSError: no kind has such ids, or nothing but a lease names the page.
    """
    kind = next((kind for kind in KINDS if kind.ID.fullmatch(driver.id)), None)
    if kind is None:
        raise OSError(f"No cluster names its drivers as {driver.id!r}.")
    if driver.page.rstrip("/") not in (*_trusted, *cluster_pages()):
        raise OSError(
            f"{driver.page} is not asked after {driver.id}: a lease names it, which a pipeline's code can"
            " write. If it is the cluster's, add it to STREAMKEEPER_CLUSTER_PAGES."
        )
    try:
        yield kind
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise OSError(f"{driver.page} answers in a shape that is not its kind's: {error!r}") from error
