"""Every kind of misuse, and the test of its error: the class, the place, and the way out.

One sentence for each misuse that the semantics of state name, and below it the tests, by file, function and case. What
is reported too little, or not at all, until now has "(not yet)"; its test is expected to fail. The tests at the end
of this file hold the table to what exists.

Key groups

A null or NaN key, or a value that cannot be a key, is refused
  misuse/test_keys_and_timers::test_what_cannot_be_a_key_is_refused_before_anything_is_kept
  core/keys/test_keys::test_what_is_no_key_is_refused
A null or NaN key fails the batch, nothing is written, and job, operator and row are reported
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[null key]
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[NaN key]
A column of lists or maps is no key
  microbatch/test_bad_input::test_wiring_that_cannot_work_is_refused_before_anything_runs[a list as key]
  microbatch/test_bad_input::test_wiring_that_cannot_work_is_refused_before_anything_runs[a map as key]
  spark/test_key_columns::test_types_that_cannot_be_keys_are_refused_by_name
Such a column is reported with its operator
  misuse/test_on_the_engine::test_a_column_that_cannot_be_a_key_is_reported_with_its_operator
  misuse/test_wiring::test_a_refusal_and_its_advice[a list as key column]
A key column that is not there is refused while wiring, where code shows the columns
  misuse/test_wiring::test_a_refusal_and_its_advice[a key column that a collection lacks]
  misuse/test_wiring::test_a_refusal_and_its_advice[a key column that files lack]
A key selector of a type that cannot be a key is refused while wiring, with its operator
  misuse/test_wiring::test_a_refusal_and_its_advice[a key selector of a list]
  misuse/test_wiring::test_a_refusal_and_its_advice[a key selector of a part that is a map]
  misuse/test_wiring::test_a_refusal_and_its_advice[a second key selector of a list]
A key selector that raises is reported with job and operator
  job/test_streams::test_a_failing_key_selector_is_reported_or_set_aside
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[a key selector that gives None]
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[a key selector that gives NaN]
Map keys follow the same rules
  misuse/test_keys_and_timers::test_a_type_that_cannot_be_a_key_is_no_key_of_a_map
  core/state/test_map_state::test_what_cannot_be_a_key_cannot_be_a_map_key
  core/state/test_map_state::test_negative_zero_is_zero_and_nan_is_no_key
  core/state/test_sorted_map_state::test_keys_need_an_order
Max parallelism is 1 to 32768, and parallelism is not above it
  core/keys/test_key_groups::test_bad_arguments_are_refused
  misuse/test_keys_and_timers::test_a_parallelism_above_the_number_of_key_groups_is_refused
  misuse/test_wiring::test_a_refusal_and_its_advice[set_parallelism above max]
Such numbers of a job are reported with its name
  misuse/test_wiring::test_numbers_of_a_job_that_cannot_be_are_refused_with_its_name
Max parallelism is fixed for the life of the state
  engine/test_migration::test_what_does_not_fit_is_refused[another max parallelism]

Declarations

A word that a declaration does not know is refused when it is made
  misuse/test_choices::test_an_unknown_word_is_refused_when_the_declaration_is_made
A gate that cannot judge is refused when the job is built, and one whose column its sink does not have when it judges
  microbatch/test_gates::test_what_cannot_be_a_gate_is_refused_when_the_job_is_built
  microbatch/test_gates::test_a_column_that_a_sink_does_not_have_ends_the_micro_batch
A suite that cannot be a gate is refused when it is made or registered, or when it judges
  dagster/test_suites_as_gates::test_a_suite_that_cannot_be_a_gate_is_refused
  dagster/test_suites_as_gates::test_a_suite_that_cannot_be_judged_ends_the_micro_batch
A micro-batch that breaks a gate is stopped or held, and the error has the ways on
  microbatch/test_gates::test_what_a_broken_bound_shows
  microbatch/test_gates::test_a_micro_batch_is_held_and_repaired_by_a_replay
  microbatch/test_gates::test_the_first_micro_batch_has_nothing_to_be_held_beside
A rule by row that is no condition on single rows of its stream is refused when the job is built
  microbatch/test_row_expectations::test_what_cannot_be_judged_is_refused_when_the_job_is_built
  operators/test_sql_rules::test_a_text_that_is_no_condition_on_single_rows_is_refused
  operators/test_sql_rules::test_a_text_that_does_not_fit_the_columns_is_refused
A rule by row that a run finds it cannot judge is refused, and so are rows that break one that lets none pass
  operators/test_sql_rules::test_a_value_that_cannot_be_computed_ends_it
  operators/test_sql_rules::test_a_function_that_gives_no_boolean_column_is_refused
  microbatch/test_row_expectations::test_a_function_that_raises_ends_the_micro_batch
  microbatch/test_row_expectations::test_a_rule_that_fails_commits_nothing_and_names_rows
An option of a source or sink that has no effect, or a value that it does not take, is refused when it is given
  misuse/test_choices::test_an_option_that_cannot_be_is_refused_when_it_is_given
  misuse/test_choices::test_those_without_options_take_no_other_word
An argument of an engine's call that does not fit is refused before anything is done, with what the call takes
  misuse/test_engine_arguments::test_the_message_names_call_argument_and_what_it_takes
  misuse/test_engine_arguments::test_one_name_in_place_of_a_list_is_refused_with_the_list
A stored position with a number that its source does not have is refused, with a way out
  sources/test_wrong_positions::test_a_wrong_number_is_refused_when_the_next_batch_is_planned
  sources/test_wrong_positions::test_a_wrong_number_is_refused_when_a_batch_is_read_again
  sources/test_wrong_positions::test_a_partition_that_its_topic_does_not_have_is_refused
Advice of the messages of operations helps
  misuse/test_advice_of_operations::test_the_advice_of_a_message_helps
Advice about damaged files and tables helps
  misuse/test_advice_of_damage::test_the_advice_of_an_error_about_damage_helps
Advice about an argument that does not fit is taken
  misuse/test_constructors::test_the_advice_about_an_argument_is_taken
A column that no reader of files gets back is refused before the batch
  sinks/test_files_round_trip::test_what_csv_has_no_text_for_is_refused_before_the_batch
What an orchestrator is given (schedule, owners, suites, options) is checked when it is declared
  misuse/test_choices::test_what_an_orchestrator_is_given_is_checked_when_it_is_declared
Advice for columns of a Delta table that changed helps
  misuse/test_advice_of_damage::test_what_is_said_of_a_renamed_column_helps
  misuse/test_advice_of_damage::test_what_is_said_of_a_further_column_before_a_sink_helps
The advice of each class of errors helps when it is followed; test_ways_out names the tests of all classes
  misuse/test_wiring::test_a_refusal_and_its_advice
  misuse/test_ways_out::test_the_example_of_a_name_is_one
  misuse/test_ways_out::test_the_extra_that_is_named_brings_the_package
  misuse/test_ways_out::test_a_word_that_is_not_known_is_replaced_by_one_that_is
  misuse/test_ways_out::test_the_nearest_setting_is_taken
  misuse/test_ways_out::test_a_row_that_fails_is_set_aside
  misuse/test_ways_out::test_a_column_that_is_no_key_is_keyed_by_something_else
  misuse/test_ways_out::test_a_value_is_given_as_the_declared_type
  misuse/test_ways_out::test_a_row_that_is_taken_back_was_read_first
  misuse/test_ways_out::test_a_map_is_collected_before_it_is_changed
  misuse/test_ways_out::test_a_timer_is_set_later_than_the_one_that_fires
  misuse/test_ways_out::test_raw_state_is_moved_into_a_list_before_the_parallelism_changes
  misuse/test_ways_out::test_fewer_rows_need_less_memory
  misuse/test_ways_out::test_what_nobody_foresaw_is_repaired_and_run_again
  misuse/test_ways_out::test_after_a_commit_that_would_break_a_rule_reading_and_restoring_work
A transform that returns a DataFrame of a session with other options is refused with these
  spark/test_engine_session::test_a_step_that_begins_with_a_frame_of_the_session[America/New_York]
What a udf returns is refused in a transform where its declared type cannot hold it
  spark/test_frame_code::test_a_value_of_another_type_is_refused
A udf of a timestamp is refused in a transform where the process is not in UTC
  sources/test_row_by_row::test_a_udf_that_goes_by_the_zone_of_the_process_is_refused[driver]
A clock that is years ahead of the last checkpoint is refused before it is recorded
  core/checkpoints/test_clock_jumps::test_a_jump_beyond_the_bound_is_refused
  engine/test_clocks::test_ten_years_ahead_and_back
None in a field that was added with a default is refused, and so is a default of another type
  core/state/test_evolution::test_what_was_stored_before_a_field_was_added_has_its_default
  core/state/test_evolution::test_a_field_without_default_or_with_none_is_none_and_one_of_another_type_is_refused
A name that a sink or a published table cannot have is refused before anything is committed
  engine/test_column_names::test_a_name_that_a_sink_cannot_have_is_refused_while_the_job_is_built
  engine/test_column_names::test_where_only_rows_show_a_name_the_first_run_refuses_it_before_anything_is_written
  engine/test_column_names::test_a_name_that_a_published_table_cannot_have_is_refused_before_anything_is_committed
  engine/test_column_names::test_a_name_that_delta_cannot_have_is_refused_before_anything_is_committed
  engine/test_column_names::test_names_of_the_engine_are_refused
What cannot travel to subtasks is refused with operator and attribute, in a run and in a harness
  spark/test_pickled_code::test_few_rows_are_refused_as_many_are
  spark/test_pickled_code::test_a_harness_refuses_what_a_run_refuses
A row without event time is named with its column, where a function needs one
  misuse/test_keys_and_timers::test_the_error_names_the_column_and_what_to_do

Keyed state

Using it without a key is an error that says so
  misuse/test_states::test_keyed_state_without_a_key_is_refused
  core/state/test_keyed_state::test_without_a_key_there_is_no_state
  misuse/test_operator_state::test_keyed_state_in_a_broadcast_element_is_refused
Using it in a stream without keys is an error that says so
  misuse/test_states::test_keyed_state_on_a_stream_without_keys_is_refused
  misuse/test_wiring::test_a_refusal_and_its_advice[a keyed function without keys]
One name, two types is an error
  misuse/test_states::test_one_name_of_two_types_or_kinds_is_refused
A descriptor of another kind is refused
  core/state/test_keyed_state::test_the_wrong_descriptor_is_refused_by_name
None is no element of a list, nothing to reduce, and no key of a map
  misuse/test_states::test_a_wrong_use_of_a_state_is_reported_and_changes_nothing[None added to a list]
  misuse/test_states::test_a_wrong_use_of_a_state_is_reported_and_changes_nothing[None as key of a map]
  core/state/test_folded_states::test_none_is_never_stored
  core/state/test_sorted_map_state::test_bounds_and_keys_follow_the_rules_of_keys
Folding warns that it is deprecated
  core/state/test_folded_states::folding
An overflow is an error inside of update, add and put, never at the commit
  misuse/test_states::test_an_overflow_is_an_error_of_the_write_and_not_of_the_commit
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[overflow of state]
A value that does not fit is reported with its state
  misuse/test_states::test_a_value_that_does_not_fit_is_reported_with_its_state
What is looked up in a map or merged has the type of the state
  misuse/test_states::test_what_is_looked_up_or_merged_has_the_type_of_the_state
Changing a map while iterating it raises
  misuse/test_states::test_a_wrong_use_of_a_state_is_reported_and_changes_nothing[a map changed while it is iterated]
  core/state/test_map_state::test_changing_a_map_while_iterating_raises
  core/state/test_sorted_map_state::test_changing_it_while_iterating_raises
A transform that makes new rows must name an order, whatever the rows come from
  microbatch/test_bad_input::test_wiring_that_cannot_work_is_refused_before_anything_runs[a transform without an order]
  misuse/test_on_the_engine::test_what_only_a_run_on_spark_finds_is_refused[CSV without an order]
  misuse/test_on_the_engine::test_what_only_a_run_on_spark_finds_is_refused[JSON without an order]
CSV and JSON have no index of rows, so files cannot be cut
  sources/test_file_plan::test_wrong_configuration
A state with entries, and timers, that nothing asks for any more are refused
  microbatch/test_unasked_states::test_a_state_with_entries_must_be_asked_for_renamed_dropped_or_kept
  microbatch/test_unasked_states::test_a_state_that_is_asked_for_late_may_go_on_being_so_and_a_rename_of_it_shows
  microbatch/test_unasked_states::test_where_open_cannot_be_tried_the_micro_batch_says_it
  microbatch/test_unasked_states::test_timers_that_nothing_handles_are_refused
  microbatch/test_unasked_states::test_operator_state_must_be_asked_for_renamed_dropped_or_kept
  microbatch/test_unasked_states::test_a_rename_of_broadcast_state_shows
  microbatch/test_unasked_states::test_a_keyed_sink_without_its_sequence_is_refused
A state that is asked for and dropped, or dropped and kept, is refused
  microbatch/test_unasked_states::test_a_state_of_an_operator_cannot_be_asked_for_and_dropped
  microbatch/test_unasked_states::test_a_state_is_dropped_or_kept
An operator that the code has or nobody knows is not dropped
  misuse/test_advice_of_operations::test_the_advice_of_a_message_helps
Other columns of the key are refused, without a new row, and are no other type
  state_processor/test_transform::test_a_key_of_other_columns_is_no_other_type
  microbatch/test_unasked_states::test_another_key_is_refused_without_a_new_row
  microbatch/test_unasked_states::test_another_key_of_the_second_stream_is_another_key
Restoring with another type of key, state or kind of state is refused
  engine/test_migration::test_what_does_not_fit_is_refused[another type of key]
  engine/test_migration::test_what_does_not_fit_is_refused[another type of state]
  engine/test_migration::test_another_primitive_under_the_same_name_is_refused
  core/state/test_evolution::test_another_state_is_refused_and_named
  core/state/test_evolution::test_other_changes_are_refused
  engine/test_evolution_on_spark::test_other_changes_are_refused
The harness refuses a restore with another type, too
  misuse/test_states::test_keyed_state_of_another_type_is_refused_on_restore
  core/harness/test_harness_evolution::test_other_changes_are_refused_and_nothing_is_lost
A state needs a name and a type that can be, and pickles are taken only by opting in
  misuse/test_keys_and_timers::test_a_state_without_a_good_name_or_type_is_refused
  core/types/test_types_namespace::test_a_pickled_type_is_made_only_by_opting_in
State of an unknown name, operator, checkpoint or job cannot be read
  misuse/test_advice_of_operations::test_the_advice_of_a_message_helps
  engine/test_migration::test_a_job_that_never_ran_has_no_state
  core/checkpoints/test_history::test_an_unknown_checkpoint_is_refused_with_those_that_are_known
  test_testing::test_an_unknown_state_is_reported_with_those_that_are_there

Operator state

Names, types, schemes and descriptors of operator state are checked
  misuse/test_operator_state::test_a_wrong_use_of_operator_state_is_reported_with_operator_and_state
  core/operator_state/test_operator_state::test_one_name_two_types_is_refused
  core/operator_state/test_operator_state::test_names_of_the_engine_are_refused
  core/operator_state/test_operator_snapshot::test_subtasks_must_agree_on_a_state
Restoring operator state with another type or scheme is refused
  misuse/test_operator_state::test_operator_state_of_another_type_or_scheme_is_refused_on_restore
  core/operator_state/test_operator_state::test_another_type_or_scheme_than_stored_is_refused
Operators that are gone do not take their state with them
  microbatch/test_operator_state_on_spark::test_operator_state_that_goes_wrong_is_refused
  engine/test_migration::test_what_does_not_fit_is_refused[another uid]
Read-only broadcast state refuses writes
  misuse/test_operator_state::test_read_only_broadcast_state_refuses_every_write
  core/operator_state/test_broadcast_state::test_the_other_side_cannot_write
Broadcast state is the same on all subtasks
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[broadcast state that differs]
  storage/test_operator_state_files::test_copies_of_broadcast_state_that_differ_are_refused
An ordered broadcast stream is one with state, and it and the stream beside it have event time
  misuse/test_wiring::test_a_refusal_and_its_advice[connected streams that are to be ordered]
  misuse/test_wiring::test_a_refusal_and_its_advice[ordered for a function of two]
  misuse/test_wiring::test_a_refusal_and_its_advice[ordered rules without event time]
  misuse/test_wiring::test_a_refusal_and_its_advice[ordered rules beside no event time]
Rows beside ordered broadcast ones are in the order of their event times
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[rules in another order than that of event time]
State that cannot be redistributed refuses a rescale
  core/operator_state/test_operator_snapshot::test_raw_operator_state_refuses_a_rescale
  microbatch/test_operator_state_on_spark::test_raw_operator_state_cannot_be_rescaled
A file that changed, and a table whose rows were updated or deleted, after they were consumed, are errors
  sources/test_file_plan::test_consumed_file_that_changed
  sources/test_file_plan::test_change_between_plan_and_commit
  sources/test_delta::test_a_commit_that_takes_rows_away
A table without change data feed, and versions before it was on or after it was off, say how to go on
  sources/test_delta_changes::test_a_table_without_feed_is_refused_with_the_way_to_turn_it_on
  sources/test_delta_changes::test_changes_begin_where_what_is_added_was_read_up_to
So are the changes of a table whose columns are mapped by id
  sources/test_delta_changes::test_columns_that_are_mapped_by_id_are_refused
Changes whose files or log entries are gone are an error
  sources/test_delta_changes::test_history_that_is_gone_and_schemas_are_handled_as_for_the_plain_source
A commit is not finished, and a recorded batch not read again, with another value of changes
  sources/test_delta_changes::test_changes_begin_where_what_is_added_was_read_up_to
  sources/test_delta_changes::test_slices_that_were_recorded_are_read_again_and_cut_anew
Options of a source that exclude changes=True are refused
  sources/test_delta_changes::test_wrong_configuration
A format that does not fit its feed, or names no operations, is refused with what the feed has
  sources/test_change_format::test_what_does_not_fit_the_feed_is_refused
A format for a source that changes already, or that is none, is refused while wiring
  sources/test_decoded_source::test_a_format_that_does_not_fit_is_refused_when_the_job_is_built
An operation that cannot be decoded ends the batch with its reason, unless there are dead letters
  sources/test_decoded_source::test_without_dead_letters_it_ends_the_batch
  sources/test_decoded_source::test_a_table_of_texts_in_tasks_and_letters_that_are_sent_again
Hooks that are missing, or give something else, are reported
  misuse/test_operator_state::test_hooks_that_are_written_wrongly_are_reported
  core/functions/test_checkpointed::test_a_missing_hook_is_named
  core/operator/test_operator_lifecycle::test_anything_but_a_list_is_refused

Managed and raw state

Raw state is bytes, of an own key group, inside of snapshot_state
  misuse/test_operator_state::test_a_wrong_use_of_raw_state_is_reported
  core/operator_state/test_raw_state::test_only_bytes_can_be_written
  core/operator_state/test_raw_state::test_a_key_group_of_another_subtask_is_refused
  core/operator_state/test_raw_state::test_a_key_group_is_started_once
  core/operator_state/test_raw_state::test_bytes_need_a_key_group
  core/operator_state/test_raw_state::test_streams_are_closed_after_snapshot_state

Checkpointing

What is no state backend is refused, and wrong options of one
  misuse/test_wiring::test_a_refusal_and_its_advice[the name of a backend]
  test_testing::test_what_is_no_backend_is_refused
  state_backends/test_rocksdb_backend::test_wrong_options_are_refused

Time to live

A time to live is longer than nothing, and by event time only where there is one
  misuse/test_keys_and_timers::test_a_time_to_live_that_cannot_be_is_refused
  core/state/test_ttl_config::test_event_time_needs_a_source_with_event_time
  core/state/test_ttl_config::test_only_a_configuration_enables_ttl
Operator state does not expire
  core/operator_state/test_operator_state::test_operator_state_does_not_expire

Event time and timers

Timers need a key
  misuse/test_keys_and_timers::test_timers_without_a_key_are_refused
  core/time/test_timers::test_timers_need_a_key
A timer's time is a whole number of milliseconds
  misuse/test_keys_and_timers::test_a_time_that_is_none_is_refused
A time after which a source counts as down is positive, needs event time, and is not for time partitions
  microbatch/test_ends_of_time::test_what_cannot_be_declared
  microbatch/test_ends_of_time::test_time_partitions_have_no_outages
Timers that set each other without end are refused, with operator, key and timer
  microbatch/test_timers_that_set_timers::test_without_an_end
  microbatch/test_timers_that_set_timers::test_in_memory_nothing_is_committed
Event time is a column of times, declared at the source
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[a missing event time]
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[a number as event time]
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[a source function that gives times]
  misuse/test_wiring::test_a_refusal_and_its_advice[event time after an operator]
What ends time has event time, the clock has a delay, and time partitions end by themselves
  misuse/test_wiring::test_a_refusal_and_its_advice[an idle source without event time]
  misuse/test_wiring::test_a_refusal_and_its_advice[a watermark that is neither]
  misuse/test_wiring::test_a_refusal_and_its_advice[the clock without a delay]
  misuse/test_wiring::test_a_refusal_and_its_advice[a delay without the clock]
  misuse/test_wiring::test_a_refusal_and_its_advice[a delay below zero]
  misuse/test_wiring::test_a_refusal_and_its_advice[the clock in time partitions]
  misuse/test_wiring::test_a_refusal_and_its_advice[idle at once]
A span of time says its unit
  misuse/test_wiring::test_a_refusal_and_its_advice[a span of time without a unit]
  core/time/test_time_plan::test_a_text_that_is_no_span_says_what_to_write
Late rows go to a side output only where event time judges them, and once
  misuse/test_wiring::test_a_refusal_and_its_advice[a name as late_to]
  misuse/test_wiring::test_a_refusal_and_its_advice[late_to without event time]
  misuse/test_wiring::test_a_refusal_and_its_advice[late_to of a broadcast stream]
  misuse/test_wiring::test_a_refusal_and_its_advice[late_to of a stream that every subtask gets]
Their side output has one type, which fits them, and is read where they go
  misuse/test_wiring::test_a_refusal_and_its_advice[late_to of another type than is read]
  misuse/test_wiring::test_a_refusal_and_its_advice[late_to that is read too late]
  misuse/test_vectorized::test_a_side_output_of_late_rows_and_of_a_function_over_columns_is_refused
  microbatch/test_late_rows::test_late_elements_that_do_not_fit_the_tag_are_refused
What event-time timers yield needs a place in the order where it is merged, which the job shows before it runs
  job/test_places_of_timers::test_timers_whose_outputs_are_merged_need_a_place_in_the_order
  microbatch/test_timers_on_spark::test_merged_outputs_of_timers_need_the_event_time_first_in_the_order

Delivery guarantees

A row that cannot be parsed is reported with its job, source and file
  sources/test_file::test_rows_that_cannot_be_parsed
  sources/test_text_tasks::test_a_job_over_tasks
A text is the value that was written, or it is refused with its column
  sources/test_text_files::test_a_header_that_does_not_say_what_is_where
A separator that a CSV file says above its header is the one of the options
  sources/test_text_files::test_a_separator_that_a_file_says_is_no_header
A packed text file that is cut or changed, and one of another encoding, is refused with the file
  sources/test_damaged_files::test_damaged_text_is_refused_or_one_letter
A damaged Parquet file, or one that Spark cannot unpack, decode or decrypt, is refused with the file and what to do
  sources/test_damaged_files::test_damaged_parquet_is_refused_or_one_letter
A file that vanished after it was listed is named, and the next run goes on
  sources/test_damaged_files::test_a_file_that_vanished_is_named_and_the_next_run_goes_on
A column of a Parquet file whose type Spark lacks is named where no schema is declared
  sources/test_parquet_types::test_what_spark_infers_is_inferred_and_what_has_no_type_says_so
A column that a file lacks, or has twice, makes it unreadable where the source says so
  sources/test_missing_columns::test_a_file_that_lacks_a_column_or_has_too_many_is_refused
A text in a path that is no value of its column is refused with file, column and text
  sources/test_path_values::test_a_text_that_is_no_value_is_refused_with_file_column_and_value
  sources/test_path_values::test_names_go_as_names_of_columns_do
  sources/test_path_values::test_rows_whose_columns_all_come_from_their_path
A file whose name cannot be opened is refused with "rename"
  sources/test_file_names::test_a_name_that_no_uri_can_hold_is_one_letter_that_says_rename
  sources/test_file_names::test_a_colon_is_read_or_one_letter
Options of a reader are checked when they are given
  sources/test_text_files::test_options_are_checked_when_they_are_given
A function that raises fails the batch, with job, operator, key, position and cause
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[raises]
  microbatch/test_bad_input::test_a_failure_in_a_chained_operator_names_that_operator
So do open and close, whatever the policy, and a source function that raises
  microbatch/test_bad_input::test_open_and_close_fail_the_batch_whatever_the_policy
  microbatch/test_operator_state_on_spark::test_a_counter_source_has_no_gap_and_no_repeat
A string, bytes, dict, number or tuple that is returned is an error
  misuse/test_states::test_what_is_returned_instead_of_yielded_is_refused
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[a string]
Outputs have the declared type, and go to declared side outputs
  microbatch/test_bad_input::test_under_fail_nothing_is_committed_and_all_is_reported[wrong type]
  core/functions/test_output_tag::test_an_undeclared_side_output_is_reported
  core/functions/test_output_tag::test_one_name_for_two_types_is_reported
A sink of other columns is reported with both sides
  sinks/test_delta::test_other_columns_are_refused_and_both_sides_shown
  engine/test_migration::test_the_output_type_may_not_change_what_the_sink_holds
A row that a sink does not take for what it holds is refused before the commit, or set aside, with column and value
  sinks/test_refused_rows::test_a_delta_table
  sinks/test_refused_rows::test_a_table_of_a_database
  sinks/test_refused_rows::test_a_keyed_table_of_a_database[NUL]
  sinks/test_refused_rows::test_a_keyed_table_of_a_database[check]
  kafka/test_kafka_sink::test_a_row_that_cannot_become_a_record_is_refused[too large for the topic]
A row that a published table of a database refuses is named with its column
  state_tables/test_sql_tables::test_a_row_that_the_table_refuses_is_named_with_its_column
A column that holds less than the output is refused before the batch
  sinks/test_refused_rows::test_a_column_that_holds_less_than_the_output_is_refused_before_the_batch[an enum]
What only the commit of a sink refuses has a way out from the first checkpoint on
  sinks/test_refused_rows::test_what_only_the_commit_of_the_database_refuses_has_a_way_out_from_the_first_checkpoint_on
An output that was deleted or emptied is noticed by a living engine as by a new one, with ways back that need no backup
  publishing/test_lost_sinks::test_a_deleted_output_is_noticed_and_made_again_from_what_was_recorded
  publishing/test_lost_sinks::test_the_output_of_the_only_checkpoint_is_made_again_too
Another table under the name of a SqlSink's gets no row until somebody accepts it
  publishing/test_lost_sinks::test_another_table_under_the_name_of_a_sinks_gets_no_row_until_somebody_says_so
  publishing/test_lost_sinks::test_only_a_table_of_a_database_is_accepted
  sinks/test_sql_tables::test_nothing_is_accepted_where_no_table_is
A table that was put back from a backup and written to by others is another one, whatever its version
  publishing/test_lost_sinks::test_a_table_with_the_version_that_is_known_may_be_another
A damaged table is reported with the ways that repair it, and a damaged sink with those that work
  state_tables/test_damaged_tables::test_verify_and_accept_name_the_ways_out_of_damage
  state_tables/test_damaged_tables::test_a_damaged_sink_that_is_appended_to_waits_with_the_ways_that_work
A sink that was made anew, or is another job's, is refused
  sinks/test_delta::test_recreated_table_is_refused_and_the_old_one_is_settled
  sinks/test_files::test_another_job_is_refused
What is no table, a state without key, and a name that is taken or can be none are refused while wiring
  misuse/test_published_states::test_what_cannot_be_published_is_refused_while_it_is_built
A state that its operator does not have, or that no table can show, is refused before anything is committed
  misuse/test_published_states::test_what_no_table_can_show_is_refused_before_anything_is_committed
The columns of a harness's table are named
  testing/test_published_in_memory::test_a_harness_says_what_a_table_needs
A table that shows a state belongs to one root, job and state
  state_tables/test_sql::test_a_table_belongs_to_one_application
  state_tables/test_sql::test_a_table_of_nobody_is_refused
What others changed in such a table stops what is published to it, with the ways out
  state_tables/test_sql::test_a_row_of_somebody_else_stops_what_comes_upon_it
  state_tables/test_sql::test_a_row_that_somebody_inserted
  state_tables/test_sql::test_a_table_that_was_emptied_or_filled
  state_tables/test_sql::test_a_table_that_was_dropped_is_made_anew
  state_tables/test_sql::test_a_table_that_was_dropped_and_created_again_stops_the_publish
  state_tables/test_following::test_a_change_by_somebody_else_stops_the_publish_and_names_him
  state_tables/test_following::test_a_change_shows_behind_one_that_only_sets_a_property
  state_tables/test_erase::test_nothing_is_erased_where_somebody_else_changed_a_table
A table that is gone cannot be accepted
  state_tables/test_following::test_a_table_that_is_gone_is_not_accepted_and_a_dry_run_of_its_rebuild_counts_all
A Delta table of another root or job, and one with rules that plain files break, is refused
  state_tables/test_following::test_a_table_of_another_root_is_refused_or_adopted
  state_tables/test_following::test_tables_with_other_rules_are_refused
A row that a Delta table of a published state does not take keeps the table behind
  state_tables/test_following::test_what_columns_must_not_hold_is_judged_before_rows_are_written
A checkpoint that does not know a published state is not followed, and policies fit the sink
  state_tables/test_following::test_a_checkpoint_that_does_not_know_the_state_is_no_empty_state
  state_tables/test_following::test_policies_fit_the_sink
A state of other columns than its table is reported with both sides
  state_tables/test_sql_tables::test_a_state_whose_columns_do_not_fit_any_more
  state_tables/test_whole_tables::test_a_table_whose_field_is_renamed_is_rebuilt
  state_tables/test_whole_tables::test_a_table_whose_field_is_renamed_inside_of_a_record_is_rebuilt
  state_tables/test_whole_tables::test_a_column_of_somebody_else_is_not_taken_away
  testing/test_published_in_memory::test_a_state_with_other_columns_is_refused_as_by_the_real_table
  state_tables/test_sql_tables::test_states_that_no_table_can_show
  state_tables/test_sql_tables::test_what_cannot_be_taken_over
  state_tables/test_sql_tables::test_a_view_shows_no_state
What does not go with the key of a sink is refused
  misuse/test_published_states::test_what_does_not_go_together_is_refused
  sinks/test_sql::test_what_cannot_be_a_sql_sink
A keyed sink that cannot take its stream is refused while it is built
  misuse/test_published_states::test_what_a_keyed_sink_cannot_take_is_refused_while_the_job_is_built
Another key for a keyed sink is refused, with the way out
  state_tables/test_keyed_sinks::test_another_key_is_refused
A checkpoint that does not know the rows of a keyed sink is no empty table
  state_tables/test_keyed_sinks::test_a_checkpoint_before_the_sink_is_no_empty_table
  state_tables/test_keyed_sinks::test_rows_that_the_head_does_not_know_are_not_deleted
  state_tables/test_keyed_sinks::test_a_backfill_does_not_begin_beside_rows_that_the_head_does_not_know
Keyed sinks do not withdraw, and the message says what they do
  state_tables/test_keyed_sinks::test_a_restore_moves_the_table_back_and_forth
What a keyed sink of 0.2.0 staged is not published
  sinks/test_sql::test_what_waits_of_a_keyed_sink_of_0_2_0_is_refused
A sink does not write to such a table
  state_tables/test_sql_tables::test_no_sink_writes_to_a_table_that_shows_a_state
The URL of a database holds no password, and is of a database that was tried
  sinks/test_sql::test_what_cannot_be_a_sql_sink
  state_tables/test_sql_tables::test_what_cannot_be_a_table
What a source or a sink of Kafka cannot do is refused, with what to do
  misuse/test_choices::test_a_mistake_is_refused_with_what_to_do
  misuse/test_choices::test_only_a_sink_with_keys_takes_changes
  misuse/test_choices::test_a_secret_is_asked_for_where_it_is_used
  misuse/test_choices::test_what_is_no_login_is_refused_without_showing_it
  misuse/test_choices::test_a_login_without_a_name_or_a_password_is_refused
State files that are gone or damaged are reported by readers and by the next batch
  operations/test_damaged_files::test_a_checkpoint_before_the_damage_leads_on

Catalogs

A table has a path or a name, and the name is one
  spark/test_catalog::test_a_table_has_a_path_or_a_name
  spark/test_catalog::test_names_of_tables_are_checked
What is no Delta table, and a schema that is not there, is refused with what to do
  spark/test_catalog::test_what_is_no_delta_table_is_refused
  spark/test_catalog::test_no_table_is_made_where_there_is_no_schema
  queries/test_named_tables::test_outputs_go_to_no_table_of_another_kind
A table that was dropped and made anew under its name is not read on
  queries/test_named_tables::test_a_source_that_was_made_anew_is_refused_and_one_that_moved_is_not
A name is taken from nobody, neither for a table nor for a view, and nothing is registered then
  spark/test_catalog::test_a_name_is_given_once_and_taken_from_nobody
  queries/test_catalog_views::test_nothing_foreign_is_overwritten
  queries/test_catalog_views::test_two_things_of_one_name_are_refused
Catalogs, schemas and roots that are not there, or have no such names, are refused by a registration
  queries/test_catalog_views::test_catalogs_and_schemas_that_are_not_there_are_refused
  queries/test_catalog_views::test_names_of_catalogs_and_schemas_are_checked
  queries/test_catalog_views::test_before_the_first_run_there_is_nothing_to_register
A catalog that ends with the session is refused by the command
  spark/test_catalog::test_a_catalog_that_ends_with_the_session_is_refused
  queries/test_catalog_views::test_the_command_refuses_a_catalog_in_memory
A view of a checkpoint that was collected fails, and names the file
  queries/test_catalog_views::test_a_view_of_a_collected_checkpoint_fails_and_says_so

Jobs

Names and uids are unique and well written, types are given, functions fit their streams
  misuse/test_wiring::test_a_refusal_and_its_advice
  job/test_streams::test_what_streams_refuse
  core/test_names::test_other_names_are_refused_with_the_rule
Elements of a collection are reported with their source
  misuse/test_wiring::test_an_element_of_a_collection_of_the_wrong_type_is_reported_with_its_source
A job does something, uses its sources, and its stateful operators have uids
  misuse/test_wiring::test_a_refusal_and_its_advice
Functions with broadcast state need uids, too
  misuse/test_wiring::test_a_refusal_and_its_advice[a broadcast function without uid]
An operator, a sink function and connected streams that take inserts only are refused on a stream that changes
  misuse/test_changes::test_an_operator_that_takes_inserts_only_is_refused
  misuse/test_changes::test_the_message_names_the_operator_that_makes_a_stream_change
So is a sink
  misuse/test_changes::test_a_sink_that_takes_inserts_only_is_refused
  misuse/test_changes::test_a_sink_that_takes_inserts_only_names_the_way_out_of_windows
And so is the harness of such a function
  core/harness/test_row_kinds::test_a_function_that_takes_inserts_only_is_refused
A reduction without inverse, an aggregation without retract and Flink's rolling aggregates take inserts only
  misuse/test_changes::test_what_cannot_take_rows_back_is_refused_on_a_stream_that_changes
  operators/test_retraction::test_which_functions_can_take_rows_back
Aggregates fit the columns of their stream, and have names of their own; each can do what the stream and windows need
  operators/aggregates/test_new_aggregates::test_what_an_aggregate_cannot_do_is_refused_while_the_job_is_built
  operators/aggregates/test_new_aggregates::test_fields_whose_names_would_meet_in_the_state_are_refused
  misuse/test_changes::test_aggregates_that_do_not_fit_are_refused_while_they_are_built
What would count each running result of a key beside those before it is refused behind them
  operators/test_running_results::test_what_would_count_each_result_is_refused_behind_running_ones
  operators/test_running_results::test_another_word_for_emit_is_refused
Windows need event time, a place for late rows that gets them, words that they know, and names of their own
  operators/windows/test_windows_in_jobs::test_what_cannot_be_a_window_is_refused_while_the_job_is_built
A use that windows do not have is refused with what to do instead: outputs to take back, triggers, late rows of clocks
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out
A key of a sink that several windows can have whose results change is refused
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[key: no end]
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[key: no start]
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[key: no bounds]
An evictor of Flink's is refused, with what takes rows out of a window
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[an evictor]
A second lateness of windows is refused, and a second place for their late rows
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[two latenesses]
  operators/windows/test_uses_in_jobs::test_what_windows_cannot_be_used_for_is_refused_with_the_way_out[two late_to]
A session has no state of its own
  operators/windows/test_functions_of_windows::test_a_session_has_no_state_of_its_own
What a function of a window returns is outputs
  operators/windows/test_functions_of_windows::test_what_a_window_function_returns_must_be_outputs
A size, offset, zone or gap that makes no windows is refused when it is given
  operators/windows/test_assigners::test_what_makes_no_windows_is_refused
  operators/windows/test_assigners::test_sessions_of_a_computed_gap
A row is refused whose time has no calendar, or whose window has no bounds, and no other row
  operators/windows/test_assigners::test_a_time_without_a_calendar_is_refused_with_a_way_out
  operators/windows/test_vectors::test_a_row_of_a_window_that_no_timestamp_ends_is_refused_and_no_other
What cannot be joined is refused while the job is built: no event time, changes, keys of other types, columns that clash
  operators/joins/test_joins_in_jobs::test_what_cannot_be_joined_is_refused_while_the_job_is_built
A join without a bound in time has no late rows, a time to live that its streams have, and rows that it may count
  operators/joins/test_regular_joins_in_jobs::test_what_is_no_regular_join_is_refused_while_the_job_is_built
What a join without a bound in time takes back was there
  operators/joins/test_regular_join::test_a_row_that_is_not_there_cannot_be_taken_back
  operators/joins/test_regular_joins_in_jobs::test_a_row_of_a_feed_that_was_never_there_is_refused
What may be taken back goes to no sink of inserts, and a join does not say which of its two states is a table
  operators/joins/test_regular_joins_in_jobs::test_a_join_of_inserts_is_a_stream_of_inserts
  operators/joins/test_regular_joins_in_jobs::test_what_is_kept_is_a_table
A join says how, and the bounds of its interval, in an order that can be
  operators/joins/test_interval_join::test_spellings_of_how_and_of_spans
What cannot keep one row of each key is refused while the job is built: no event time, arguments that do not fit
  operators/test_deduplication::test_what_does_not_fit_is_refused_while_the_job_is_built
A row without event time is no first and no last one by it
  operators/test_deduplication::test_a_row_without_event_time_is_refused
Times of rows that were kept for another distance are refused
  operators/test_other_shapes::test_state_of_another_shape_is_refused[first]
Silence needs event time, a time that is one, and columns that rows have
  operators/test_silence::test_what_does_not_fit_is_refused_while_the_job_is_built
  operators/test_silence::test_a_row_without_event_time_is_refused
State of silences behind another time is refused
  operators/test_other_shapes::test_state_of_another_shape_is_refused[silence]
What is no as-of join is refused while the job is built: a left side that changes, a word that it does not know
  operators/joins/test_asof_join::test_what_is_no_asof_join_is_refused_while_the_job_is_built
Versions that were kept for another tolerance are refused
  operators/test_other_shapes::test_state_of_another_shape_is_refused[as-of join]
By Flink's names as well, and its function has a type
  porting/test_joins_of_flink::test_what_is_no_interval_join_is_refused
A row without event time is in no join
  operators/joins/test_interval_join::test_a_row_without_event_time_is_refused
State of another join is refused before a row is read
  operators/test_other_shapes::test_state_of_another_shape_is_refused[interval join]
  operators/test_other_shapes::test_state_of_another_shape_is_refused[regular join]
A join waits for its other stream's first row, unless something says which columns that has
  operators/joins/test_joins_in_jobs::test_the_same_on_spark_also_where_one_stream_has_no_row
State of other windows is refused before a row is read
  operators/test_other_shapes::test_state_of_another_shape_is_refused[size]
  operators/test_other_shapes::test_state_of_another_shape_is_refused[shorter lateness]
  microbatch/test_shapes::test_another_shape_is_refused_before_a_row_is_read
An event time of its own needs a stream with event time
  microbatch/test_output_times::test_an_own_event_time_needs_a_stream_with_event_time
A function over columns has no state that is not one value for each key
  misuse/test_vectorized::test_states_that_columns_cannot_hold_are_refused
What it returns has the columns, numbers and types that are declared
  misuse/test_vectorized::test_results_that_do_not_fit_are_refused
  core/operator/test_vectorized_operator::test_a_value_that_does_not_fit_fails_the_batch_and_says_where
A row that it refuses has no output
  misuse/test_vectorized::test_an_output_of_a_refused_row_is_refused
Its maps, timers, kinds and times fit what it declares and what is there
  misuse/test_vectorized::test_maps_timers_and_places_that_do_not_fit_are_refused
  misuse/test_vectorized::test_timers_and_event_times_need_what_they_stand_on
  misuse/test_vectorized::test_a_timer_of_processing_time_that_is_due_is_refused
  misuse/test_vectorized::test_a_kind_that_there_is_not_is_refused
Columns of its stream do not have the names of its numbers
  misuse/test_vectorized::test_columns_of_the_stream_with_the_names_of_numbers_are_refused
It works on keyed streams of inserts
  misuse/test_vectorized::test_streams_that_it_cannot_be_on_are_refused_while_they_are_wired
A harness of it knows the types
  misuse/test_vectorized::test_a_harness_must_know_the_types
A sum that does not fit its type is an error of the element
  operators/aggregates/test_keyed_aggregates::test_a_sum_that_does_not_fit_is_refused_and_changes_nothing
A time to live of keys is a span, and of a clock that the stream has
  operators/test_idle_keys::test_what_is_no_time_to_live_of_keys_is_refused
An update or a delete of what was never added is refused, and changes nothing
  operators/aggregates/test_keyed_aggregates::test_what_was_never_added_is_refused_and_changes_nothing
  operators/aggregates/test_aggregates_in_jobs::test_what_was_never_added_is_set_aside_or_fails_the_batch
A row whose key was not counted cannot be taken back
  operators/test_retraction::test_rows_that_were_not_counted_cannot_be_taken_back
  operators/aggregates/test_aggregates_in_jobs::test_a_state_that_is_older_than_its_count_is_refused_when_rows_are_taken_back
An aggregating state takes back only what an aggregate function can retract, and what it holds
  operators/test_retraction::test_an_aggregating_state_takes_a_value_back
Columns of the last row, of versions and of a top list are those of the rows, and fit each other
  operators/test_last_rows::test_what_cannot_work_is_refused_when_it_is_built
  operators/test_scd2::test_what_cannot_work_is_refused_when_it_is_built
  operators/test_top_n::test_what_cannot_work_is_refused_when_it_is_built
A row without a sequence, a time or a value to compare is refused, and so is one of another type
  operators/test_last_rows::test_a_row_without_a_place_in_the_sequence_is_refused
  operators/test_last_rows::test_a_row_of_another_type_is_refused
  operators/test_scd2::test_a_row_without_a_time_is_refused
  operators/test_scd2::test_a_row_without_a_sequence_is_refused
Aggregates of the rows before have a reach, tiles that fit it, and names of their own; a row has an event time
  operators/test_over::test_what_is_refused
  operators/test_over::test_a_row_without_event_time_is_refused
  operators/test_over_in_jobs::test_what_cannot_be_is_refused_while_the_job_is_built
A sequence has two steps or more, a time, and columns that the stream has; a row has an event time
  operators/test_sequence::test_what_cannot_be_is_refused_while_the_job_is_built
  operators/test_sequence::test_rows_without_a_time_or_with_one_that_no_timestamp_has_are_refused
Another sequence is refused where there is a state
  operators/test_other_shapes::test_state_of_another_shape_is_refused[sequence]
Other spans of such aggregates are refused where there is a state
  operators/test_other_shapes::test_state_of_another_shape_is_refused[over]
A lateness is 0 or more, and a row that waits has an event time
  operators/test_waiting::test_a_lateness_below_zero_is_refused
  operators/test_waiting::test_a_row_without_event_time_is_refused
A sequence of a feed that is no field, or that orders the changes of one file of a log only, is refused with the way out
  operators/test_sequences_of_feeds::test_a_sequence_that_is_no_field_is_refused
Versions with a lateness have event time, and a timestamp or date; what has no effect on them is refused
  operators/test_versions_in_time::test_what_cannot_be_is_refused_while_the_job_is_built
Other versions are refused where there is a state
  operators/test_other_shapes::test_state_of_another_shape_is_refused[versions]
A snapshot without a date, key or order, with too few rows, or beside changed files, is refused
  sources/test_snapshots::test_a_snapshot_that_lacks_too_much_is_refused_unless_it_is_allowed
  sources/test_snapshots::test_keys_are_there_and_once
  sources/test_snapshots::test_a_row_that_cannot_be_read_is_no_deleted_one
  sources/test_snapshots::test_files_that_would_change_committed_changes_are_refused
Sources that cannot be compared are refused while the job is built
  sources/test_snapshots::test_what_cannot_be_compared_is_refused_while_the_job_is_built
A sequence of versions that orders nothing is refused
  operators/test_scd2::test_a_sequence_that_orders_nothing_is_refused
Late rows of a source that changes are not diverted
  misuse/test_changes::test_late_rows_of_a_source_that_changes_are_not_diverted
A transform that makes rows without kinds is refused
  microbatch/test_row_kinds::test_a_transform_that_makes_rows_without_kinds_is_refused
Names of columns that the engine has itself, or that a Delta table cannot have, are refused before anything is committed
  engine/test_column_names::test_names_of_the_engine_are_refused
  engine/test_column_names::test_a_name_that_delta_cannot_have_is_refused_before_anything_is_committed
A function that holds what cannot be sent to subtasks is refused with its place, for few rows as for many
  spark/test_pickled_code::test_the_place_of_what_cannot_travel_is_named
  spark/test_pickled_code::test_the_kind_of_what_cannot_travel_is_named
  spark/test_pickled_code::test_every_function_is_refused_in_memory
  spark/test_pickled_code::test_few_rows_are_refused_as_many_are
A value that would lose something as its declared type is refused, alone and in a column
  core/types/test_nothing_is_lost::test_what_would_lose_something_is_refused
  core/types/test_nothing_is_lost::test_a_column_that_would_lose_something_is_refused
A transform that looks at other rows of the micro-batch, or at when and where it runs, is refused
  sources/test_row_by_row::test_what_looks_at_other_rows_or_at_the_run_is_refused
  sources/test_row_by_row::test_a_hidden_column_of_spark_is_refused
A text without a date that a transform casts to a time is refused, for Spark gives it the date of the run
  sources/test_row_by_row::test_no_text_gets_the_date_of_the_run
A value that code of a transform cannot take ends the micro-batch as an error of that code, with what Spark says
  spark/test_failures::test_what_code_of_a_transform_cannot_take_is_no_defect
A column of a type that no text of CSV says is refused when its source is made, by its name
  sources/test_text_files::test_a_column_that_no_text_says_is_named_when_the_source_is_made
A row that is no insert needs a function, a harness or a collection of a stream that changes
  core/harness/test_row_kinds::test_what_accepts_changes_puts_out_inserts_unless_it_says_otherwise
  core/harness/test_row_kinds::test_a_row_of_another_kind_needs_a_harness_of_a_stream_that_changes
  microbatch/test_row_kinds::test_a_collection_without_kinds_takes_inserts_only
  core/types/test_row::test_a_row_that_is_no_insert_is_refused_and_never_taken_for_one
A function that puts out changes says so
  misuse/test_published_states::test_a_delete_of_a_function_that_does_not_say_that_it_emits_changes_is_refused
A map gives no output another kind than that of its element
  core/harness/test_row_kinds::test_a_map_cannot_give_an_output_another_kind
A state keeps no row of another kind
  core/harness/test_row_kinds::test_a_state_takes_no_row_of_another_kind_and_says_the_way_out
A dead letter that is no insert is not sent to a stream of inserts
  microbatch/test_row_kinds::test_a_letter_that_is_no_insert_is_not_sent_to_a_stream_of_inserts
Streams that are joined have the same keys or columns
  misuse/test_on_the_engine::test_what_only_a_run_finds_is_refused[streams keyed by different types]
  misuse/test_on_the_engine::test_what_only_a_run_on_spark_finds_is_refused[a union of different columns]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ALLOWED = {
    "misuse/test_constructors::test_a_wrong_argument_is_taken_or_refused_as_one",
    "misuse/test_damage_of_every_file::test_a_damaged_file_changes_no_result",
    "misuse/test_engine_arguments::test_a_wrong_argument_is_taken_or_refused_as_one",
    "misuse/test_ways_out::test_every_class_of_the_catalogue_has_a_test_that_follows_its_advice",
    "misuse/test_ways_out::test_its_test_raises_it_and_goes_on",
    "misuse/test_choices::test_a_schedule_is_one_for_dagster_too",
    "misuse/test_choices::test_no_declaration_is_forgotten",
    "misuse/test_choices::test_what_is_declared_rightly_is_taken",
    "misuse/test_keys_and_timers::test_a_letter_says_the_same",
    "misuse/test_keys_and_timers::test_an_error_of_a_row_with_event_time_says_nothing_of_it",
    "misuse/test_changes::test_who_takes_changes_is_not_refused_and_inserts_stay_inserts",
    "misuse/test_keys_and_timers::test_a_null_in_a_composite_key_is_a_key",
    "misuse/test_wiring::test_a_side_output_that_late_elements_go_to_may_be_read_elsewhere_too",
    "misuse/test_keys_and_timers::test_an_event_time_timer_without_event_time_is_kept_until_the_input_ends",
}
"""Tests beside the table: what looks like misuse and is none."""


def entries() -> list[tuple[str, str]]:
    """Pairs of a sentence and the id of one of its tests."""
    pairs, sentence = [], ""
    for line in (__doc__ or "").splitlines():
        if line.startswith("  "):
            pairs.append((sentence, line.strip()))
        else:
            sentence = line
    return pairs


@cache
def module(file: str) -> ast.Module:
    return ast.parse((TESTS / f"{file}.py").read_text())


def functions(file: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module(file).body if isinstance(node, ast.FunctionDef)}


def looks_at_message(file: str, name: str) -> bool:
    """Whether a function, or one of its file that it calls, expects an error of a class and looks at its message."""
    known, seen, todo = functions(file), set[str](), [name]
    while todo:
        seen.add(todo[-1])
        for node in ast.walk(known[todo.pop()]):
            if isinstance(node, ast.With) and any(looked_at(item) for item in node.items):
                return True
            if isinstance(node, ast.Name) and node.id in known and node.id not in seen:
                todo.append(node.id)
    return False


def looked_at(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("pytest.raises", "pytest.warns"):
        return False
    message = item.optional_vars is not None or any(k.arg == "match" for k in call.keywords)
    return message and ast.unparse(call.args[0]) != "Exception"


def expected_to_fail(function: ast.FunctionDef) -> bool:
    return any("mark.xfail" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize(("sentence", "test"), entries())
def test_the_test_exists_and_looks_at_class_and_message(sentence: str, test: str) -> None:
    match = re.fullmatch(r"([\w/]+)::(\w+)(?:\[(.+)\])?", test)
    assert match is not None
    file, name, case = match.groups()
    assert name in functions(file)
    assert looks_at_message(file, name)
    assert expected_to_fail(functions(file)[name]) == sentence.endswith("(not yet)")
    if case is not None:
        constants = {node.value for node in ast.walk(module(file)) if isinstance(node, ast.Constant)}
        assert case in constants


def test_every_test_of_misuse_is_in_the_table() -> None:
    def mine() -> Iterator[str]:
        for path in sorted(Path(__file__).parent.glob("test_*.py")):
            if path != Path(__file__):
                names = functions(f"misuse/{path.stem}")
                yield from (f"misuse/{path.stem}::{name}" for name in names if name.startswith("test_"))

    shown = {test.split("[")[0] for _, test in entries()}
    assert set(mine()) - shown == ALLOWED
