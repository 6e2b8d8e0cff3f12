"""Plans for Kafka and Delta sources: what a start loses, repeats and replays, what is unknown, and why. The
probe of Kafka is a fake.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamkeeper.declare.model import Location, Source
from streamkeeper.errors import NotAskable, RequestError, SourceError
from streamkeeper.flows.generations import StartAt
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.plans.plan import Plan, worse
from streamkeeper.settings import PIPELINE_ENV
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import OffsetRange, Topics
from streamkeeper.support.amounts import (
    DATA_LOSS,
    DUPLICATES,
    MISSING_HISTORY,
    UNKNOWN_IMPACT,
    Amount,
    in_words,
)
from streamkeeper.watch.pending_input import what_waits
from tests.worlds.recover.recoveries import FLOW, impact, planned, refused
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import World
from tests.worlds.sources.source_impacts import (
    DELTA,
    HELD,
    KAFKA,
    STOOD,
    Ask,
    at,
    back_to_first,
    begun,
    broker,
    table,
)
from tests.worlds.tables.delta_logs import START_MS, Table

__all__ = ["broker", "table"]


def holding(first: OffsetRange, **more: OffsetRange) -> Topics:
    """Topics of one topic, whose partition 1 holds three records."""
    return Topics({"orders": {"0": first, "1": OffsetRange(0, 3), **more}})


SHORTER = Topics(holding(OffsetRange(0, 5)).ranges, {"orders": "id-1"})


def offsets(of_source: Any) -> StartAt:
    return StartAt("offsets", offsets={"events_raw": of_source})


@pytest.mark.parametrize(
    ("start", "lost", "repeated", "words"),
    [
        pytest.param("after-last", 0, 0, [], id="after the last"),
        pytest.param("earliest", 0, 7, [DUPLICATES], id="earliest repeats what is still there"),
        pytest.param("latest", 4, 0, [DATA_LOSS], id="latest"),
        pytest.param(StartAt("timestamp", timestamp_ms=2), 0, 5, [DUPLICATES], id="an earlier moment"),
        pytest.param(StartAt("timestamp", timestamp_ms=8), 2, 0, [DATA_LOSS], id="a later moment"),
        pytest.param(offsets({"orders": {"0": 8, "1": -2}}), 2, 1, [DATA_LOSS, DUPLICATES], id="offsets"),
    ],
)
def test_a_start_costs_the_records_between_it_and_where_the_flow_stands(
    start: StartAt | str, lost: int, repeated: int, *, words: list[str], world: World, broker: Ask
) -> None:
    asked = broker(HELD)
    found = plan(begun(world, KAFKA, STOOD), start)
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (lost, repeated)
    assert refused(found) == words
    assert set(asked) == {"b:1"}


def test_records_are_told_as_a_bound() -> None:
    assert in_words(Amount(None, 0, 7, at_most=True)) == "at most 7 rows"
    assert in_words(Amount(None, 0, 0)) == "nothing"
    assert in_words(Amount(3, 0, 7)) == "3 files, 7 rows"


def test_what_waits_and_what_is_new_is_told(world: World, broker: Ask) -> None:
    broker(
        Topics(
            {"orders": {**HELD.ranges["orders"], "2": OffsetRange(0, 5)}, "more": {"0": OffsetRange(0, 1)}}
        )
    )
    notes = impact(plan(begun(world, KAFKA, STOOD))).notes
    assert "at most 10 unread records will be read" in notes
    assert "new since then, and read from the first record: orders/2, more" in notes


@pytest.mark.parametrize(
    ("held", "ids", "rows", "again", "said"),
    [
        (
            holding(OffsetRange(8, 10)),
            {},
            2,
            0,
            "orders/0 was read up to 6, and holds nothing before 8 any more",
        ),
        (HELD, {"orders": "id-0"}, None, 0, "was deleted and recreated (its id was id-0"),
        (SHORTER, SHORTER.ids, None, 0, "was read up to 6, and ends at 5, though it is the same topic"),
        (
            holding(OffsetRange(1, 5)),
            {},
            None,
            7,
            "was read up to 6, and ends at 5: it was deleted and recreated, or",
        ),
    ],
    ids=["expired", "recreated", "cut off", "shorter, without an id"],
)
def test_what_is_gone_unread_is_a_loss_that_someone_must_accept(
    held: Topics, ids: dict[str, str], rows: int | None, *, again: int, said: str, world: World, broker: Ask
) -> None:
    broker(held)
    begun(world, KAFKA, STOOD, topics={"events_raw": ids})
    found = plan(world)
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (rows, again)
    assert refused(found) == ([DATA_LOSS, DUPLICATES] if again else [DATA_LOSS])
    assert any(said in note for note in impact(found).notes)
    assert refused(plan(world, accept=(DATA_LOSS, DUPLICATES))) == []


@pytest.mark.parametrize(
    ("start", "repeated"),
    [("earliest", 5 + 3), ("latest", 0), (offsets({"orders": {"0": 4, "1": 3}}), 1)],
    ids=["earliest", "latest", "offsets"],
)
def test_what_was_read_behind_the_end_of_a_topic_comes_from_no_start(
    start: StartAt | str, repeated: int, world: World, broker: Ask
) -> None:
    broker(SHORTER)
    found = plan(begun(world, KAFKA, STOOD, topics={"events_raw": SHORTER.ids}), start)
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (None, repeated)
    assert refused(found) == ([DATA_LOSS, DUPLICATES] if repeated else [DATA_LOSS])


def test_a_state_lacks_what_was_read_behind_the_end_of_a_topic(world: World, broker: Ask) -> None:
    broker(SHORTER)
    begun(world, KAFKA, STOOD, {"orders": {"0": 0, "1": 0}}, topics={"events_raw": SHORTER.ids})
    world.park(stateful=True)
    found = plan(world)
    assert (impact(found).replayed.rows, impact(found).gone.rows) == (5 + 3, 1)
    assert refused(found) == [DATA_LOSS, MISSING_HISTORY]


@pytest.mark.parametrize("target", ["kept", "restored"])
def test_a_rewind_says_what_was_read_and_is_gone(target: str, world: World, broker: Ask) -> None:
    broker(SHORTER)
    back_to_first(world, STOOD, KAFKA, {"orders": {"0": 2, "1": 2}}, topics={"events_raw": SHORTER.ids})
    found = planned(world, "rewind", flow=FLOW, batch="0", target=target)
    assert DATA_LOSS in refused(found)
    assert "of which 1 had been read" in in_words(impact(found).lost)


def test_a_rebuilt_state_replays_from_where_the_flow_first_read_and_counts_what_is_gone(
    world: World, broker: Ask
) -> None:
    broker(HELD)
    begun(world, KAFKA, STOOD, initial={"orders": {"0": 1, "1": 0}})
    world.park(stateful=True)
    found = plan(world)
    assert (impact(found).replayed.rows, impact(found).gone.rows, refused(found)) == (6, 2, [MISSING_HISTORY])
    assert refused(plan(world, state="empty")) == [UNKNOWN_IMPACT]
    assert refused(plan(world, accept=(MISSING_HISTORY,))) == []


def test_a_broker_that_does_not_answer_makes_impacts_unknown_and_nothing_fail(
    world: World, broker: Ask
) -> None:
    asked = broker("b:1 does not answer within 5 s")
    begun(world, KAFKA, STOOD)
    found = plan(world)
    assert len(asked) == 1, "a silent broker costs a plan its time once"
    assert refused(found) == []
    said = "still exist: b:1 does not answer within 5 s. The driver checks before it changes anything"
    assert said in impact(found).notes[0]
    assert refused(plan(world, "earliest")) == [DUPLICATES]
    assert refused(plan(world, "latest")) == [DATA_LOSS]
    assert refused(plan(world, StartAt("timestamp", timestamp_ms=2))) == [UNKNOWN_IMPACT]
    counted = plan(world, offsets({"orders": {"0": 4, "1": 3}}))
    assert (impact(counted).repeated.rows, refused(counted)) == (2, [DUPLICATES])
    assert "b:1 does not answer" in in_words(impact(plan(world, "latest")).lost)


@pytest.mark.parametrize("answer", [HELD, "no answer"], ids=["by the broker", "by the old position"])
def test_a_partition_left_out_of_explicit_offsets_is_refused_by_name(
    answer: Topics | str, world: World, broker: Ask
) -> None:
    broker(answer)
    begun(world, KAFKA, STOOD)
    with pytest.raises(RequestError, match=r"offsets of events_raw cannot be used: .*1 is left out"):
        plan(world, offsets({"orders": {"0": 4}}))


def test_an_environment_variable_that_is_not_set_here_is_a_reason_and_no_failure(world: World) -> None:
    world.more[PIPELINE_ENV] = "SURELY_NOT_SET"
    begun(world, KAFKA.replace("b:1", "{env:SURELY_NOT_SET}"), STOOD)
    assert "the environment variable SURELY_NOT_SET is not set here" in impact(plan(world)).notes[0]


def test_a_loss_that_grew_since_it_was_approved_is_asked_for_again(world: World, broker: Ask) -> None:
    begun(world, KAFKA, STOOD)
    broker(HELD)
    before = plan(world, "latest")
    broker(Topics({"orders": {"0": OffsetRange(0, 12), "1": OffsetRange(2, 3)}}, HELD.ids))
    [why] = worse(before, plan(world, "latest"))
    assert why == "source events_raw: data loss went from at most 4 rows to at most 6 rows"


@pytest.mark.parametrize(
    ("start", "lost", "repeated", "words"),
    [
        pytest.param("after-last", 0, 0, [], id="after the last"),
        pytest.param("earliest", 0, 11, [DUPLICATES], id="earliest"),
        pytest.param("latest", 4, 0, [DATA_LOSS], id="latest"),
        pytest.param(StartAt("timestamp", timestamp_ms=START_MS + 60_000), 0, 6, [DUPLICATES], id="a moment"),
        pytest.param(offsets(at(2, 1)), 4, 0, [DATA_LOSS], id="a later offset"),
    ],
)
def test_a_start_costs_the_rows_between_it_and_where_the_flow_stands_in_the_table(
    start: StartAt | str, lost: int, repeated: int, *, words: list[str], world: World, table: Table
) -> None:
    found = plan(begun(world, DELTA, at(2, 0)), start)
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (lost, repeated)
    assert refused(found) == words


def refreshed(world: World) -> Plan:
    return planned(world, "full_refresh", table="events")


def test_a_full_refresh_does_not_promise_rows_that_a_table_had_when_they_were_read(
    world: World, table: Table
) -> None:
    begun(world, DELTA, at(2))
    assert refused(refreshed(world)) == []
    table.commit({"remove": {"path": "b0", "dataChange": True}})
    found = refreshed(world)
    assert refused(found) == [UNKNOWN_IMPACT]
    assert "rows that were read before are gone or have changed" in found.refusals[0].message
    assert any("deleted or changed, for example by version 3" in note for note in impact(found).notes)


def test_a_full_refresh_does_not_know_of_deletes_in_commits_that_were_cleaned_up(
    world: World, table: Table
) -> None:
    begun(world, DELTA, at(2))
    table.clean_up(1)
    found = refreshed(world)
    assert refused(found) == [UNKNOWN_IMPACT]
    assert any("starts at version 1: whether rows were deleted" in note for note in impact(found).notes)


def test_what_waits_in_a_table_is_told_and_a_change_of_rows_too(world: World, table: Table) -> None:
    table.commit(
        {"remove": {"path": "b0", "dataChange": True}},
        {"add": {"path": "b1", "dataChange": True, "stats": '{"numRecords": 4}'}},
    )
    notes = impact(plan(begun(world, DELTA, at(2)))).notes
    assert "unread versions up to 3 will be read: 9 rows in 3 files" in notes
    assert any("version 3 changes or deletes rows: the flow will stop there" in note for note in notes)


def test_where_no_version_waits_none_is_said_to_be_read(world: World, table: Table) -> None:
    found = impact(plan(begun(world, DELTA, at(3))))
    assert found.notes == ("no version waits: 2 is the newest, and 3 is to be read next",)


def test_a_table_that_was_made_anew_or_cleaned_up_is_a_loss_that_someone_must_accept(
    world: World, table: Table
) -> None:
    begun(world, DELTA, {**at(2), "reservoirId": "another"})
    found = plan(world)
    assert refused(found) == [DATA_LOSS]
    assert "the table was recreated: its id was another" in in_words(impact(found).lost)
    assert refused(plan(world, accept=(DATA_LOSS,))) == []


def test_commits_that_were_cleaned_up_unread_are_a_loss(world: World, table: Table) -> None:
    begun(world, DELTA, at(1))
    table.clean_up(2)
    assert "the log starts at 2 now: the commits before were cleaned up" in in_words(impact(plan(world)).lost)


def test_one_commit_that_is_gone_is_no_clean_up_of_those_before(world: World, table: Table) -> None:
    begun(world, DELTA, at(1))
    (table.log / f"{1:020d}.json").unlink()
    assert "the log has no commit 1, though older ones are there" in in_words(impact(plan(world)).lost)


def test_files_that_vacuum_took_unread_block_a_start_after_the_last(world: World, table: Table) -> None:
    (table.root / "c1").unlink()
    found = plan(begun(world, DELTA, at(2)))
    assert refused(found) == [None]
    assert "1 files of versions from 2 on were removed" in found.refusals[0].message
    assert refused(plan(world, "latest", accept=(DATA_LOSS,))) == []


@pytest.mark.parametrize("start", ["after-last", offsets(at(2))], ids=["after the last", "explicit offsets"])
def test_files_of_a_change_feed_that_vacuum_took_unread_block_a_start(
    start: StartAt | str, world: World, table: Table
) -> None:
    table.commit({"cdc": {"path": "_change_data/cdc-1.parquet", "dataChange": False}})
    feed = DELTA.replace("path=", 'options={"readChangeFeed": True}, path=')
    begun(world, feed, at(2))
    if isinstance(start, str):
        found = plan(world, start)
        assert refused(found) == [None]
        said = found.refusals[0].message
    else:
        with pytest.raises(RequestError) as error:
            plan(world, start)
        said = str(error.value)
    assert "1 files of versions from 2 on were removed, as by VACUUM, before they were read" in said
    assert refused(plan(world, "latest", accept=(DATA_LOSS, UNKNOWN_IMPACT))) == []


def test_a_state_that_cannot_be_rebuilt_blocks_the_plan_unless_it_is_to_be_empty(
    world: World, table: Table
) -> None:
    begun(world, DELTA, at(2))
    table.clean_up(2, checkpoint=False)
    world.park(stateful=True)
    assert refused(plan(world)) == [None]
    assert refused(plan(world, state="empty")) == [UNKNOWN_IMPACT]


@pytest.mark.parametrize(
    ("offset", "said"),
    [({**at(2), "reservoirId": "another"}, "the table was recreated"), (at(9), "the table ends at 2")],
    ids=["of another table", "beyond the end"],
)
def test_an_offset_of_a_table_that_cannot_be_is_refused(
    offset: dict[str, Any], said: str, world: World, table: Table
) -> None:
    begun(world, DELTA, at(2))
    with pytest.raises(RequestError, match=rf"offsets of events_raw cannot be used: .*{said}"):
        plan(world, offsets(offset))


def test_a_moment_whose_commits_were_cleaned_up_is_refused_by_the_plan(world: World, table: Table) -> None:
    begun(world, DELTA, at(2))
    table.clean_up(2)
    with pytest.raises(RequestError, match="starts with version 2, which is newer than that time"):
        plan(world, StartAt("timestamp", timestamp_ms=START_MS))


def test_a_table_that_is_not_there_makes_impacts_unknown(world: World) -> None:
    begun(world, DELTA, at(2))
    assert "still exist: there is no Delta table at" in impact(plan(world)).notes[0]
    assert refused(plan(world, "latest")) == [DATA_LOSS]
    assert refused(plan(world, StartAt("timestamp", timestamp_ms=2))) == [UNKNOWN_IMPACT]


@pytest.mark.parametrize(
    ("held", "there", "said"),
    [
        (HELD, True, "4 records at most wait in the source events_raw"),
        (holding(OffsetRange(0, 6)), False, ""),
        (holding(OffsetRange(0, 6), **{"2": OffsetRange(0, 1)}), True, "1 records at most"),
        ("b:1 does not answer", True, "so it can probably not be read either: b:1 does not answer"),
    ],
    ids=["behind", "at the end", "a new partition", "a silent broker"],
)
def test_the_monitor_asks_the_brokers_whether_records_wait(
    held: Topics | str, there: bool, said: str, world: World, broker: Ask
) -> None:
    broker(held)
    begun(world, KAFKA, STOOD)
    found = what_waits(Observed(world.home), world.flow)
    assert found.pending is there
    assert said in found.description


def test_what_cannot_be_asked_from_here_alarms_nobody_and_is_told(world: World) -> None:
    world.more[PIPELINE_ENV] = "SURELY_NOT_SET"
    begun(world, KAFKA.replace("b:1", "{env:SURELY_NOT_SET}"), STOOD)
    found = what_waits(Observed(world.home), world.flow)
    assert not found.pending
    said = "whether records wait in the source events_raw is unknown: the environment variable SURELY_NOT_SET"
    assert said in found.description


@pytest.mark.parametrize(
    ("offset", "waits"),
    [(at(2), True), (at(2, 0), True), (at(2, 1), False), (at(3), False)],
    ids=["a version", "a part of one", "its end", "the next one"],
)
def test_the_monitor_reads_from_a_tables_log_whether_commits_wait(
    offset: dict[str, Any], waits: bool, world: World, table: Table
) -> None:
    begun(world, DELTA, offset)
    assert what_waits(Observed(world.home), world.flow).pending is waits


def test_a_commit_without_rows_is_nothing_to_wait_for(world: World, table: Table) -> None:
    begun(world, DELTA, at(3))
    table.commit({"txn": {"appId": "a", "version": 1}})
    assert not what_waits(Observed(world.home), world.flow).pending


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="p w";'
STORE, LOGIN = "kafka.ssl.truststore.location", "kafka.sasl.jaas.config"
OPTIONS: dict[str, tuple[dict[str, str], dict[str, Any] | str]] = {
    "an address": ({}, {"bootstrap.servers": "b:1"}),
    "encrypted": ({"kafka.security.protocol": "SSL"}, {"security.protocol": "SSL"}),
    "certificates as text": (
        {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": "CA",
            "kafka.ssl.keystore.key": "KEY",
        },
        {"ssl.ca.pem": "CA", "ssl.key.pem": "KEY"},
    ),
    "a login": (
        {"kafka.sasl.mechanism": "PLAIN", LOGIN: JAAS},
        {"sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "p w"},
    ),
    "a Java key store": ({STORE: "/x.jks"}, f"its option {STORE} is only understood with a JVM"),
    "another login": (
        {LOGIN: "com.sun.security.auth.module.Krb5LoginModule required;"},
        f"its option {LOGIN} is only understood with a JVM",
    ),
}


def kafka_source(brokers: str, **options: str) -> Source:
    given = {"kafka.bootstrap.servers": brokers, **options}
    return Source("raw", "kafka", None, None, given, Location("p.py", 1))


@pytest.mark.parametrize(("options", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_the_probe_translates_the_options_that_decide_who_may_ask(
    options: dict[str, str], expected: dict[str, Any] | str
) -> None:
    source = kafka_source("b:1", **options)
    if isinstance(expected, str):
        with pytest.raises(NotAskable, match=expected):
            kafka_client.client_options(source, 5)
    else:
        assert expected.items() <= kafka_client.client_options(source, 5).items()


def test_a_broker_that_is_not_there_is_given_up_after_the_time_that_it_has() -> None:
    """Port 1 of this machine refuses: it is a real client that asks."""
    said = r"127.0.0.1:1 does not answer within 1 s: .*(Connect|transport failure)"
    with pytest.raises(SourceError, match=said):
        kafka_client.look_at(kafka_source("127.0.0.1:1", subscribe="orders"), seconds=1)


# --- going back


@pytest.mark.parametrize(
    ("held", "lost", "repeated", "words"),
    [(HELD, 0, 5, [DUPLICATES]), (holding(OffsetRange(4, 10)), 2, 3, [DATA_LOSS, DUPLICATES])],
    ids=["all is there", "some of it has expired"],
)
def test_a_rewind_of_kafka_repeats_the_records_since_and_cannot_read_what_expired(
    held: Topics, lost: int, repeated: int, *, words: list[str], world: World, broker: Ask
) -> None:
    broker(held)
    found = back_to_first(world, STOOD, KAFKA, {"orders": {"0": 2, "1": 2}})
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (lost, repeated)
    assert refused(found) == words
    then = "after batch 0 of generation 1: topic orders: partition 0 → 2, partition 1 → 2"
    assert impact(found).then == then


def test_a_rewind_of_a_topic_that_cannot_be_asked_has_no_impact(world: World, broker: Ask) -> None:
    broker("the broker does not answer")
    found = back_to_first(world, STOOD, KAFKA, {"orders": {"0": 2, "1": 2}})
    assert impact(found).repeated.rows == 5
    assert refused(found) == [DUPLICATES]


@pytest.mark.parametrize(
    ("then", "words"), [(at(2), [DUPLICATES]), (at(3), [])], ids=["a version back", "where it stands"]
)
def test_a_rewind_of_a_table_repeats_the_rows_since(
    then: dict[str, Any], words: list[str], world: World, table: Table
) -> None:
    found = back_to_first(world, at(3), DELTA, then)
    assert (impact(found).lost.nothing, refused(found)) == (True, words)
    assert impact(found).repeated.nothing == (not words)


def test_a_rewind_to_versions_that_were_cleaned_up_is_a_loss_whose_repeats_nobody_knows(
    world: World, table: Table
) -> None:
    back_to_first(world, at(3), DELTA, at(1))
    table.clean_up(2)
    found = planned(world, "rewind", flow=FLOW, batch="0")
    assert impact(found).repeated.rows_unknown is not None
    assert {DATA_LOSS, DUPLICATES, UNKNOWN_IMPACT} & set(refused(found))
