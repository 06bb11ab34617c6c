"""For each class of the error catalogue: its advice, followed as the message gives it, helps.

``FOLLOWED`` names the test. It raises the error by what a user does, looks at the advice, follows it, and goes on.
Where a class has many messages, the test follows one of them; the table of misuse has the others.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    Row,
    RowKind,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.invariants import Violation
from state_engine.core.errors import (
    ConfigurationError,
    InternalError,
    InvalidKeyError,
    InvalidNameError,
    InvariantError,
    MemoryLimitError,
    MissingPackageError,
    RescaleError,
    RetractionError,
    SettingsError,
    StateAccessError,
    TimerChainError,
    UserFunctionError,
    ValueTypeError,
)
from state_engine.core.extras import EXTRAS, optional
from state_engine.core.operator import stream_operator
from state_engine.core.time.timers import TimerQueue
from state_engine.machine.settings import load_settings
from state_engine.microbatch.executor import GraphExecutor
from state_engine.storage import checkpoint_log
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.docs.test_reference import ENTRIES
from tests.misuse.test_table import functions
from tests.support.environments import PROJECT

HERE = "misuse/test_ways_out::"
FOLLOWED = {
    "BadFileError": "sources/test_damaged_files::test_damaged_parquet_is_refused_or_one_letter",
    "CodeVersionError": "spark/test_code_digests::test_a_worker_with_other_code_refuses",
    "CommitFailedError": "microbatch/test_fencing::"
    "test_a_checkpoint_that_was_not_committed_is_reported_and_the_next_run_does_it",
    "CommitUnknownError": "microbatch/test_fencing::"
    "test_outputs_that_were_not_published_are_reported_and_published_by_the_next_run",
    "ConfigurationError": HERE + "test_a_word_that_is_not_known_is_replaced_by_one_that_is",
    "DamagedFileError": "operations/test_damaged_files::test_a_checkpoint_before_the_damage_leads_on",
    "DamagedOutputError": "faults/test_head_repair::test_outputs_that_are_shown_and_empty_are_noticed",
    "GateError": "microbatch/test_row_expectations::test_a_rule_that_fails_commits_nothing_and_names_rows",
    "DeadLetterLimitError": "microbatch/test_dead_letters::test_a_batch_that_refuses_too_much_is_not_committed",
    "InternalError": HERE + "test_what_nobody_foresaw_is_repaired_and_run_again",
    "InvalidKeyError": HERE + "test_a_column_that_is_no_key_is_keyed_by_something_else",
    "InvalidNameError": HERE + "test_the_example_of_a_name_is_one",
    "InvariantError": HERE + "test_after_a_commit_that_would_break_a_rule_reading_and_restoring_work",
    "JarsError": "machine/test_jars::test_a_damaged_jar_is_fetched_again",
    "JavaNotFoundError": "machine/test_java::"
    "test_too_old_is_passed_over_and_named_when_nothing_else_is_there",
    "LockTimeoutError": "storage/test_locks::test_timeout_names_the_holder",
    "MemoryLimitError": HERE + "test_fewer_rows_need_less_memory",
    "MissingFilesError": "operations/test_damaged_files::test_a_checkpoint_before_the_damage_leads_on",
    "MissingPackageError": HERE + "test_the_extra_that_is_named_brings_the_package",
    "PartitionOrderError": "replay/test_backfill::test_partitions_run_in_order_and_late_rows_are_counted",
    "RescaleError": HERE + "test_raw_state_is_moved_into_a_list_before_the_parallelism_changes",
    "RetractionError": HERE + "test_a_row_that_is_taken_back_was_read_first",
    "RootError": "monitoring/test_repair::test_a_lost_marker_is_written_anew_after_it_was_shown",
    "SessionError": "spark/test_session::test_a_session_without_delta_is_replaced_as_the_message_says",
    "SettingsError": HERE + "test_the_nearest_setting_is_taken",
    "SetupError": "engine/test_clocks::test_ten_years_ahead_and_back",
    "SinkBehindError": "publishing/test_lost_sinks::"
    "test_a_deleted_output_is_noticed_and_made_again_from_what_was_recorded",
    "SinkError": "misuse/test_advice_of_damage::test_what_is_said_of_a_further_column_before_a_sink_helps",
    "SinkIdentityError": "state_tables/test_following::test_a_table_of_another_root_is_refused_or_adopted",
    "SourceError": "misuse/test_advice_of_damage::test_what_is_said_of_a_renamed_column_helps",
    "SparkLostError": "spark/test_failures::test_a_killed_jvm_is_reported_and_the_next_process_goes_on",
    "StaleParentError": "microbatch/test_fencing::test_a_zombie_that_wakes_up_changes_nothing",
    "StateAccessError": HERE + "test_a_map_is_collected_before_it_is_changed",
    "StateMigrationError": "microbatch/test_unasked_states::"
    "test_a_state_with_entries_must_be_asked_for_renamed_dropped_or_kept",
    "StorageError": "storage/test_failures::test_too_many_open_files_are_reported_on_reading_and_writing",
    "SubtaskLostError": "spark/test_failures::"
    "test_a_killed_worker_leaves_nothing_that_refuses_the_second_try",
    "TableChangedError": "state_tables/test_following::test_a_table_that_somebody_changed_is_rebuilt",
    "TimerChainError": HERE + "test_a_timer_is_set_later_than_the_one_that_fires",
    "UnsafeStoreError": "stores/test_store_checks::test_a_store_that_ignores_the_condition_is_refused",
    "UserFunctionError": HERE + "test_a_row_that_fails_is_set_aside",
    "ValueTypeError": HERE + "test_a_value_is_given_as_the_declared_type",
}
"""The test that follows the advice, by class; those that are only raised as one of their kinds are ``PARENTS``."""
PARENTS = {"StatelakeError", "CommitError"}
ROWS = "k string, v bigint"


class Sum(KeyedProcessFunction):
    """The sum by key, which a test's own step may spoil."""

    def __init__(self, step: Callable[[Any], Any] = lambda value: value.v) -> None:
        self.step = step

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.total.update(self.total.value() + self.step(value))
        yield value.k, self.total.value()


def summing(function: Any = None, **options: Any) -> StatefulJob:
    job = StatefulJob("sums", **options)
    rows = job.source("rows", FileSource("/rows", schema=ROWS))
    summed = rows.key_by("k").process(function or Sum(), uid="sum", output_type="k string, total bigint")
    summed.sink("out", CollectSink())
    return job


# -- names, words and settings -----------------------------------------------------------------------------------------


NAMES: dict[str, tuple[Callable[[str], object], str]] = {
    "a job": (StatefulJob, "1 bad"),
    "a side output": (lambda name: OutputTag(name, int), ""),
    "a table of a catalog": (lambda name: DeltaSink(table=name), "flights"),
}


@pytest.mark.parametrize("of", NAMES)
def test_the_example_of_a_name_is_one(of: str) -> None:
    named, name = NAMES[of]
    with pytest.raises(InvalidNameError, match=f"cannot name {of}.*for example '") as refused:
        named(name)
    [example] = re.findall(r"for example '([^']+)'", str(refused.value))
    assert named(example) is not None


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_that_is_named_brings_the_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, package, None)
        with pytest.raises(MissingPackageError, match=f"job needs the package {package}") as refused:
            optional(package, needed_by="job")
    [extra] = re.findall(r'pip install "statelake\[(\w+)\]"', str(refused.value))
    brought = {
        re.split(r"[^\w-]", text)[0].replace("-", "_") for text in PROJECT["optional-dependencies"][extra]
    }
    assert any(one == package or one.startswith(f"{package}_") for one in brought), "or a part of it"
    assert find_spec(package) is not None


def test_a_word_that_is_not_known_is_replaced_by_one_that_is() -> None:
    with pytest.raises(ConfigurationError, match=r"on_error .*'fail'.*'dead_letter'") as refused:
        summing(on_error="skip")
    for word in re.findall(r"'(\w+)'", str(refused.value).split("must be")[1])[:2]:
        assert summing(on_error=word).on_error == word


@pytest.mark.parametrize("line", ['roots = "x"', 'driver_memory = "1g"', '[spark]\nmastr = "local[1]"'])
def test_the_nearest_setting_is_taken(tmp_path: Path, line: str) -> None:
    file = tmp_path / "statelake.toml"
    file.write_text(line)
    with pytest.raises(SettingsError, match="did you mean") as refused:
        load_settings(environ={}, directory=tmp_path)
    [nearest] = re.findall(r"did you mean '([\w.]+)'", str(refused.value))
    value = re.findall(r'"(.+)"', line)[0]
    file.write_text(f'{nearest} = "{value}"')
    assert load_settings(environ={}, directory=tmp_path) is not None


# -- rows, keys and values ---------------------------------------------------------------------------------------------


def test_a_row_that_fails_is_set_aside() -> None:
    rows = [("a", 1), ("a", 0), ("b", 2)]
    inverse = Sum(lambda value: 2 // value.v)
    with run_in_memory(summing(inverse)) as run:
        with pytest.raises(UserFunctionError, match=r"on_error=.dead_letter."):
            run.process({"rows": rows})
        run.restart(summing(inverse, on_error="dead_letter"))
        assert run.process({"rows": rows})["out"] == [("a", 2), ("b", 1)]
        [letter] = run.dead_letters()
        assert (letter["key"], letter["row"]) == ('{"k": "a"}', '{"k": "a", "v": 0}')


def test_a_column_that_is_no_key_is_keyed_by_something_else() -> None:
    def by(*columns: str) -> StatefulJob:
        job = StatefulJob("tags")
        rows = job.source("rows", FileSource("/rows", schema="tags array<string>, k string"))
        rows.key_by(*columns).map(lambda row: row.k, output_type=str, uid="k").sink("out", CollectSink())
        return job

    with (
        pytest.raises(InvalidKeyError, match=r"'tags' has the type .*cannot be a key"),
        run_in_memory(by("tags")) as run,
    ):
        run.process({"rows": [(["x"], "a")]})
    with run_in_memory(by("k")) as run:
        assert run.process({"rows": [(["x"], "a")]})["out"] == ["a"]


def test_a_value_is_given_as_the_declared_type() -> None:
    def summed(step: Callable[[Any], Any]) -> list[Any]:
        return KeyedHarness(Sum(step), key_by=lambda row: row.k).process([Row(k="a", v="1")])

    with pytest.raises(ValueTypeError, match=r"state 'total': 1\.5 \(float\) is not a value of type int64"):
        summed(lambda row: float(row.v) + 0.5)
    assert summed(lambda row: int(row.v)) == [("a", 1)]


def test_a_row_that_is_taken_back_was_read_first() -> None:
    def net() -> KeyedHarness:
        return KeyedHarness(Net(), key_by=lambda value: value[0])

    with pytest.raises(
        RetractionError, match=r"state 'net' cannot take back 5, .*read the rows of the table first"
    ):
        net().process([("a", RowKind.DELETE, 5)])
    rows = [("a", RowKind.INSERT, 7), ("a", RowKind.INSERT, 5), ("a", RowKind.DELETE, 5)]
    assert net().process(rows) == [7, 12, 7]


# -- functions ---------------------------------------------------------------------------------------------------------


class Total(AggregateFunction):
    """A sum that values can be taken from."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def retract(self, value: int, accumulator: int) -> int:
        return accumulator - value

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Net(KeyedProcessFunction):
    """The sum of what came and went, by key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.net = runtime_context.get_aggregating_state(AggregatingStateDescriptor("net", Total(), int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        _, kind, amount = value
        (self.net.retract if kind is RowKind.DELETE else self.net.add)(amount)
        yield self.net.get()


class Emptied(KeyedProcessFunction):
    """Removes all entries of a map, while it looks at them or after."""

    def __init__(self, entries: Callable[[Any], Iterable[Any]]) -> None:
        self.entries = entries

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", int, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.seen.put_all({1: 1, 2: 2})
        for key in self.entries(self.seen.keys()):
            self.seen.remove(key)
        yield self.seen.is_empty()


def test_a_map_is_collected_before_it_is_changed() -> None:
    with pytest.raises(StateAccessError, match="collect the items into a list first"):
        KeyedHarness(Emptied(iter), key_by=str).process(["a"])
    assert KeyedHarness(Emptied(list), key_by=str).process(["a"]) == [True]


class Again(KeyedProcessFunction):
    """Sets a timer when one fires: so many milliseconds later."""

    def __init__(self, later: int) -> None:
        self.later = later

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value[1])
        return []

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(timestamp + self.later)
        yield timestamp


def test_a_timer_is_set_later_than_the_one_that_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_operator, "TimerQueue", partial(TimerQueue, chain_limit=50))

    def again(later: int) -> list[Any]:
        harness = KeyedHarness(
            Again(later), key_by=lambda e: e[0], timestamp_of=lambda e: e[1], max_out_of_orderness_ms=0
        )
        return harness.process([("a", 0), ("b", 9)])

    with pytest.raises(TimerChainError, match="Set the next one later than the one that fires"):
        again(0)
    assert again(4)[:2] == [0, 4]


class Bytes(KeyedProcessFunction, CheckpointedFunction):
    """Counts its rows: in bytes of its own, or, of these, in a list state."""

    def __init__(self, *, listed: bool) -> None:
        self.listed = listed

    def initialize_state(self, context: Any) -> None:
        self.count = sum(int(data) for data in context.raw_operator_state)
        if self.listed:
            counts = ListStateDescriptor("counts", int)
            self.counts = context.get_operator_state_store().get_list_state(counts)
            self.count += sum(self.counts.get())

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.count += 1
        return []

    def snapshot_state(self, context: Any) -> None:
        if self.listed:
            self.counts.update([self.count])
        else:
            context.raw_operator_state.write(str(self.count).encode())


def test_raw_state_is_moved_into_a_list_before_the_parallelism_changes() -> None:
    rows = [(k, 1) for k in "abcdef"]
    with run_in_memory(summing(Bytes(listed=False), parallelism=2)) as run:
        run.process({"rows": rows})
        run.restart(summing(Bytes(listed=False), parallelism=3))
        with pytest.raises(
            RescaleError, match="Keep parallelism 2, or first run a version that moves the state"
        ):
            run.process({"rows": rows})
        run.restart(summing(Bytes(listed=True), parallelism=2))
        run.process({"rows": rows})
        run.restart(summing(Bytes(listed=True), parallelism=3))
        run.process({"rows": rows})
        assert sum(map(sum, run.state("sum", "counts"))) == 18


class Large(Sum):
    """Holds the rows of a micro-batch, of which only two fit."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.held: list[Any] = []

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.held.append(value)
        if len(self.held) > 2:
            raise MemoryError
        return super().process_element(value, ctx)


def test_fewer_rows_need_less_memory() -> None:
    def summed(**options: Any) -> StatefulJob:
        job = StatefulJob("sums", parallelism=1)
        rows = job.from_collection([("a", n) for n in range(1, 6)], ROWS, name="rows", **options)
        summed = rows.key_by("k").process(Large(), uid="sum", output_type="k string, total bigint")
        summed.sink("out", CollectSink())
        return job

    with run_in_memory(summed()) as run:
        with pytest.raises(MemoryLimitError, match="max_rows_per_batch"):
            run.run()
        run.restart(summed(max_rows_per_batch=2))
        run.run()
        assert run.sink("out")[-1] == ("a", 15)


# -- faults of the engine ----------------------------------------------------------------------------------------------


@pytest.mark.internal_errors
def test_what_nobody_foresaw_is_repaired_and_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_in_memory(summing()) as run:
        run.process({"rows": [("a", 1)]})
        with monkeypatch.context() as patch:
            patch.setattr(GraphExecutor, "execute", {}.__getitem__)
            with pytest.raises(InternalError, match="Run again; if it stays so, report it"):
                run.process({"rows": [("a", 2)]})
        assert run.process({"rows": [("a", 2)]})["out"] == [("a", 3)]


def test_after_a_commit_that_would_break_a_rule_reading_and_restoring_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with run_in_memory(summing()) as run:
        run.process({"rows": [("a", 1)]})
        run.process({"rows": [("a", 2)]})
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_log, "violations", lambda *_: [Violation("a rule", "it is broken")])
            with pytest.raises(InvariantError, match="reading and restoring still work"):
                run.process({"rows": [("a", 4)]})
        assert run.state("sum", "total") == {"a": 3}
        run.restore(1)
        assert run.process({"rows": [("a", 4)]})["out"] == [("a", 5)]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_class_of_the_catalogue_has_a_test_that_follows_its_advice() -> None:
    assert {*FOLLOWED} == {*ENTRIES} - PARENTS


def words_of(file: str, name: str) -> set[str]:
    """Names and words of texts in a test, and in the functions of its file that it calls."""
    known, seen, todo = functions(file), set[str](), [name]
    words: set[str] = set()
    while todo:
        seen.add(todo[-1])
        for node in ast.walk(known[todo.pop()]):
            if isinstance(node, ast.Name):
                words.add(node.id)
                todo += [node.id] if node.id in known and node.id not in seen | {*todo} else []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= {*re.findall(r"\w+", node.value)}
    return words


@pytest.mark.parametrize("kind", FOLLOWED)
def test_its_test_raises_it_and_goes_on(kind: str) -> None:
    file, _, name = FOLLOWED[kind].partition("::")
    assert kind in words_of(file, name)
    function = functions(file)[name]
    steps = [
        one for one in ast.walk(function) if isinstance(one, ast.With | ast.Expr | ast.Assert | ast.Assign)
    ]
    first = next(one for one in steps if re.search(rf"raises\(|refused\(|{kind}", ast.unparse(heads(one))))
    assert (first.end_lineno or 0) < (function.end_lineno or 0), "nothing comes after the error"


def heads(step: ast.stmt) -> ast.AST:
    """A statement without its body."""
    return ast.Tuple([item.context_expr for item in step.items]) if isinstance(step, ast.With) else step
