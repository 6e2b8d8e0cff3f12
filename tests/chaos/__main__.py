"""Chaos: ``python -m tests.chaos --rounds 20 --seed 7``, or ``make chaos ROUNDS=… SEED=…``. Exit code 1 on
any violation.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from demo.__main__ import Interrupted, _ending_all, _interruptible
from streamkeeper.settings import SLOT
from tests.chaos.arena import Arena, arena, on_small_disk
from tests.chaos.choosing import CLUSTER, LOCAL, SMALL_DISK, Victim, choose, possible
from tests.chaos.cluster import cluster
from tests.chaos.rounds import Result, play

SUPERVISION = "STREAMKEEPER_SUPERVISION"
PLACES = {"local": (arena, LOCAL), "disk": (on_small_disk, SMALL_DISK), "cluster": (cluster, CLUSTER)}
HEADER = (
    f"{'round':>5}  {'victim':<28} {'blow':<16} {'moment':<42} {'commit':>7} {'watched':>7} {'drivers':>7}"
    f" {'rows':>8}  verdict"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rounds; give 0, or 1 for a violation, 130 where it was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="the same seed plays the same rounds; one is drawn where none is given",
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to replay one")
    parser.add_argument(
        "--where",
        choices=sorted(PLACES),
        default="local",
        help="one flow with LocalExecutor, the same on a small disk that fills up (as root), or two on a"
        " Spark cluster with Celery, Kafka and S3",
    )
    parser.add_argument(
        "--victims", nargs="*", choices=[victim.name.lower() for victim in Victim], help="only these"
    )
    parser.add_argument(
        "--keep", type=Path, default=None, help="an empty folder for everything that is written; kept"
    )
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(10**6)
    place, all_victims = PLACES[chosen.where]
    supervision = os.environ.get(SUPERVISION, SLOT)
    present = possible(all_victims, supervision)
    victims = tuple(Victim[name.upper()] for name in chosen.victims or ()) or present
    if impossible := [victim.name.lower() for victim in victims if victim not in present]:
        parser.error(
            f"--where {chosen.where} with {SUPERVISION}={supervision} has no {', '.join(impossible)}"
        )
    mark = uuid.uuid4().hex
    again = replay(seed, chosen.rounds, chosen.where, chosen.victims or (), supervision)
    print(f"seed {seed}, {chosen.rounds} rounds; replay: {again}", flush=True)
    try:
        with (
            _interruptible(),
            tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as scratch,
            _ending_all(mark),
        ):
            root = (chosen.keep or Path(scratch) / "arena").resolve()
            with place(root, mark, seed) as there:
                results = list(
                    _played(there, seed, range(chosen.first, chosen.first + chosen.rounds), victims)
                )
                said = summary(there, again, results)
    except Interrupted:
        return 130
    print(said, flush=True)
    return 1 if any(result.wrong for result in results) else 0


def _played(place: Arena, seed: int, numbers: Sequence[int], victims: tuple[Victim, ...]) -> Iterator[Result]:
    print(HEADER, flush=True)
    for number in numbers:
        result = play(place, choose(seed, number, victims, len(place.flows)))
        print(line(result), flush=True)
        yield result


def line(result: Result) -> str:
    """Give a round as a line of the table."""
    chosen = result.round
    blow = f"{chosen.blow.value} {chosen.pause:g} s" if chosen.pause else chosen.blow.value
    moment = f"{chosen.moment.value} + {chosen.jitter:.2f} s"
    seconds = " ".join(
        f"{'–' if value is None else f'{value:.1f} s':>7}" for value in (result.to_commit, result.to_watch)
    )
    return (
        f"{chosen.number:>5}  {chosen.victim.value:<28} {blow:<16} {moment:<42} {seconds} {result.drivers:>7}"
        f" {result.rows:>8,}  {result.verdict}"
    )


def replay(seed: int, rounds: int, where: str, victims: Sequence[str], supervision: str = SLOT) -> str:
    """Give the command that plays the same rounds."""
    given = f"make chaos WHERE={where} ROUNDS={rounds} SEED={seed}"
    given = given if supervision == SLOT else f"{SUPERVISION}={supervision} {given}"
    return given + (f' VICTIMS="{" ".join(victims)}"' if victims else "")


def summary(place: Arena, again: str, results: Sequence[Result]) -> str:
    """Say how it ended, and how often the auditor looked."""
    failed = [result.round.number for result in results if result.wrong]
    auditors = [flow.auditor for flow in place.flows]
    replaced = [result.round.number for result in results if result.replaced]
    harmless = (
        f"\nIn rounds {replaced} the driver was ended although only its supervisor was struck."
        if replaced
        else ""
    )
    looked = (
        f"Each flow's auditor looked {min(auditor.looks for auditor in auditors):,} times or more, at most"
        f" {max(auditor.longest for auditor in auditors):.1f} s apart;"
        f" {sum(auditor.drivers() for auditor in auditors)} drivers had a lease.{harmless}"
    )
    if not failed:
        return f"{looked}\nNothing lost, nothing twice, one writer in {len(results)} rounds."
    return f"{looked}\nVIOLATIONS in rounds {failed}. Replay them: {again}"


if __name__ == "__main__":
    sys.exit(main())
