"""Update and complete flows: totals in a table are those of an oracle, whenever the driver is killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamkeeper_jobs.sinks import auto_cdc

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, BATCH, EARLIEST, EMPTY, REBUILT, StartAt
from tests.worlds.drivers import batch_of, cut_off, kill_after_the_sinks_commit
from tests.worlds.flow_world import NAME, Flowbed, event
from tests.worlds.recover.old_jobs import run_declared_job
from tests.worlds.recover.results import KEYS, MODES, SUMS, is_exact, sums, totals
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

both = pytest.mark.parametrize(("mode", "of_table"), MODES, ids=[mode for mode, _ in MODES])


@pytest.mark.parametrize(("mode", "of_table"), long_after(1, MODES), ids=[mode for mode, _ in MODES])
def test_totals_are_those_of_an_oracle_after_each_kind_of_start(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2, 8)
    bed.arrive(3, 9)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
    bed.arrive(1, 4)
    bed.reset(state=REBUILT)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
    bed.arrive(5, 15)
    bed.reset(StartAt(BATCH, generation=1, batch=0), state="copied")
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
    bed.reset(StartAt(EARLIEST), state=EMPTY)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "of_table"), MODES)
def test_a_state_that_starts_empty_makes_new_totals(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    """Of an updated key the later generation's row wins, even if it has counted less."""
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2, 8)
    assert bed.run() is Outcome.STOPPED
    bed.reset(StartAt(AFTER_LAST), state=EMPTY)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    left = sums([event(2)]) if mode == "update" else []
    bed.holds([*sums([event(1)]), *left], ("user_id", "count", "sum"))


@pytest.mark.parametrize("after", long_after(1, [False, True]), ids=["before the commit", "after the commit"])
def test_an_update_that_is_cut_off_is_made_once(
    make_bed: Callable[..., Flowbed], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    bed = make_bed(totals("update", KEYS))
    bed.arrive(1, 2, 8)
    bed.arrive(1, 3)
    with monkeypatch.context() as patch:
        cut_off(auto_cdc, "apply_changes", 2, patch, after=after)
        assert bed.run() is Outcome.FAILED
    version = delta_log.latest_version(str(bed.table))
    bed.arrive(9)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
    assert delta_log.latest_version(str(bed.table)) == (version or 0) + (1 if after else 2)


@pytest.mark.parametrize(
    ("query", "keys", "words"),
    long_after(
        1,
        [
            (SUMS, ', keys=["nope"]', "keys names the column nope, which is not there"),
            ("", KEYS, "has a query that updates nothing"),
            (".dropDuplicates(['event_id'])", KEYS, "has a query that updates nothing"),
            (SUMS + '.withColumn("__Streamkeeper_batch", F.lit(1))', KEYS, "a name that Streamkeeper keeps"),
        ],
    ),
)
def test_what_no_update_can_be_made_of_is_refused_before_anything_is_touched(
    make_bed: Callable[..., Flowbed], query: str, keys: str, words: str
) -> None:
    bed = make_bed(totals("update", keys, query))
    bed.arrive(1)
    assert bed.run() is Outcome.PARKED
    assert words in str(bed.park().details)
    assert not bed.table.exists()


def test_two_rows_of_a_key_in_a_batch_are_refused(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(totals("update", KEYS, '.groupBy("user_id", "n").count()'))
    bed.arrive(1, 8)
    assert bed.run() is Outcome.PARKED
    assert 'several rows of the key {"user_id":1}' in str(bed.park().details)
    assert bed.rows() == []


def test_a_table_with_other_rows_is_not_replaced(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(totals("append", "", ""))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.declare(totals("complete", ""))
    bed.reset(state=EMPTY)
    assert bed.run() is Outcome.PARKED
    assert "no complete flow made it" in str(bed.park().details)
    bed.holds(bed.events)


def test_rows_of_another_flows_generations_are_not_passed_over_in_silence(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(totals("update", KEYS))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    before = bed.rows()
    bed.declare(totals("update", KEYS).replace('name="clean_events"', 'name="others"'))
    bed.arrive(8)
    assert bed.run("events.others") is Outcome.PARKED
    found = holds.parked(FlowHome(bed.home.storage, "events", "others"))
    assert found is not None
    assert "has rows of generation 1, and events.others begins generation 1" in str(found.details)
    assert bed.rows() == before


@pytest.mark.long
@both
def test_the_results_of_another_job_are_gone_on_with(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    """A complete job's table is taken over as it is; an updating job's results lie elsewhere, so the impact
    is those that do not change any more.
    """
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2, 8)
    folder = run_declared_job(bed)
    bed.arrive(1, 3)
    values = {"flow": NAME, "checkpoint": str(folder), "old_job_is_stopped": True}
    accepted = ["data-loss"] if mode == "update" else []
    Recoverer.of(bed).run("adopt", "r1", **values, accept=accepted)
    assert bed.run() is Outcome.STOPPED
    gone = [event(2)] if mode == "update" else []
    bed.holds([row for row in sums(bed.events) if row not in sums(gone)], ("user_id", "count", "sum"))
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)


@pytest.mark.long
@both
def test_a_driver_that_is_killed_between_two_commits_counts_nothing_twice(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2)
    with bed.driver() as driver:
        driver.until(lambda: batch_of(bed) == 0)
        kill_after_the_sinks_commit(bed, driver)
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed, bed.events)
