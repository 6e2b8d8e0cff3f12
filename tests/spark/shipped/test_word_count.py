"""The shipped pipeline word_count, and what a socket can and cannot promise: what was committed stays
counted, once; what came and was not is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from streamkeeper_jobs.sinks import auto_cdc

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds
from streamkeeper.testing import PipelineTest
from tests.worlds.checkpoint_samples import confs
from tests.worlds.clusters.standalone import standalone
from tests.worlds.drivers import cut_off, kill_after_the_sinks_commit
from tests.worlds.flow_world import Flowbed, running_driver, wait_until
from tests.worlds.recover.old_jobs import PLAIN, declared_frame
from tests.worlds.shipped.beds import PIPELINES, recover, shipped
from tests.worlds.shipped.line_server import LineServer

NAME = "word_count.counted_words"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineServer]:
    with LineServer() as made:
        monkeypatch.setenv("WORDS_HOST", "127.0.0.1")
        monkeypatch.setenv("WORDS_PORT", str(made.port))
        yield made


@pytest.fixture
def words(make_bed: Callable[..., Flowbed], server: LineServer) -> Flowbed:
    return make_bed(shipped("word_count"), name=NAME, target="word_count")


@contextmanager
def counting(words: Flowbed, server: LineServer) -> Iterator[Future[Outcome]]:
    """Run a driver that has connected; a hold ends it."""
    before = server.made
    with words.running() as ended:
        wait_until(lambda: server.made > before or ended.done(), 180)
        yield ended
    holds.release(words.home, holds.person("test"))


def counted(words: Flowbed) -> Counter[str]:
    if not words.table.exists():
        return Counter()
    return Counter({row["word"]: row["count"] for row in words.rows()})


def comes_to(words: Flowbed, *lines: str) -> None:
    """Wait until the table has counted exactly these lines, and the checkpoint knows."""
    wanted = of(*lines)
    wait_until(lambda: counted(words) == wanted, 180)
    wait_until(lambda: is_at_rest(words), 60)


def is_at_rest(words: Flowbed) -> bool:
    checkpoint = words.checkpoint(words.home.generations()[-1])
    return checkpoint.last_commit() == checkpoint.offset_batches()[-1]


def of(*lines: str) -> Counter[str]:
    """Return the oracle's counts."""
    return Counter(word for line in lines for word in line.split())


@pytest.mark.long
def test_words_are_counted_over_a_restart(
    pipeline_test: Callable[..., PipelineTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS_HOST", "localhost")
    monkeypatch.setenv("WORDS_PORT", "9999")
    test = pipeline_test(PIPELINES / "word_count.py")
    for lines in (["to be or", "not  to be"], ["be"]):
        test.arrive("lines", [{"value": line} for line in lines])
        assert test.run("counted_words") is Outcome.STOPPED
    found = {row["word"]: row["count"] for row in test.rows("word_count")}
    assert found == {"to": 2, "be": 3, "or": 1, "not": 1}


@pytest.mark.long
def test_a_count_goes_on_after_a_stop(words: Flowbed, server: LineServer) -> None:
    with counting(words, server):
        server.send("a b a", "c")
        comes_to(words, "a b a", "c")
    with counting(words, server):
        server.send("a", "d", "e", "f", "g")
        comes_to(words, "a b a", "c", "a", "d", "e", "f", "g")


@pytest.mark.long
def test_a_count_goes_on_after_a_cut_network(words: Flowbed, server: LineServer) -> None:
    with counting(words, server) as ended:
        server.send("a b a")
        comes_to(words, "a b a")
        server.send("last")
        server.cut()
        assert ended.result(180) is Outcome.FAILED, "and is started again"
    with words.running() as ended:
        assert ended.result(180) is Outcome.FAILED, "nobody answers, which parks nothing"
    assert holds.all_of(words.home) == []
    server.mend()
    before = counted(words)
    assert before - of("last") == of("a b a")
    with counting(words, server):
        server.send("a")
        comes_to(words, *before.elements(), "a")


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "copied"),
    [(False, False), (True, False), (True, True)],
    ids=["before its commit", "after its commit", "after its commit, and copied"],
)
def test_a_batch_that_is_cut_off_is_lost_or_counted_whole(
    words: Flowbed, server: LineServer, monkeypatch: pytest.MonkeyPatch, after: bool, copied: bool
) -> None:
    with monkeypatch.context() as patch:
        cut_off(auto_cdc, "apply_changes", 3, patch, after=after)
        with counting(words, server) as ended:
            sent: list[str] = []
            while not ended.done():
                sent.append(f"a w{len(sent)}")
                server.send(sent[-1])
                wait_until(lambda: counted(words)[f"w{len(sent) - 1}"] == 1 or ended.done())
            assert ended.result() is Outcome.FAILED
    kept = sent if after else sent[:-1]
    if copied:
        recover(words, "reset_checkpoint", flow=NAME, start="generation", generation=1)
    with counting(words, server):
        server.send("a b")
        comes_to(words, *kept, "a b")


@pytest.mark.long
def test_a_killed_driver_s_count_goes_on(words: Flowbed, server: LineServer) -> None:
    with words.driver() as driver:
        server.wait_for(1)
        server.send("a b a")
        driver.until(lambda: counted(words) == of("a b a"))
        sent: list[str] = []

        def send(number: int) -> None:
            sent.append(f"a w{number}")
            server.send(sent[-1])

        kill_after_the_sinks_commit(words, driver, send)
    with counting(words, server):
        server.send("a")
        comes_to(words, "a b a", *sent, "a")


@pytest.mark.long
def test_a_lost_node_loses_nothing_that_the_driver_has(
    words: Flowbed, server: LineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    few = 'trigger="1 second", spark_conf={"spark.sql.shuffle.partitions": 2}'
    words.declare(shipped("word_count").replace('trigger="1 second"', few))
    with standalone(tmp_path, apart=True) as cluster:
        command = submit.driver(words.settings, [words.flow()], cluster.master).command()
        with running_driver(words.settings, command, tmp_path / "driver.log") as driver:
            server.wait_for(1)
            server.send("a b a")
            driver.until(lambda: counted(words) == of("a b a"))
            cluster.kill_worker()
            server.send("a c")
            cluster.add_worker()
            driver.until(lambda: counted(words) == of("a b a", "a c"))


def two_sessions(words: Flowbed, server: LineServer) -> int:
    """Count lines by two drivers, and return the last batch of the first one."""
    with counting(words, server):
        server.send("a b a")
        comes_to(words, "a b a")
    last = words.checkpoint(1).last_commit()
    assert last is not None
    with counting(words, server):
        server.send("a c")
        comes_to(words, "a b a", "a c")
    return last


def reset(words: Flowbed, last: int) -> list[str]:
    """The state is made anew; words that do not come again keep their rows."""
    recover(words, "reset_checkpoint", flow=NAME, accept=["missing-history"])
    return ["b", "c"]


def reset_empty(words: Flowbed, last: int) -> list[str]:
    recover(words, "reset_checkpoint", flow=NAME, state="empty", accept=["data-loss"])
    return ["b", "c"]


def rewind(words: Flowbed, last: int) -> list[str]:
    recover(words, "rewind", flow=NAME, batch=str(last), target="restored", accept=["data-loss"])
    return ["a b a"]


def full_refresh(words: Flowbed, last: int) -> list[str]:
    recover(words, "full_refresh", table="word_count.word_count", accept=["unknown-impact"])
    return []


RECOVERIES = [reset, reset_empty, rewind, full_refresh]


@pytest.mark.long
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_after_each_recovery_the_count_is_what_could_be_kept(
    words: Flowbed, server: LineServer, recovery: Callable[[Flowbed, int], list[str]]
) -> None:
    kept = recovery(words, two_sessions(words, server))
    with counting(words, server):
        server.send("a d")
        comes_to(words, *kept, "a d")


@pytest.mark.long
def test_a_reset_from_a_generation_counts_on(words: Flowbed, server: LineServer) -> None:
    two_sessions(words, server)
    reset(words, 0)
    with counting(words, server):
        server.send("a")
        comes_to(words, "a", "b", "c")
    recover(words, "reset_checkpoint", flow=NAME, start="generation", generation=1, accept=["data-loss"])
    with counting(words, server):
        server.send("a")
        comes_to(words, "a b a", "a c", "a")


@contextmanager
def plain_job(words: Flowbed, seen: Counter[str]) -> Iterator[StreamingQuery]:
    """Run the flow's query as somebody's own job, which notes its counts."""
    with confs(words.spark, PLAIN):
        writer = declared_frame(words).writeStream.outputMode("update").trigger(processingTime="0 seconds")
        kept = writer.option("checkpointLocation", str(old_checkpoint(words)))
        query = kept.foreachBatch(partial(note, seen)).start()
        try:
            yield query
        finally:
            query.stop()


def old_checkpoint(words: Flowbed) -> Path:
    return words.root / "old job" / "checkpoint"


def note(seen: Counter[str], batch: DataFrame, _: int) -> None:
    for row in batch.collect():
        seen[row["word"]] = row["count"]


@pytest.mark.long
def test_spark_alone_does_not_go_on_with_a_socket(words: Flowbed, server: LineServer) -> None:
    """Why a checkpoint begins at its connection: docs/decisions/0053."""
    seen: Counter[str] = Counter()
    with plain_job(words, seen):
        server.wait_for(1)
        server.send("a b a")
        wait_until(lambda: seen == of("a b a"))
    with plain_job(words, seen) as query:
        server.wait_for(2)
        server.send("a")
        with pytest.raises(StreamingQueryException, match="Offsets committed out of order"):
            query.awaitTermination(180)


@pytest.mark.long
def test_a_plain_job_s_count_is_gone_on_with(words: Flowbed, server: LineServer) -> None:
    """It wrote its counts elsewhere: those of words that come again are here, with what it had counted."""
    seen: Counter[str] = Counter()
    with plain_job(words, seen) as query:
        server.wait_for(1)
        server.send("a b a")
        wait_until(lambda: seen == of("a b a"))
        query.processAllAvailable()
    adopted = {"checkpoint": str(old_checkpoint(words)), "old_job_is_stopped": True}
    recover(words, "adopt", flow=NAME, **adopted, accept=["data-loss"])
    with counting(words, server):
        server.send("a c")
        comes_to(words, "a a a c")
