"""What there is of sources, sinks, states and stores, cell by cell, each with the test that proves it:
``docs/reference/supported.md`` is made of it (:mod:`tests.worlds.support.page`).

What is *not* there is asked of the code itself by ``tests/core/test_support.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

YES = "yes"

GENERATION, STREAM, SINKS = "tests/spark/generation", "tests/spark/stream", "tests/spark/sinks"
RECOVER, SOURCES, SHIPPED = "tests/spark/recover", "tests/spark/sources", "tests/spark/shipped"
RESET = f"{GENERATION}/test_reset.py"
KAFKA, DELTA = f"{SOURCES}/test_kafka_source.py", f"{SOURCES}/test_delta_source.py"
WORDS, SOCKET = f"{SHIPPED}/test_word_count.py", "tests/core/sources/test_socket.py"
LAG = "tests/core/sources/test_lag.py"
MANAGED = "tests/core/tables/test_named_tables.py"
BACKFILL, REWIND = f"{RECOVER}/test_backfill.py", f"{RECOVER}/test_rewind.py"
SIDE_TABLE = f"{RECOVER}/full_refresh/test_rebuild_without_downtime.py"
TOTALS, QUARANTINE = f"{SINKS}/test_totals.py", f"{SINKS}/test_quarantine.py"
FUNCTION, TOPIC, FOLDER = (
    f"{SINKS}/test_each_batch.py",
    f"{SINKS}/test_kafka_sink.py",
    f"{SINKS}/test_file_sink.py",
)
CUSTOMERS, ADOPT = "tests/spark/cdc/test_customers.py", f"{RECOVER}/adopt/test_adopt.py"
PROPERTIES, IMPACTS = f"{RECOVER}/test_recovery_properties.py", f"{RECOVER}/test_impacts_come_true.py"
SHAPES = f"{STREAM}/test_shapes.py"
OF_TOTALS = f"{PROPERTIES}::test_totals_are_those_of_an_oracle_after_each_recovery"
COUNTED = f"{IMPACTS}::test_whatever_the_query_and_the_recovery_the_impact_comes_true"
REHEARSED = (
    "tests/spark/rehearse/test_rehearsals.py"
    "::test_a_rehearsal_comes_to_what_the_recovery_then_does_and_changes_nothing"
)
REFUSED = (
    "tests/core/test_support.py::test_a_recovery_that_a_target_has_not_is_refused_in_the_words_of_the_page"
)
STORAGE = "tests/core/storage/test_storage.py"
OF_SINKS = f"{SINKS}/test_recoveries_of_sinks.py"
REWOUND = f"{OF_SINKS}::test_what_is_rewound_comes_once_more"
CHUNKS_AGAIN = f"{OF_SINKS}::test_a_backfill_writes_its_chunks_once_more"
GIVEN_TWICE = f"{TOPIC}::test_a_batch_that_came_twice_is_dropped_by_its_readers_and_counted_by_the_plan"


@dataclass(frozen=True)
class Cell:
    """What holds, in a few words, and the id of the test that proves it. ``short`` of the promise that the
    others of its column make, it is told in *italics*; ``refused`` says that it is not there.
    """

    said: str
    proof: str
    short: bool = False
    refused: bool = False


def yes(proof: str, said: str = YES) -> Cell:
    return Cell(said, proof)


def weaker(said: str, proof: str) -> Cell:
    return Cell(said, proof, short=True)


def no(said: str, proof: str = REFUSED) -> Cell:
    return Cell(f"no: {said}", proof, refused=True)


_NO_HISTORY = no(
    "it has no history", "tests/core/test_support.py::test_a_source_without_history_is_said_to_have_none"
)


@dataclass(frozen=True)
class Part:
    """A table of the page. ``rows`` have a cell for each of its columns."""

    title: str
    of: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]
    said: str = ""


FORMATS = Part(
    "Sources",
    "format",
    ("exactly once", "a reset starts", "rebuilds a state", "backfill", "how far behind"),
    {
        "json, csv, parquet, orc, text": (
            yes(f"{SOURCES}/test_file_names.py::test_each_file_of_a_batch_is_read_once_and_counts_as_read"),
            yes(
                f"{RESET}::test_a_timestamp_reads_the_files_changed_at_it_or_later",
                "after-last, earliest, latest, by time, offsets",
            ),
            yes(f"{GENERATION}/test_replay.py::test_a_history_of_files_is_replayed_step_by_step"),
            yes(f"{BACKFILL}::test_state_of_the_flows_view_spans_all_chunks"),
            yes(
                f"{LAG}::test_files_that_were_not_read_are_counted_with_the_age_of_the_oldest", "files, bytes"
            ),
        ),
        "kafka": (
            yes(f"{KAFKA}::test_every_record_is_written_once_over_several_batches_and_starts"),
            yes(
                f"{KAFKA}::test_a_timestamp_reads_the_records_written_at_it_or_later",
                "after-last, earliest, latest, by time, offsets",
            ),
            yes(f"{GENERATION}/test_replay.py::test_a_history_of_records_is_replayed_step_by_step"),
            yes(f"{BACKFILL}::test_a_range_of_kafka_is_read_between_its_ends_and_through_every_step"),
            yes(f"{LAG}::test_records_between_position_and_end_wait_and_the_oldest_has_its_age", "records"),
        ),
        "delta": (
            yes(
                f"{SOURCES}/test_change_feed.py"
                "::test_a_table_by_change_feed_is_as_its_source_whatever_the_commits_did",
                "yes, and rows that change by `change_feed=True`",
            ),
            yes(
                f"{DELTA}::test_a_timestamp_reads_the_versions_committed_at_it_or_later",
                "after-last, earliest, latest, by time, offsets",
            ),
            yes(f"{GENERATION}/test_replay.py::test_a_table_as_it_was_is_replayed_step_by_step"),
            yes(
                "tests/core/sources/test_impacts_of_backfills.py::test_the_history_of_a_delta_source_is_its_table_as_it_is"
            ),
            yes(
                f"{LAG}::test_versions_that_were_not_read_are_counted_by_the_table_s_log",
                "versions, files, bytes, records",
            ),
        ),
        "rate": (
            yes(f"{RESET}::test_a_rate_source_goes_on_with_its_next_second"),
            weaker(
                "after-last, earliest, offsets: its rows are made, not kept",
                f"{RESET}::test_a_rate_source_goes_on_with_its_next_second",
            ),
            _NO_HISTORY,
            _NO_HISTORY,
            yes(f"{LAG}::test_rows_of_a_rate_are_counted_by_the_seconds_since_the_last_one", "records"),
        ),
        "socket": (
            weaker(
                "lines that came and were not committed are lost",
                f"{WORDS}::test_a_batch_that_is_cut_off_is_lost_or_counted_whole",
            ),
            weaker(
                "after-last, which is a new connection; from a generation",
                f"{SOCKET}::test_starts_that_a_socket_has_not_are_refused",
            ),
            _NO_HISTORY,
            _NO_HISTORY,
            no("it does not tell", f"{SOCKET}::test_whether_lines_wait_is_not_known_and_counts_as_nothing"),
        ),
    },
)

APPEND, CDC, UPDATE, COMPLETE = (
    "`append_flow` into a table",
    "`create_auto_cdc_flow`",
    "`update_flow`",
    "`complete_flow`",
)
EACH_BATCH, KAFKA_SINK, FILES_SINK = (
    "`foreach_batch_sink`",
    '`create_sink`, "kafka"',
    '`create_sink`, "parquet", "json", "csv"',
)
TARGETS = (APPEND, CDC, UPDATE, COMPLETE, EACH_BATCH, KAFKA_SINK, FILES_SINK)

_ELSEWHERE = no("its rows are kept elsewhere")
_TWICE = "what is read again is duplicated, and counted"

RECOVERIES: dict[str, dict[str, Cell]] = {
    "kill, restart": {
        APPEND: yes(
            "tests/spark/driver/test_killed.py"
            "::test_kill_9_in_mid_batch_and_between_the_sinks_commit_and_the_checkpoints"
        ),
        CDC: yes(f"{CUSTOMERS}::test_kill_9_before_the_commit_and_between_the_commit_and_the_checkpoint"),
        UPDATE: yes(f"{TOTALS}::test_a_driver_that_is_killed_between_two_commits_counts_nothing_twice"),
        COMPLETE: yes(f"{TOTALS}::test_a_driver_that_is_killed_between_two_commits_counts_nothing_twice"),
        EACH_BATCH: weaker(
            "a batch may be given twice, with the same `transaction`",
            f"{FUNCTION}::test_a_batch_that_is_given_again_is_written_once_and_a_reset_counts_it",
        ),
        KAFKA_SINK: weaker(
            "a batch may be duplicated; its readers drop it",
            GIVEN_TWICE,
        ),
        FILES_SINK: yes(
            f"{FOLDER}::test_files_are_exact_over_a_driver_that_died_before_its_note_and_over_generations"
        ),
    },
    "reset_checkpoint": {
        APPEND: yes(f"{RESET}::test_after_the_last_processed_loses_nothing_and_repeats_nothing"),
        CDC: yes(
            f"{CUSTOMERS}"
            "::test_42k03_parks_the_incremental_flow_alone_and_its_reset_is_exact_while_the_snapshot_stays_done"
        ),
        UPDATE: yes(f"{TOTALS}::test_totals_are_those_of_an_oracle_after_each_kind_of_start"),
        COMPLETE: yes(f"{TOTALS}::test_totals_are_those_of_an_oracle_after_each_kind_of_start"),
        EACH_BATCH: weaker(
            "a batch whose end was not noted costs `duplicates`",
            f"{FUNCTION}::test_a_batch_that_is_given_again_is_written_once_and_a_reset_counts_it",
        ),
        KAFKA_SINK: weaker(
            "the same",
            GIVEN_TWICE,
        ),
        FILES_SINK: yes(
            f"{FOLDER}::test_files_are_exact_over_a_driver_that_died_before_its_note_and_over_generations"
        ),
    },
    "rewind, target kept": {
        APPEND: weaker(_TWICE, f"{REWIND}::test_a_table_that_is_kept_gets_what_was_counted_a_second_time"),
        CDC: yes(f"{REWIND}::test_changes_that_are_read_again_into_a_table_by_key_change_nothing"),
        UPDATE: yes(
            f"{SHIPPED}/test_order_totals.py::test_totals_are_those_of_the_oracle_after_each_recovery"
        ),
        COMPLETE: yes(OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), weaker(_TWICE, REWOUND)),
    },
    "rewind, target restored": {
        APPEND: yes(f"{REWIND}::test_a_flow_that_goes_back_with_its_table_ends_with_the_same_table"),
        CDC: yes(f"{REWIND}::test_a_table_by_key_goes_back_with_what_it_remembered"),
        UPDATE: yes(OF_TOTALS),
        COMPLETE: yes(OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), _ELSEWHERE),
    },
    "full_refresh": {
        APPEND: yes(
            f"{RECOVER}/full_refresh/test_full_refresh.py"
            "::test_a_refreshed_table_is_what_the_new_declaration_makes_of_all_events"
        ),
        CDC: yes(
            f"{RECOVER}/full_refresh/test_full_refresh.py"
            "::test_both_flows_of_a_table_by_key_are_refreshed_together_killed_in_the_middle_of_every_part"
        ),
        UPDATE: yes(OF_TOTALS),
        COMPLETE: yes(OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), _ELSEWHERE),
    },
    "full_refresh_with_backup": {
        APPEND: yes(
            f"{QUARANTINE}"
            "::test_a_recovery_sets_aside_what_it_reads_again_once_and_never_empties_the_quarantine"
        ),
        CDC: yes(
            f"{RECOVER}/full_refresh/test_full_refresh_with_backup.py"
            "::test_history_that_the_sources_have_no_more_comes_back_from_the_backup"
        ),
        UPDATE: yes(OF_TOTALS),
        COMPLETE: weaker("from the sources alone", OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), _ELSEWHERE),
    },
    "rebuild_without_downtime": {
        APPEND: yes(
            f"{SIDE_TABLE}::test_a_reader_sees_the_old_table_or_the_new_one_and_the_flow_goes_on_before_and_after"
        ),
        CDC: yes(f"{SIDE_TABLE}::test_both_flows_of_a_table_by_key_killed_in_the_middle_of_every_part"),
        UPDATE: yes(OF_TOTALS),
        COMPLETE: yes(OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), _ELSEWHERE),
    },
    "backup_table, restore_table": {
        APPEND: yes(
            f"{RECOVER}/test_restore_table.py"
            "::test_an_append_flow_goes_on_from_the_batch_that_belongs_to_the_backup"
        ),
        CDC: yes(
            f"{RECOVER}/test_restore_table.py"
            "::test_a_table_is_put_back_with_what_it_remembers_whatever_step_is_killed"
        ),
        UPDATE: yes(OF_TOTALS),
        COMPLETE: yes(OF_TOTALS),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), _ELSEWHERE),
    },
    "backfill": {
        APPEND: weaker("what the table has already is duplicated", COUNTED),
        CDC: yes(f"{BACKFILL}::test_changes_from_elsewhere_come_in_chunks_and_never_over_newer_rows"),
        UPDATE: no("its rows are results of its whole state"),
        COMPLETE: no("its rows are results of its whole state"),
        EACH_BATCH: weaker("its chunks are given once more", CHUNKS_AGAIN),
        KAFKA_SINK: weaker("its chunks are written once more", CHUNKS_AGAIN),
        FILES_SINK: no("the log of their folder has room for one query"),
    },
    "adopt": {
        APPEND: yes(f"{ADOPT}::test_a_job_that_keeps_state_goes_on_exactly"),
        CDC: yes(
            f"{RECOVER}/adopt/test_adopt_sources.py"
            "::test_a_job_that_merged_by_hand_goes_on_as_auto_cdc_into_a_table_filled_from_its_own"
        ),
        UPDATE: yes(f"{TOTALS}::test_the_results_of_another_job_are_gone_on_with"),
        COMPLETE: yes(f"{TOTALS}::test_the_results_of_another_job_are_gone_on_with"),
        **dict.fromkeys(
            (EACH_BATCH, KAFKA_SINK),
            weaker(
                "no log tells what the job wrote last: `unknown-impact`",
                f"{OF_SINKS}::test_the_job_of_a_sink_is_gone_on_with",
            ),
        ),
        FILES_SINK: weaker("the same", f"{OF_SINKS}::test_the_job_of_a_sink_is_gone_on_with"),
    },
    "rehearse": {
        APPEND: yes(REHEARSED),
        CDC: yes(
            "tests/spark/rehearse/test_rehearsals.py"
            "::test_a_table_by_key_is_rehearsed_with_what_it_remembers_and_all_its_flows"
        ),
        UPDATE: yes(f"{OF_SINKS}::test_totals_are_rehearsed_as_they_then_come"),
        COMPLETE: yes(f"{OF_SINKS}::test_totals_are_rehearsed_as_they_then_come"),
        **dict.fromkeys((EACH_BATCH, KAFKA_SINK, FILES_SINK), no("a rehearsal would write there, too")),
    },
}


OF_OLD = "tests/spark/generation/test_batches_of_old.py"
SHAPE = f"{STREAM}/test_states.py::test_a_state_goes_on_over_restarts_and_is_made_anew_from_history"
FRUIT = f"{SHIPPED}/test_fruit_counts.py::test_counts_are_those_of_the_oracle_after_each_recovery"
SHIPMENTS = f"{SHIPPED}/test_order_shipments.py"
GIVEN = f"{STREAM}/test_initial_state.py"
TIMED = (
    "tests/core/sources/test_source_notes.py"
    "::test_a_state_of_ones_own_has_an_impact_by_its_batches_if_it_goes_by_a_time"
)
_IN_BATCHES = "yes, in the batches that it came in; where these are not known, at an unknown impact"
_LOST = weaker("what it had collected is lost, at an impact", COUNTED)
_UNTRIED = Cell("not tried by itself", SHAPE)


def _state(restart: str, rebuilt: str, copied: str | Cell, empty: Cell) -> tuple[Cell, ...]:
    return (yes(restart), yes(rebuilt), yes(copied) if isinstance(copied, str) else copied, empty)


STATES = Part(
    "State",
    "query",
    ("restart", "rebuilt from history", "copied", "starts empty"),
    {
        "`dropDuplicates`": _state(
            "tests/spark/driver/test_killed.py"
            "::test_kill_9_in_mid_batch_and_between_the_sinks_commit_and_the_checkpoints",
            f"{STREAM}/test_running.py"
            "::test_removing_the_deduplication_parks_the_flow_and_a_reset_goes_on_exactly",
            f"{REWIND}::test_a_deduplicated_flow_goes_back_with_the_state_of_the_batch",
            weaker("a row that is sent again comes once more, at an impact", COUNTED),
        ),
        "aggregation, update and complete": _state(
            f"{TOTALS}::test_a_driver_that_is_killed_between_two_commits_counts_nothing_twice",
            f"{TOTALS}::test_totals_are_those_of_an_oracle_after_each_kind_of_start",
            f"{TOTALS}::test_totals_are_those_of_an_oracle_after_each_kind_of_start",
            weaker(
                "exact from `earliest`, else at an impact",
                f"{TOTALS}::test_a_state_that_starts_empty_makes_new_totals",
            ),
        ),
        "aggregation after deduplication": _state(SHAPE, SHAPE, _UNTRIED, _LOST),
        "windows": _state(COUNTED, COUNTED, COUNTED, _LOST),
        "session windows": _state(SHAPE, SHAPE, COUNTED, _LOST),
        "several watermarks, the slowest (`min`) rules": _state(
            SHAPE, SHAPE, f"{SHIPMENTS}::test_each_order_comes_once_through_each_recovery", _LOST
        ),
        "several watermarks, the fastest (`max`) rules": (
            weaker("what slower streams bring later is dropped", SHAPE),
            weaker("the same", SHAPE),
            _UNTRIED,
            _LOST,
        ),
        "stream-stream joins: inner, left outer": _state(
            SHAPE,
            SHAPE,
            f"{SHIPMENTS}::test_each_order_comes_once_through_each_recovery",
            weaker(
                "what waited is lost, at an impact",
                f"{SHIPMENTS}::test_a_state_that_starts_empty_has_lost_the_orders_that_waited",
            ),
        ),
        "stream-stream joins: full outer, left semi": _state(SHAPE, SHAPE, _UNTRIED, _LOST),
        "`transformWithState`: value, list and map state": _state(SHAPE, SHAPE, FRUIT, _LOST),
        "`dropDuplicatesWithinWatermark`": (
            yes(f"{OF_OLD}::test_a_key_is_forgotten_when_it_was_and_not_before"),
            weaker(
                _IN_BATCHES,
                f"{OF_OLD}::test_where_the_batches_are_not_known_the_impact_must_be_accepted",
            ),
            _UNTRIED,
            weaker("a row that is sent again comes once more, at an impact", COUNTED),
        ),
        "`transformWithState`: timers": (
            yes(SHAPE),
            weaker(_IN_BATCHES, TIMED),
            yes(COUNTED),
            _LOST,
        ),
        "`transformWithState`: time to live": (
            yes(SHAPE),
            weaker(_IN_BATCHES, TIMED),
            _UNTRIED,
            _LOST,
        ),
        "`applyInPandasWithState`": _state(SHAPE, SHAPE, _UNTRIED, _LOST),
        "initial state, of rows or of a table": _state(
            f"{GIVEN}::test_a_first_batch_that_a_restart_repeats_gives_its_state_once",
            f"{GIVEN}::test_a_state_that_begins_anew_takes_the_table_as_it_is_and_a_rebuilt_one_as_it_was",
            FRUIT,
            yes(
                f"{SHIPPED}/test_fruit_counts.py::test_counts_that_begin_anew_begin_with_the_stocktaking",
                "is given again",
            ),
        ),
        "the same in RocksDB (`state_store=`)": _state(
            SHAPE,
            f"{SHAPES}::test_another_state_store_is_filled_from_history",
            FRUIT,
            _LOST,
        ),
    },
    "A state is kept in memory, or in RocksDB with its changelog. *Copied* is a rewind, or a reset from a"
    " generation.",
)

_SECOND_CREATE = no(
    "it is refused before anything is written",
    "tests/spark/storage/test_flow_on_s3.py"
    "::test_a_driver_writes_no_table_where_a_second_conditional_put_is_taken",
)
_UNTRIED_STORE = no(
    "only with `STREAMKEEPER_UNTESTED_STORAGE=true`",
    "tests/core/test_settings.py::test_folders_that_would_destroy_each_other_are_refused",
)
_UNTRIED_MOUNT = no(
    "only with `STREAMKEEPER_UNTESTED_STORAGE=true`",
    "tests/core/test_settings.py::test_a_network_file_system_is_refused_unless_a_setting_says_untested",
)
STORES = Part(
    "Stores",
    "store",
    ("state folder", "tables and checkpoints", "kinds of flows and states", "recoveries"),
    {
        "local disk": (
            yes(f"{STORAGE}::test_of_six_processes_that_create_one_file_exactly_one_wins"),
            yes(
                f"{STREAM}/test_running.py::test_the_table_equals_the_oracle_after_a_normal_run_and_the_next"
            ),
            yes(SHAPE, "all of this page"),
            yes(f"{PROPERTIES}::test_whatever_comes_when_the_table_ends_as_the_oracle_s"),
        ),
        "S3 (versitygw; moto for the state folder)": (
            yes(f"{STORAGE}::test_of_six_processes_that_create_one_file_exactly_one_wins"),
            yes(
                "tests/spark/storage/test_flow_on_s3.py"
                "::test_its_table_holds_every_event_once_and_a_rewind_that_was_rehearsed_keeps_it_so"
            ),
            weaker(
                "all targets but Kafka, each killed once; `dropDuplicates`, windows and"
                " `transformWithState` in RocksDB; a shared driver",
                "tests/spark/storage/test_kinds_on_s3.py"
                "::test_a_flow_that_was_killed_between_two_commits_goes_on_exactly",
            ),
            yes(
                "tests/spark/storage/test_recoveries_on_s3.py::test_after_each_recovery_the_tables_are_exact"
            ),
        ),
        "a store that takes a second create": (
            no(
                "it is refused before anything is written",
                f"{STORAGE}::test_a_store_that_takes_a_second_create_is_refused_before_anything_is_written",
            ),
            *(_SECOND_CREATE,) * 3,
        ),
        "other URLs: GCS, ABFS, HDFS": (_UNTRIED_STORE,) * 4,
        "network file systems: NFS, SMB, Ceph, Lustre, buckets as folders": (_UNTRIED_MOUNT,) * 4,
    },
    "What was tried. Amazon's own S3 was not.",
)

NAMES = "tests/spark/catalog/test_named_tables.py"
CATALOGS = Part(
    "Session catalogs",
    "catalog",
    ("a table's name", "a source by name", "readers by name through recoveries"),
    {
        "Hive metastore (tried on Derby)": (
            yes(
                f"{NAMES}::test_a_table_has_its_name_before_its_first_batch_and_each_reader_sees_what_it_is",
                "yes, with columns and comments",
            ),
            yes(
                f"{NAMES}::test_a_source_by_name_is_read_by_its_place"
                "_and_a_name_that_moved_is_a_table_made_anew"
            ),
            yes(
                f"{NAMES}::test_readers_by_name_never_fail_through_a_recovery_which_writes_the_name_anew",
                "yes, in Spark and in delta-rs",
            ),
        ),
        "in memory": 3
        * (no("it ends with its session", f"{NAMES}::test_a_catalog_that_ends_with_its_session_is_refused"),),
        "catalog-managed tables": (
            no("refused", f"{MANAGED}::test_a_catalog_managed_target_is_refused_in_words"),
            no("refused", f"{MANAGED}::test_a_catalog_managed_source_is_refused_also_by_its_checksum"),
            no("refused", f"{MANAGED}::test_no_recovery_is_planned_into_a_catalog_managed_table"),
        ),
    },
)
