"""What the benchmark of a thousand flows does one after the other, and prints."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT
from tests.benchmarks import bench_parse
from tests.benchmarks.ratios import meanwhile
from tests.benchmarks.thousand.company import kill
from tests.benchmarks.thousand.parts import Sample
from tests.benchmarks.thousand.world import SIMULATED, Thousand
from tools.waiting import NotYet, wait_until

A_FLOW, AT_LEAST = 20.0, 900.0
"""Seconds that all flows together may take to be watched: so many a flow, and these."""
STEP = 900.0
"""Seconds that anything awaited of one flow may take."""
VIEWED = 5.0
"""Seconds between two answers of the page, as one viewer asks."""
BETWEEN = 5.0
"""Seconds between two ends of drivers: what two cores can follow."""
PERSON = holds.person("benchmark")


def patience(world: Thousand) -> float:
    """Return how long all flows may take to be watched."""
    return AT_LEAST + A_FLOW * len(world.flows)


def start(world: Thousand) -> None:
    """Await that all flows are watched, from when all parts of Airflow are healthy."""
    seconds = world.await_watched(patience(world))
    row(
        "from a healthy Airflow until all are watched",
        f"{seconds:,.0f} s, {seconds / len(world.flows):.2f} s a flow",
    )


def rest(world: Thousand, minutes: float) -> None:
    """Measure while nothing happens but what always does, with one viewer of the page."""
    answers, unanswered = list[float](), list[str]()

    def view(over: threading.Event) -> None:
        while not over.wait(VIEWED):
            try:
                answers.append(world.page()[0])
            except NotYet as error:
                unanswered.append(str(error))

    place = world.place
    before = place.sample()
    with meanwhile(view):
        # No condition to await: the time is what is measured.
        time.sleep(60 * minutes)
    after = place.sample()
    print_parts(before, after)
    print_growth(before, after, len(world.flows))
    for error in unanswered:
        row("the page did not answer", error)
    if answers:
        print_seconds("the page's answer", answers)


def ends(world: Thousand, chance: Random) -> None:
    """Kill drivers, one by one, and measure until the next is submitted."""
    names = chance.sample(world.names, max(5, min(100, len(world.names) // 10)))
    killed = dict[str, float]()
    for name in names:
        [entry] = world.company.living()[name]
        killed[name] = time.time()
        kill(entry)
        time.sleep(BETWEEN)
    took = [world.await_entry("submitted", name, at, STEP).at - at for name, at in killed.items()]
    print_seconds("from a driver's end (-9) to the next submission", took, "p99 ≤10 s")
    world.await_watched(patience(world))


def holds_of(world: Thousand, chance: Random) -> None:
    """Hold some flows, one by one; measure until each driver has ended by it; release them."""
    took = list[float]()
    names = chance.sample(world.names, max(3, min(20, len(world.names) // 50)))
    for name in names:
        at = time.time()
        holds.put(world.home(name), PERSON, "the benchmark holds it", "benchmark")
        took.append(world.await_entry("ended", name, at, STEP).at - at)
    print_seconds("from a hold to the driver's end", took)
    for name in names:
        holds.release(world.home(name), PERSON)
    seconds = world.await_watched(patience(world))
    row(f"from the release of these {len(names)} until all are watched", f"{seconds:,.0f} s")


def damage(world: Thousand, chance: Random) -> None:
    """Damage some checkpoints, one by one; measure until the page shows each flow as parked."""
    names = chance.sample(world.names, max(2, min(10, len(world.names) // 100)))
    to_park, to_page = zip(*(_damage(world, name) for name in names), strict=True)
    print_seconds("from a damaged checkpoint to the park", to_park)
    print_seconds("from a damaged checkpoint to the park on the page", to_page)
    world.await_watched(patience(world))


def _damage(world: Thousand, name: str) -> tuple[float, float]:
    """Damage a checkpoint; return the seconds until the flow is parked, and until the page shows it."""
    home, at = world.home(name), time.monotonic()
    # Again and again, as another batch may be committed meanwhile.
    wait_until(lambda: holds.parked(home) or damage_checkpoint(home), STEP, f"{name} is parked", 0.2)
    world.parked.add(name)
    parked = time.monotonic()
    wait_until(
        lambda: world.page()[1][name] == "parked" or None, STEP, f"the page shows {name} as parked", 0.5
    )
    return parked - at, time.monotonic() - at


def damage_checkpoint(home: FlowHome) -> None:
    """Cut off the newest file of offsets, as a full disk does."""
    checkpoint = Checkpoint(home.storage, home.checkpoint(1, 1))
    home.storage.overwrite(checkpoint.name(f"offsets/{checkpoint.last_commit()}"), b"v2\n{")


def parse(world: Thousand) -> None:
    """Measure how long Airflow takes to parse all DAGs."""
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "plugins")])
    seconds, files = bench_parse.parse({**world.service.environment(), "PYTHONPATH": paths}, len(world.flows))
    of_flows = next(took for file, took in files.items() if Path(file).name == "flows.py")
    row("all DAGs are parsed once", f"{seconds:.2f} s, of these flows.py {of_flows:.2f} s")


def violations(world: Thousand) -> list[str]:
    """Return what does not hold: each flow has one driver, or the park that it should have."""
    living, wrong = world.company.living(), list[str]()
    for flow in world.flows:
        name = flow.full_name
        count, park = len(living.get(name, [])), holds.parked(world.home(name))
        if name in world.parked:
            if count or park is None:
                wrong.append(f"{name} should be parked: it has {count} drivers, and {park or 'no park'}")
            continue
        lease = leases.current(world.home(name))
        holder = lease.process.pid if lease is not None else None
        if park is not None or [entry.pid for entry in living.get(name, [])] != [holder]:
            wrong.append(f"{name} has {count} drivers, its lease process {holder}, and {park or 'no park'}")
    wrong += [
        f"{entry.flow} had two drivers at once"
        for entry in world.company.entries()
        if entry.event == "second"
    ]
    return wrong


def row(what: str, figures: str, aim: str = "") -> None:
    """Print a row."""
    print(f"{what:<58} {figures:<34} {aim}".rstrip(), flush=True)


def print_seconds(what: str, took: Sequence[float], aim: str = "") -> None:
    """Print median and 99th percentile of some seconds."""
    ordered = sorted(took)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    row(what, f"p50 {statistics.median(ordered):.2f} s, p99 {last:.2f} s ({len(ordered)})", aim)


def print_parts(before: Sample, after: Sample) -> None:
    """Print memory and processor time of each part, and of all of Airflow."""
    passed = after.at - before.at
    cores = {name: (part.cpu - before.parts[name].cpu) / passed for name, part in after.parts.items()}
    print(
        f"{'':<24} {'processes':>9} {'MiB before':>11} {'after':>9} {'cores':>7} {'open files':>12}"
        f" {'after':>7}"
    )
    for name, part in after.parts.items():
        early = before.parts[name]
        print(
            f"{name:<24} {part.processes:>9} {early.memory:>11,.0f} {part.memory:>9,.0f} {cores[name]:>7.3f}"
            f" {early.descriptors:>12,} {part.descriptors:>7,}"
            f"{'   not counted below' if name == SIMULATED else ''}"
        )
    ours = [name for name in after.parts if name != SIMULATED]
    row(
        "all of Airflow's parts: memory",
        f"{sum(after.parts[name].memory for name in ours):,.0f} MiB",
        "≤2,048 MiB",
    )
    row("all of Airflow's parts: processor", f"{sum(cores[name] for name in ours):.3f} cores", "≤1 core")


def print_growth(before: Sample, after: Sample, flows: int) -> None:
    """Print what a flow adds in a minute."""
    minutes = (after.at - before.at) / 60
    for what, early, late in (
        ("rows of Airflow's database", before.rows, after.rows),
        ("lines of Airflow's logs", before.lines, after.lines),
        ("files of Airflow's logs", before.log_files, after.log_files),
        ("files of the state folder, without checkpoints", before.files, after.files),
    ):
        row(f"{what}: a flow a minute", f"{(late - early) / flows / minutes:.3f} ({early:,} → {late:,})")
    requests = {
        name: (after.requests[name] - before.requests[name]) / flows / minutes for name in after.requests
    }
    each = ", ".join(f"{name} {number:.1f}" for name, number in requests.items())
    row("requests to the state folder: a flow a minute", f"{sum(requests.values()):.1f} ({each})", "≤40")
