"""The first ring of tests, which ``make test`` runs: directories without Spark, and each promise on the real Spark.

A promise is a text of ``README.md``, with the tests that show it; ``tests/test_promises.py`` compares. A test is named
by its id, or without its parameters for all of them. Run as a program, this module prints what pytest has to collect.
"""

FIRST_RING = tuple(
    f"tests/{room}/" for room in ("core", "job", "microbatch", "misuse", "operators", "protocol", "testing")
)
"""Where tests are that belong to the first ring unless they take the Spark session or have the mark ``more``."""

PROMISES: dict[str, list[str]] = {
    # the head of the page
    "Windows and sessions": [
        "tests/operators/windows/test_windows_in_jobs.py::test_the_same_on_spark_also_where_timers_fire_without_a_row",
    ],
    "A function with state for each key": [
        "tests/jobs/test_count_window_average.py::test_on_the_engine_wherever_batches_are_cut",
    ],
    "called row by row in a fixed order": [
        "tests/job/test_streams.py::test_two_streams_in_one_declared_order",
        "tests/microbatch/test_chaining.py::test_neither_cuts_nor_parallelism_matter",
    ],
    "value, list, map, sorted map, reducing and aggregating state": [
        "tests/queries/test_read_state.py::test_each_state_is_what_an_independent_fold_gives",
        "tests/microbatch/test_operator_state_on_spark.py::test_a_buffering_function_loses_and_repeats_nothing_across_rescales",
        "tests/operators/aggregates/test_aggregates_on_spark.py::test_state_in_tables_is_that_of_the_rows_left",
    ],
    "timers, event time": [
        "tests/microbatch/test_timers_on_spark.py::test_nor_does_it_matter_who_routes_the_rows",
        "tests/microbatch/test_watermark_strategy_on_spark.py::test_timers_fire_at_the_right_times_where_tasks_read_the_rows",
    ],
    "time to live": [
        "tests/microbatch/test_ttl_anyhow.py::test_on_spark[True-True-default]",
        "tests/operations/test_compaction.py::test_expired_entries_are_gone_unless_they_may_be_seen",
    ],
    "port by their imports": [
        "tests/porting/test_one_of_each.py::test_on_spark",
    ],
    "Exactly once": [
        "tests/sinks/test_delta.py::test_publish_is_once_and_other_readers_agree",
        "tests/sinks/test_sql_publishes.py::test_broken_at_every_step_and_published_again",
        "tests/storage/test_kernel.py::test_exactly_one_of_many_threads_commits_a_transaction",
    ],
    "through crashes, retries and rival runners": [
        *(
            f"tests/faults/test_matrix.py::test_a_fault_changes_no_result[{case}]"
            for case in (
                "chained-raise after commit_operator_state",
                "last_rows-raise after rows of a Delta table",
                "last_rows-zombie before rows of an SQL table",
                "operators-raise after commit_changelog 3",
                "operators-zombie before entry of checkpoints",
                "windows-raise after commit_changelog 2",
            )
        ),
        "tests/microbatch/test_fencing.py::test_of_two_runners_at_once_exactly_one_commits",
        "tests/microbatch/test_fencing.py::test_a_zombie_that_wakes_up_changes_nothing[2]",
        "tests/microbatch/test_fencing.py::test_a_commit_that_did_happen_is_found_and_the_run_goes_on",
    ],
    "Input positions, state and outputs change together or not at all": [
        "tests/sources/test_delta.py::test_positions_are_contiguous_and_shown_as_a_table",
        "tests/sources/test_file.py::test_new_files_between_runs_and_row_ranges_over_several_files",
        "tests/sources/test_file.py::test_a_file_that_changes_during_the_batch_commits_nothing",
    ],
    "Versioned": [
        "tests/queries/test_read_state.py::test_state_of_an_older_checkpoint",
        "tests/engine/test_evolution_on_spark.py::test_fields_come_and_go_and_numbers_widen",
        "tests/engine/test_migration.py::test_what_does_not_fit_is_refused",
    ],
    "Published tables go back with it": [
        "tests/state_tables/test_keyed_sinks.py::test_a_restore_moves_the_table_back_and_forth[delta]",
        "tests/state_tables/test_following.py::test_a_dry_run_says_what_each_table_gets",
    ],
    "Dagster": [
        "tests/dagster/test_micro_batches.py::test_every_micro_batch_is_one_version_and_an_empty_tick_is_none",
        "tests/dagster/test_operations.py::test_plain_clicks_change_nothing_where_all_is_well_and_keep_their_versions",
    ],
    # the calls that it shows
    "engine.run(job)": [
        "tests/test_first_page.py::test_the_job_and_its_questions_run",
        "tests/job/test_types_of_streams.py::test_all_types_at_once_on_spark",
    ],
    "engine.read_state(job": ["tests/queries/test_read_state.py::test_columns_are_the_key_then_the_value"],
    "engine.checkpoints(job)": ["tests/microbatch/test_counts.py::test_the_row_records_what_was_written"],
    "engine.sql(job": ["tests/queries/test_sql_views.py::test_states_are_views_with_their_columns"],
    "engine.diff(job, 7, 9)": ["tests/queries/test_state_diff.py::test_changes_are_those_of_the_model"],
    'open_state.read_state("state"': [
        "tests/queries/test_open_state.py::test_states_are_what_a_fold_by_hand_gives",
        "tests/queries/test_local_sql.py::test_answers_are_those_of_spark",
    ],
    "engine.explain(job": [
        "tests/replay/test_key_history.py::test_a_key_is_followed_along_the_path_of_the_head"
    ],
    "engine.debug(job": [
        "tests/replay/test_key_debug.py::test_a_key_does_what_was_recorded_element_by_element"
    ],
    "engine.plan(job)": ["tests/code_changes/test_plan_command.py::test_the_example_of_the_guide"],
    "There are views of checkpoints, sources, sinks, operator state, dead letters": [
        "tests/queries/test_sql_views.py::test_what_questions_need_is_there"
    ],
    "engine.restore(job, checkpoint_id=7)": [
        "tests/operations/test_operations.py::test_a_restore_moves_state_positions_and_sinks",
        "tests/operations/test_operations.py::test_a_restore_can_be_undone",
    ],
    "engine.rescale(job, parallelism=8)": [
        "tests/operations/test_operations.py::test_rescaling_writes_one_row_and_no_state[4]",
    ],
    "engine.compact(job)": [
        "tests/operations/test_maintenance.py::test_compaction_changes_no_state_and_nothing_that_comes_after"
    ],
    "engine.savepoints(job)": [
        "tests/operations/test_savepoints.py::test_a_moved_savepoint_goes_on_elsewhere_without_its_root"
    ],
    "engine.expire_checkpoints(job)": [
        "tests/operations/test_maintenance.py::test_expired_checkpoints_cannot_be_restored"
    ],
    "engine.vacuum(job) deletes their files": [
        "tests/operations/test_savepoints.py::test_a_savepoint_of_this_job_is_its_checkpoint_and_retention_keeps_it"
    ],
    "Micro-batches continue meanwhile": [
        "tests/operations/test_maintenance.py::test_a_micro_batch_goes_on_upon_a_compaction_that_came_first"
    ],
    "The same from a shell": ["tests/cli/test_cli.py::test_a_job_is_operated_from_the_command_line"],
    # how it works
    "the new rows go to the subtask that owns their key group": [
        "tests/spark/test_key_columns.py::test_every_key_group_has_the_subtask_that_core_gives_it",
        "tests/spark/test_key_columns.py::test_null_and_nan_keys_are_found",
        "tests/microbatch/test_routing.py::test_tasks_make_keys_by_a_function",
    ],
    "up to four subtasks read files on a disk without a shuffle": [
        "tests/sources/test_task_rows.py::test_an_operator_reads_files_without_a_scan_of_spark"
    ],
    "Before that row nothing is visible": [
        "tests/microbatch/test_failed_attempts.py::test_what_a_failed_attempt_wrote_goes_at_once_and_stays_where_nobody_knows",
        "tests/queries/test_read_state.py::test_files_that_no_checkpoint_lists_are_never_seen",
    ],
    # what to know
    "commits use put-if-absent": [
        "tests/stores/test_log_store.py::test_one_of_many_makes_a_table_and_the_others_have_it"
    ],
    "Bad input": [
        "tests/microbatch/test_bad_input.py::test_under_dead_letter_the_row_is_kept_and_the_rest_goes_on",
        "tests/microbatch/test_bad_input.py::test_under_fail_nothing_is_committed_and_all_is_reported",
        "tests/microbatch/test_dead_letters.py::test_letters_are_sent_once_and_a_restore_has_them_waiting_again",
    ],
    "A job in time partitions reads each of them in one micro-batch": [
        "tests/replay/test_backfill.py::test_partitions_run_in_order_and_late_rows_are_counted",
        "tests/microbatch/test_ends_of_partitions.py::test_a_backfill_gives_the_same",
    ],
    "Sessions and joins end": [
        "tests/microbatch/test_timers_on_spark.py::test_the_rest_fires_when_the_input_has_ended",
        "tests/microbatch/test_ends_of_partitions.py::test_what_is_due_fires_with_its_own_day",
    ],
    "You test a job without Spark and Java": [
        "tests/testing/test_same_as_on_spark.py::test_averages_of_windows"
    ],
}
"""Tests by the text that they show."""

if __name__ == "__main__":
    named = (test.partition("[")[0] for tests in PROMISES.values() for test in tests)
    print(*FIRST_RING, *dict.fromkeys(test for test in named if not test.startswith(FIRST_RING)))
