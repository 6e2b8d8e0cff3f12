"""Rehearsals by the command line: told in words; killed, the original is as it was, and the next try comes to
the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import ledger
from streamkeeper.recover.steps.rehearse import folder
from tests.oracle import first_per
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.rehearsing import original
from tools.waiting import wait_until

pytestmark = pytest.mark.long

COMMAND = ("reset_checkpoint", "--flow", NAME, "--rehearse", "--yes")
MOMENTS = ("copied", "hold", "decide", "release")
"""When it is killed: once the first file is copied, or after a step on the copy."""


POWERLESS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")
"""What makes a process of root obey the permissions of files."""


def command(bed: Flowbed, *arguments: str, powerless: bool = False) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own."""
    before = POWERLESS if powerless and os.geteuid() == 0 else ()
    return subprocess.Popen(
        [*before, sys.executable, "-m", "streamkeeper", *arguments],
        env=submit.driver(bed.settings, [bed.flow()]).environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Take the right to write from all that flows keep. What a rehearsal may write is its folder, its
    ledger, and what the command line remembers of the pipelines' files.
    """
    free = [
        root / part
        for part in ("warehouse/__rehearsals", "state/events/ledger", "state/ledger", "state/manifests")
    ]
    for open_one in free:
        open_one.mkdir(parents=True, exist_ok=True)
    kept = [
        found
        for part in ("state", "warehouse", "data")
        for found in (root / part, *(root / part).rglob("*"))
        if not {found, *found.parents} & {*free}
    ]
    for found in kept:
        found.chmod(found.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for found in kept:
            found.chmod(found.stat().st_mode | 0o200)


def recovery_of(bed: Flowbed) -> str | None:
    """Return the only recovery that there is; None before it is planned."""
    found = ledger.recoveries(bed.home.storage, "events")
    return found[0] if found else None


def has_come(bed: Flowbed, moment: str) -> bool | None:
    recovery = recovery_of(bed)
    if recovery is None:
        return None
    if moment == "copied":
        return any(Path(folder(bed.settings, recovery)).rglob("*.json")) or None
    events = ledger.open(bed.home.storage, "events", recovery).events()
    return any(event.evidence.get("step") == moment for event in events) or None


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_that_is_killed_leaves_the_original_and_the_next_try_comes_to_the_end(
    moment: str, make_bed: Callable[..., Flowbed]
) -> None:
    bed = make_bed(pipeline(files=1))
    for numbers in ((1, 2, 3), (3, 4)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    before = original(bed.root)
    first = command(bed, "recover", *COMMAND)
    wait_until(lambda: has_come(bed, moment), 180, f"the rehearsal has come to {moment}", interval=0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert original(bed.root) == before
    recovery = recovery_of(bed)
    assert recovery is not None
    again = command(bed, "recover", "reset_checkpoint", "--resume", recovery, "--yes", "--json")
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert bed.home.generations() == [1, 2]
    assert not Path(folder(bed.settings, recovery)).exists()
    [done] = [
        event
        for event in ledger.open(bed.home.storage, "events", recovery).events()
        if event.event == "rehearse.done"
    ]
    [table] = done.evidence["rehearsed"]["tables"]
    assert (table["rows"], table["rows_after"], table["only_before"], table["only_after"]) == (4, 4, 0, 0)
    bed.holds(first_per(bed.events, ["event_id"]))


def test_a_command_rehearses_in_words_and_says_how_to_go_on(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(pipeline(files=1))
    bed.arrive(1, 2, 3)
    assert bed.run() is Outcome.STOPPED
    asked = ("--flow", NAME, "--recovery", "full_refresh", "--minutes", "5")
    with read_only(bed.root):
        refused = [*POWERLESS, "touch", bed.home.storage.path("x")]
        assert os.geteuid() or subprocess.run(refused, stderr=subprocess.DEVNULL, check=False).returncode == 1
        first = command(bed, "recover", "rehearse", *asked, powerless=True)
        said, _ = first.communicate(timeout=300)
    assert first.returncode == 0, said
    assert "table events: 3 rows before, 3 after, the same rows; 0 gone, 0 new" in said
    rehearsal = recovery_of(bed)
    assert rehearsal is not None
    assert f"Go: the same values to streamkeeper recover full_refresh, with --rehearsal {rehearsal}." in said
    go = command(
        bed, "recover", "full_refresh", "--table", "events.events", "--rehearsal", rehearsal, "--yes"
    )
    said, _ = go.communicate(timeout=300)
    assert go.returncode == 0, said
    assert f"Rehearsed by {rehearsal}" in said and bed.home.generations() == [1, 2]
