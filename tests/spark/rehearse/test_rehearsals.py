"""Rehearsals: a recovery is carried out on a copy, its evidence is what the real one then does, and nothing
of the original is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.trial.differences import compare

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.recover.plans import rehearsal
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps.rehearse import folder
from tests.oracle import first_per
from tests.worlds.flow_world import NAME, Flowbed, heartbeat, pipeline, wait_until
from tests.worlds.rehearsing import for_real, original, planned, rehearse
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, upsert

DISTINCT, PLAIN = pipeline(), pipeline(view="")
DEMANDED = '\ndp.configure_pipeline(rehearse=["reset_checkpoint"])\n'


def checksum_of(bed: Flowbed) -> str:
    """Return the checksum of the table as it is, as evidence has it."""
    return compare(bed.spark, "events", str(bed.table), None, ()).checksum_after


def is_gone(bed: Flowbed, plan: Plan) -> bool:
    return not Path(folder(bed.settings, plan.recovery_id)).exists()


RECOVERIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reset_checkpoint", {"flow": NAME, "start": "after-last"}),
    ("rewind", {"flow": NAME, "batch": "0", "target": "restored"}),
    ("full_refresh", {"table": "events.events"}),
    ("reset_checkpoint", {"flow": NAME, "start": "earliest", "state": "empty", "accept": ["duplicates"]}),
    ("full_refresh_with_backup", {"table": "events.events"}),
    ("rebuild_without_downtime", {"table": "events.events"}),
    ("restore_table", {"table": "events.events", "version": 1}),
    ("backfill", {"flow": NAME, "read": "history", "accept": ["duplicates"]}),
)


@pytest.mark.parametrize(
    ("of", "values"), long_after(1, RECOVERIES), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_rehearsal_comes_to_what_the_recovery_then_does_and_changes_nothing(
    of: str, values: dict[str, Any], make_bed: Callable[..., Flowbed]
) -> None:
    bed = make_bed(pipeline(view="", files=1) if of == "backfill" else pipeline(files=1))
    for numbers in ((1, 2, 3), (3, 4), (5, 6)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    plan = planned(bed, of, rehearse=True, **values)
    before = original(bed.root)
    evidence = rehearse(bed, plan)
    assert original(bed.root) == before, "nothing is changed"
    assert is_gone(bed, plan)
    assert [one.step for one in evidence.steps] == [step for step in plan.steps if step != rehearsal.REHEARSE]
    for_real(bed, plan)
    if "verify_progress" in plan.steps:
        assert bed.run() is Outcome.STOPPED
    [table] = evidence.tables
    found = (table.rows_after, table.checksum_after)
    assert found == (len(bed.rows()), checksum_of(bed)), evidence.as_text()


@pytest.mark.long
def test_a_flow_runs_on_while_it_is_copied_and_the_copy_goes_on_exactly_after_it(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(pipeline(files=1))
    for first in range(0, 120, 3):
        bed.arrive(first, first + 1, first + 2, first + 3)
    with bed.running():
        wait_until(lambda: (beat := heartbeat(bed)) and (beat.batch or 0) >= 3)
        plan = planned(bed, "rehearse", flow=NAME)
        evidence = rehearse(bed, plan)
        wait_until(lambda: len(bed.rows()) == 121, 180)
    [table], [driver] = evidence.tables, evidence.drivers
    assert table.rows < 121, "the flow was still reading when it was copied"
    assert (table.rows_after, table.only_before, driver.whole) == (121, 0, True), evidence.as_text()
    assert table.checksum_after == checksum_of(bed)
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.long
def test_a_declaration_of_another_folder_is_rehearsed_alone_and_with_the_recovery_that_it_needs(
    make_bed: Callable[..., Flowbed], tmp_path: Path
) -> None:
    bed = make_bed(DISTINCT)
    bed.arrive(1, 2)
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(3, 4)
    branch = tmp_path / "branch"
    branch.mkdir()
    (branch / "events.py").write_text(PLAIN)
    before = original(bed.root)
    alone = planned(bed, "rehearse", "r1", flow=NAME, pipelines=str(branch))
    with pytest.raises(RecoveryError, match=r"failed on the copy, and nothing was changed: .*was parked"):
        rehearse(bed, alone)
    assert is_gone(bed, alone)
    reset = {"flow": NAME, "recovery": "reset_checkpoint"}
    whole = planned(bed, "rehearse", "r2", pipelines=str(branch), **reset)
    evidence = rehearse(bed, whole)
    assert original(bed.root) == before
    [table] = evidence.tables
    assert (table.rows, table.rows_after, table.only_after) == (3, 5, 2), "e3 is there twice without dedupe"
    assert [json.loads(row)["event_id"] for row in table.new] == ["e3", "e4"]


@pytest.mark.long
def test_a_rehearsal_that_is_named_counts_until_what_it_rehearsed_is_another(
    bed: Flowbed, at_work: Recoverer
) -> None:
    def refusals(values: dict[str, Any]) -> list[str]:
        """Return what a plan of a reset is refused for."""
        return [refusal.message for refusal in at_work.draft("reset_checkpoint", "r2", **values).refusals]

    bed.declare(DISTINCT + DEMANDED)
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    asked = {"flow": NAME, "start": "earliest", "state": "empty"}
    [_, demanded] = refusals(asked)
    assert demanded == (
        "The pipeline events demands that a reset_checkpoint is rehearsed (configure_pipeline). Choose"
        " Rehearse first (rehearse), or name the rehearsal that was done (rehearsal)."
    )
    values = {"start": "earliest", "state": "empty"}
    evidence = rehearse(
        bed, planned(bed, "rehearse", "r1", flow=NAME, recovery="reset_checkpoint", request=values)
    )
    assert evidence.tables[0].only_after == 2, "both events come again"
    named = {**asked, "rehearsal": "r1"}
    plan = at_work.draft("reset_checkpoint", "r2", **named)
    assert [refusal.impact for refusal in plan.refusals] == ["duplicates"], plan.refusals
    assert any("Rehearsed by r1" in note for note in plan.notes)
    [*_, other] = refusals({**named, "start": "after-last"})
    assert "start was {'mode': 'earliest'" in other
    with pytest.raises(RequestError, match=r"no rehearsal of that id that came to an end"):
        refusals({**asked, "rehearsal": "r9"})
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    [*_, worse] = refusals(named)
    assert worse.startswith("The rehearsal r1 was of something else: source events_raw: duplicates went from")


@pytest.mark.long
def test_a_driver_on_the_copy_reads_no_more_than_its_bounds(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(pipeline(view="", files=100))
    bed.arrive(0)
    assert bed.run() is Outcome.STOPPED
    for first in range(1, 60):
        bed.arrive(first)
    evidence = rehearse(bed, planned(bed, "rehearse", flow=NAME, files=2))
    [driver], [table] = evidence.drivers, evidence.tables
    assert (driver.whole, driver.ended) == (False, "at its bounds")
    assert 2 <= driver.rows < 59 and table.only_after == driver.rows, evidence.as_text()
    assert table.only_after % 2 == 0, "each batch read two files"


@pytest.mark.long
def test_a_backfill_reads_no_more_than_its_bounds_and_what_it_takes_for_real_is_told(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(pipeline(view="", files=100))
    for first in range(30):
        bed.arrive(first)
    assert bed.run() is Outcome.STOPPED
    asked = {"flow": NAME, "recovery": "backfill", "request": {"read": "history"}, "files": 2}
    evidence = rehearse(bed, planned(bed, "rehearse", **asked))
    [driver], [table] = evidence.drivers, evidence.tables
    assert (driver.whole, driver.total, evidence.skipped_steps) == (False, 30, ("verify", "unlock"))
    assert 2 <= driver.rows < 30 and table.only_after % 2 == 0, "each batch read two files"
    assert table.only_after >= driver.rows, evidence.as_text()
    assert f"{NAME}, for real: about" in evidence.as_text()


def test_a_source_whose_files_a_driver_would_take_away_is_not_rehearsed(
    make_bed: Callable[..., Flowbed],
) -> None:
    text = PLAIN.replace('"maxFilesPerTrigger": 2', '"maxFilesPerTrigger": 2, "cleanSource": "delete"')
    assert "cleanSource" in text
    bed = make_bed(text)
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    before = original(bed.root)
    with pytest.raises(
        RecoveryError, match="has cleanSource delete: a driver on a copy would take away files"
    ):
        rehearse(bed, planned(bed, "rehearse", flow=NAME))
    assert original(bed.root) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("of", "values"),
    [
        ("rewind", {"flow": f"customers.{INCREMENTAL}", "batch": "1", "target": "restored"}),
        pytest.param("full_refresh", {"table": "customers.customers"}, marks=pytest.mark.long),
    ],
)
def test_a_table_by_key_is_rehearsed_with_what_it_remembers_and_all_its_flows(
    of: str, values: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    shop = CustomersBed.make(tmp_path / "a bed", spark)
    shop.take_snapshot(1, 2, 3)
    for events in ([upsert(4, 1), upsert(1, 2)], [delete(2, 3), upsert(5, 4)], [upsert(3, 6), delete(5, 7)]):
        shop.change(*events)
        assert shop.run() is Outcome.STOPPED
    assert shop.run(SNAPSHOT) is Outcome.DONE
    shop.change(upsert(2, 1), upsert(6, 8))
    accept = ["duplicates", "data-loss"]
    along = {"along": [f"customers.{SNAPSHOT}"]} if of == "rewind" else {}
    plan = planned(shop.of(), of, rehearse=True, accept=accept, **values, **along)
    before = original(shop.root)
    evidence = rehearse(shop.of(), plan)
    assert original(shop.root) == before, "nothing is changed"
    for_real(shop.of(), plan)
    assert shop.run() is Outcome.STOPPED
    assert shop.run(SNAPSHOT) is Outcome.DONE
    shop.is_exact()
    [table] = evidence.tables
    real = compare(spark, "customers", shop.table, None, ())
    found = (table.rows_after, table.checksum_after)
    assert found == (real.rows_after, real.checksum_after), evidence.as_text()
    assert {one.flow.partition(".")[2]: one.whole for one in evidence.drivers} == {
        INCREMENTAL: True,
        SNAPSHOT: True,
    }


@pytest.mark.long
def test_a_reset_of_a_damaged_checkpoint_is_rehearsed_with_the_damage(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    for batch in bed.checkpoint(1).offset_batches():
        Path(bed.checkpoint(1).path(f"offsets/{batch}")).write_bytes(b"v2\n{ torn")
    assert bed.run() is Outcome.PARKED
    bed.arrive(3, 4)
    values = {"flow": NAME, "start": "earliest", "state": "empty", "accept": ["duplicates", "unknown-impact"]}
    evidence = rehearse(bed, planned(bed, "reset_checkpoint", rehearse=True, **values))
    [table] = evidence.tables
    assert (table.rows, table.only_before, table.only_after) == (3, 0, 4), evidence.as_text()
    assert bed.park(), "the original is parked still"
