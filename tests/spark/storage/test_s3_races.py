"""Delta's log, Spark's checkpoints and leases on a real S3 server: of two writers of one file exactly one is
told that it wrote it, also where answers are lost.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import pytest

from streamkeeper.jars.ivy import pyspark_jars
from streamkeeper.jars.java import find_java
from streamkeeper.settings import PROJECT
from tests.worlds.racing import take_over
from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_jars

pytestmark = pytest.mark.long

RACES = PROJECT / "tests" / "jvm" / "Races.java"


@pytest.fixture
def network(server: str) -> Iterator[Proxy]:
    with proxy(server) as found:
        yield found


def play(
    endpoint: str, folder: str, kind: str, rounds: int = 0, root: str = f"s3a://{BUCKET}"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", f"{s3_jars()}/*:{pyspark_jars()}/*", str(RACES)),
            *(endpoint, f"{root}/{folder}", kind, str(rounds)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["log", "checkpoint"])
def test_of_two_writers_of_one_file_exactly_one_wins(server: str, kind: str) -> None:
    done = play(f"http://{server}", kind, kind, 1000)
    assert done.stdout == "none 0 one 1000 both 0 wrong 0\n", done.stderr[-4000:]


@pytest.mark.parametrize("kind", ["log", "checkpoint"])
def test_exactly_one_wins_where_every_third_answer_to_a_put_is_lost(network: Proxy, kind: str) -> None:
    puts = count(1)
    network.loses = lambda request: request.startswith("PUT") and next(puts) % 3 == 0
    done = play(network.url, f"lost-{kind}", kind, 100)
    assert done.stdout == "none 0 one 100 both 0 wrong 0\n", done.stderr[-4000:]


@pytest.mark.parametrize(
    ("rounds", "lost"), [(1000, 0), (100, 3)], ids=["1,000 times", "every third answer is lost"]
)
def test_of_two_drivers_that_take_a_lease_over_exactly_one_has_it(
    server: str, network: Proxy, rounds: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = count(1)
    network.loses = lambda request: request.startswith("PUT") and next(puts) % lost == 0
    endpoint = network.url if lost else f"http://{server}"
    for name, value in {**LOGIN, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    context, root = get_context("spawn"), f"s3://{BUCKET}/leases-{lost}"
    barrier, won = context.Barrier(2), context.Queue()
    racers = [context.Process(target=take_over, args=(barrier, won, root, me, rounds)) for me in "ab"]
    for racer in racers:
        racer.start()
    found: dict[str, list[bool]] = {"a": [], "b": []}
    for _ in range(2 * rounds):
        me, did = won.get(timeout=60)
        found[me].append(did)
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert [one + other for one, other in zip(*found.values(), strict=True)] == [1] * rounds
    assert 0 < sum(found["a"]) < rounds, "each wins some, so they did race"


def test_what_is_thrown_away_is_never_there(server: str) -> None:
    done = play(f"http://{server}", "aborted", "abort")
    assert done.stdout == "failed, there false\n" * 2 + "cancelled, there false\n" * 2, done.stderr[-4000:]


def test_a_folder_that_is_not_on_s3_is_written_as_spark_writes_it(tmp_path: Path) -> None:
    """A copy of a checkpoint on a local disk, or the log of a sink of files elsewhere."""
    done = play("http://127.0.0.1:1", "copy", "elsewhere", root=tmp_path.as_uri())
    assert done.stdout == "written true, again false\nthere first\n", done.stderr[-4000:]


def test_a_store_that_does_not_obey_is_refused_and_one_that_does_is_not(
    server: str, disobedient: Proxy
) -> None:
    assert play(f"http://{server}", "probe", "prove").stdout == "proven\n"
    refused = play(disobedient.url, "probe", "prove")
    assert (refused.returncode, "took a second conditional PUT" in refused.stderr) == (1, True)
