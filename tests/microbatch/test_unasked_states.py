"""What a checkpoint holds and the code does not ask for is refused before anything is read, or dropped, or kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointedFunction,
    DeltaSink,
    FileSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    RowKind,
    RuntimeContext,
    SortedMapStateDescriptor,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_engine.cli.status import notes
from state_engine.core.errors import ConfigurationError, StateMigrationError
from state_engine.core.types.row import row_of_kind
from state_engine.microbatch.unasked_states import kept_for_later
from state_engine.monitoring.job_status import JobStatus
from state_engine.queries.history_views import states_table
from state_engine.testing import CollectSink, run_in_memory


class Mean(AggregateFunction):
    """A mean, whose accumulator is a count and a sum."""

    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: int, accumulator: Any) -> Any:
        return (accumulator[0] + 1, accumulator[1] + value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return tuple(a + b for a, b in zip(acc_a, acc_b, strict=True))


SETS = {
    "value": (lambda name: ValueStateDescriptor(name, int), "get_state", lambda s, v: s.update(v)),
    "list": (lambda name: ListStateDescriptor(name, int), "get_list_state", lambda s, v: s.add(v)),
    "map": (lambda name: MapStateDescriptor(name, int, int), "get_map_state", lambda s, v: s.put(v, v)),
    "sorted map": (
        lambda name: SortedMapStateDescriptor(name, int, int),
        "get_sorted_map_state",
        lambda s, v: s.put(v, v),
    ),
    "reducing": (
        lambda name: ReducingStateDescriptor(name, lambda a, b: a + b, int),
        "get_reducing_state",
        lambda s, v: s.add(v),
    ),
    "aggregating": (
        lambda name: AggregatingStateDescriptor(name, Mean(), "struct<n: bigint, total: bigint>"),
        "get_aggregating_state",
        lambda s, v: s.add(v),
    ),
}
"""Of each primitive: a descriptor, how a function asks for it, and how it writes to it."""


class Writes(KeyedProcessFunction):
    """Writes the value to a state of a primitive; a negative value deletes."""

    def __init__(self, name: str, kind: str = "value", *, late: bool = False, ttl_s: int = 0) -> None:
        self.name, self.kind, self.late, self.ttl_s = name, kind, late, ttl_s

    def _get(self, context: Any) -> Any:
        make, get, _ = SETS[self.kind]
        descriptor = make(self.name)
        if self.ttl_s:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(self.ttl_s)).build())
        return getattr(context, get)(descriptor)

    def open(self, runtime_context: Any) -> None:
        self.get = lambda: self._get(runtime_context)
        if not self.late:
            self.get()

    def process_element(self, value: Any, ctx: Any) -> None:
        state = self.get()
        if value.v < 0:
            state.clear()
        else:
            SETS[self.kind][2](state, value.v)


class Stateless(MapFunction):
    """Without any state."""

    def map(self, value: Any) -> Any:
        return (value.v,)


def job_of(
    function: Any, change: Callable[[Any], Any] = lambda stream: stream, key: str = "k"
) -> StatefulJob:
    job = StatefulJob("kept", parallelism=2)
    rows = job.source("rows", FileSource("/rows", schema="k string, v bigint"))
    keyed = rows.key_by(key) if key else rows
    change(keyed.process(function, uid="f", output_type="v bigint")).sink("out", CollectSink())
    return job


def refused(run: Any, function: Any, match: str, **given: Any) -> None:
    """A run without a new row refuses the code, and commits nothing."""
    before = [row.checkpoint_id for row in run.checkpoints()]
    run.restart(job_of(function, **given))
    with pytest.raises(StateMigrationError, match=match):
        run.process()
    assert [row.checkpoint_id for row in run.checkpoints()] == before


@pytest.mark.parametrize("kind", SETS)
def test_a_state_with_entries_must_be_asked_for_renamed_dropped_or_kept(kind: str) -> None:
    with run_in_memory(job_of(Writes("sum", kind))) as run:
        run.process({"rows": [("a", 1), ("b", 2)]})
        refused(run, Writes("total", kind), r"(?s)job 'kept', operator 'f': state 'sum' holds 2 entries.*renamed_from"
                r"\('sum'\).*drop_states\('sum'\).*keep_states\('sum'\)")  # fmt: skip
        run.restart(job_of(Writes("total", kind), lambda s: s.keep_states("sum")))
        run.process({"rows": [("a", 3)]})
        run.restart(job_of(Writes("sum", kind), lambda s: s.keep_states("total")))
        assert set(run.state("f", "sum")) == {"a", "b"}
        run.restart(job_of(Writes("total", kind), lambda s: s.drop_states("sum")))
        run.process({"rows": [("a", 3)]})
        run.restart(job_of(Writes("total", kind)))
        run.process({"rows": [("a", 3)]})
        assert set(run.state("f", "total")) == {"a"}


def test_what_is_kept_for_later_is_said_as_long_as_it_is_stored() -> None:
    with run_in_memory(job_of(Writes("sum"))) as run:
        run.process({"rows": [("a", 1)]})
        keeping = job_of(Writes("total"), lambda s: s.keep_states("sum", "other"))
        assert kept_for_later(None) == []
        run.restart(keeping)
        run.process({"rows": [("a", 3)]})
        kept = kept_for_later(run.checkpoints()[-1])
        assert kept == ["state 'sum' of operator 'f' is kept for later: keep_states names it"]
        status = JobStatus("kept", "ok", kept_states=tuple(kept))
        assert notes(status) == kept
        assert status.to_json()["kept_states"] == tuple(kept)


def asked_for(run: Any) -> dict[str, tuple[str, int | None]]:
    """When the code asks for each state of the head, and its entries, as SQL shows them."""
    rows = states_table(run.checkpoints()).to_pylist()
    return {row["state"]: (row["asked_for"], row["entries"]) for row in rows}


def test_sql_shows_which_states_the_code_asks_for() -> None:
    late = job_of(Writes("sum", late=True))
    with run_in_memory(late) as run:
        run.process({"rows": [("a", 1), ("b", 1)]})
        assert asked_for(run) == {"sum": ("later", 2)}
        for rows in ([("a", 2)], []):
            run.restart(job_of(Writes("total", late=True), lambda s: s.keep_states("sum", "other")))
            run.process({"rows": rows} if rows else None)
            assert asked_for(run) == {"sum": ("kept", 2), "total": ("later", 1)}
        run.restart(job_of(Writes("sum"), lambda s: s.keep_states("sum")))
        run.process({"rows": [("a", 3)]})
        assert asked_for(run) == {"sum": ("open", 2), "total": ("later", 1)}
        run.restart(job_of(Writes("sum"), lambda s: s.drop_states("total")))
        run.process({"rows": [("a", 3)]})
        assert asked_for(run) == {"sum": ("open", 2)}
    with run_in_memory(plain_job(Lists("seen"))) as run:
        run.process({"rows": [("a", 1)]})
        assert asked_for(run) == {"seen": ("open", 1)}
        run.restart(plain_job(Stateless(), lambda s: s.keep_states("seen")))
        run.process({"rows": [("a", 1)]})
        assert asked_for(run) == {"seen": ("kept", 1)}
        (row,) = states_table(run.checkpoints()).to_pylist()
        assert (row["operator"], row["kind"], row["type"]) == ("f", "even_split", "bigint")


def test_a_state_whose_entries_are_deleted_is_not_missed() -> None:
    with run_in_memory(job_of(Writes("sum"))) as run:
        run.process({"rows": [("a", 1), ("b", 2)]})
        run.process({"rows": [("a", -1)]})
        refused(run, Writes("total"), "holds 1 entry,")
        run.restart(job_of(Writes("sum")))
        run.process({"rows": [("b", -1)]})
        run.restart(job_of(Writes("total")))
        run.process({"rows": [("a", 1)]})
        assert run.state("f", "total") == {"a": 1}


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_state_whose_entries_have_expired_is_not_missed(kind: str) -> None:
    with run_in_memory(job_of(Writes("sum", kind, ttl_s=10))) as run:
        run.process({"rows": [("a", 1)]}, clock=0)
        run.process({"rows": [("b", 2)]}, clock=5_000)
        run.restart(job_of(Writes("total", kind)))
        with pytest.raises(StateMigrationError, match="state 'sum' holds entries"):
            run.process({"rows": [("a", 1)]}, clock=14_999)  # that of b lives
        run.process({"rows": [("a", 1)]}, clock=15_000)
        assert set(run.state("f", "total")) == {"a"}


def test_a_state_that_is_asked_for_late_may_go_on_being_so_and_a_rename_of_it_shows() -> None:
    late = job_of(Writes("sum", late=True))
    with run_in_memory(late) as run:
        run.process({"rows": [("a", 1)]})
        for rows in ([], [("a", 2)], []):
            run.restart(late)
            run.process({"rows": rows} if rows else None)
        run.restart(job_of(Writes("total", late=True)))
        with pytest.raises(StateMigrationError, match="holds 1 entry, and the function asks for 'total', a"):
            run.process({"rows": [("b", 1)]})
        run.restart(
            job_of(Writes("other", "list", late=True))
        )  # of another type: it may stand beside the first
        run.process({"rows": [("b", 1)]})
        run.restart(job_of(Writes("sum")))  # in open from now on
        run.process({"rows": [("b", 1)]})
        refused(run, Writes("other", "list", late=True), "state 'sum' holds 2 entries")


class FailsOnce(Writes):
    """Finds in ``open`` only on workers what it needs: the trial, which comes first, fails."""

    fails: ClassVar[bool] = False

    def open(self, runtime_context: Any) -> None:
        if FailsOnce.fails:
            FailsOnce.fails = False
            raise OSError("no model here")
        super().open(runtime_context)


def test_where_open_cannot_be_tried_the_micro_batch_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_in_memory(job_of(FailsOnce("sum"))) as run:
        run.process({"rows": [("a", 1)]})
        monkeypatch.setattr(FailsOnce, "fails", True)
        run.process({"rows": [("a", 2)]})
        run.restart(job_of(FailsOnce("total")))
        monkeypatch.setattr(FailsOnce, "fails", True)
        with pytest.raises(StateMigrationError, match="state 'sum' holds 1 entry"):
            run.process({"rows": [("b", 1)]})
        assert len(run.checkpoints()) == 2


class Wakes(Writes):
    """Sets a timer."""

    def process_element(self, value: Any, ctx: Any) -> None:
        super().process_element(value, ctx)
        ctx.timer_service().register_processing_time_timer(1_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield (timestamp,)


def test_timers_that_nothing_handles_are_refused() -> None:
    with run_in_memory(job_of(Wakes("sum"))) as run:
        run.process({"rows": [("a", 1)]})
        refused(
            run,
            Writes("sum"),
            "checkpoint 1 holds timers, and Writes has no on_timer.*one that does nothing gives",
        )
        run.restart(job_of(Wakes("sum")))
        assert run.process(clock=1_000) == {"out": [(1_000,)]}
        run.restart(job_of(Writes("sum")))
        run.process({"rows": [("a", 1)]})


class PlainProcess(ProcessFunction):
    """For a stream without key."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield (value.v,)


class Lists(CheckpointedFunction, MapFunction):
    """Keeps what it saw in list state, or union list state, of a name."""

    def __init__(self, name: str, union: bool = False) -> None:
        self.name, self.union = name, union

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        get = store.get_union_list_state if self.union else store.get_list_state
        self.seen = get(ListStateDescriptor(self.name, int))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.seen.add(value.v)
        return (value.v,)


class Remembers(ListCheckpointed, MapFunction):
    """Keeps a number by the older interface."""

    seen = 0

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.seen]

    def restore_state(self, state: list[int]) -> None:
        self.seen = sum(state)

    def map(self, value: Any) -> Any:
        self.seen += value.v
        return (value.v,)


class Raw(CheckpointedFunction, MapFunction):
    """Keeps bytes."""

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        context.raw_operator_state.write(b"seen")

    def map(self, value: Any) -> Any:
        return (value.v,)


def plain_job(function: Any, change: Callable[[Any], Any] = lambda stream: stream) -> StatefulJob:
    job = StatefulJob("kept")
    rows = job.source("rows", FileSource("/rows", schema="k string, v bigint"))
    change(rows.map(function, uid="f", output_type="v bigint")).sink("out", CollectSink())
    return job


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (Lists("seen"), Lists("rows"), "seen"),
        (Lists("seen", union=True), Lists("rows", union=True), "seen"),
        (Lists("seen"), Stateless(), "seen"),
        (Remembers(), Stateless(), "list_checkpointed"),
        (Remembers(), Lists("seen"), "list_checkpointed"),
        (Raw(), Stateless(), "raw_operator"),
    ],
    ids=["list", "union", "no state", "list checkpointed", "checkpointed anew", "raw"],
)
def test_operator_state_must_be_asked_for_renamed_dropped_or_kept(
    before: Any, after: Any, state: str
) -> None:
    with run_in_memory(plain_job(before)) as run:
        run.process({"rows": [("a", 1)]})
        run.restart(plain_job(after))
        with pytest.raises(StateMigrationError, match=rf"operator 'f': state '{state}' holds \d element"):
            run.process()
        run.restart(plain_job(after, lambda s: s.keep_states(state)))
        run.process({"rows": [("a", 2)]})
        run.restart(plain_job(before, lambda s: s.keep_states("seen", "rows")))
        run.process({"rows": [("a", 4)]})
        assert [s.name for r in run.checkpoints()[-1].operator_state for s in r.states].count(state) == 1
        run.restart(plain_job(after, lambda s: s.drop_states(state)))
        run.process({"rows": [("a", 8)]})
        assert all(s.name != state for r in run.checkpoints()[-1].operator_state for s in r.states)
        run.restart(plain_job(after))
        run.process({"rows": [("a", 16)]})


def test_a_state_of_an_operator_cannot_be_asked_for_and_dropped() -> None:
    with run_in_memory(plain_job(Lists("seen"))) as run:
        run.process({"rows": [("a", 1)]})
        run.restart(plain_job(Lists("seen"), lambda s: s.drop_states("seen")))
        with pytest.raises(StateMigrationError, match="state 'seen' is asked for by the function and"):
            run.process({"rows": [("a", 1)]})


class Rules(BroadcastProcessFunction):
    """Asks for broadcast state where it needs it, as most do."""

    def __init__(self, name: str, kind: type = int) -> None:
        self.rules = MapStateDescriptor(name, str, kind)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.rules).put(value.k, value.v)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield (ctx.get_broadcast_state(self.rules).get(value.k),)


def rules_job(name: str, kind: type = int, *, declared: bool = False) -> StatefulJob:
    job = StatefulJob("kept")
    rows = job.source("rows", FileSource("/rows", schema="k string, v bigint"))
    rules = job.source("rules", FileSource("/rules", schema="k string, v bigint"))
    function = Rules(name, kind)
    everywhere = rules.broadcast(*([function.rules] if declared else []))
    out = rows.connect(everywhere).process(function, uid="f", output_type="v bigint")
    out.sink("out", CollectSink())
    return job


def test_a_rename_of_broadcast_state_shows() -> None:
    with run_in_memory(rules_job("rules")) as run:
        run.process({"rules": [("a", 7)]})
        for _ in range(2):
            run.restart(rules_job("rules"))
            assert run.process({"rows": [("a", 1)]}) == {"out": [(7,)]}
        run.restart(rules_job("limits"))
        with pytest.raises(StateMigrationError, match="state 'rules' holds 1 element, and the function asks"):
            run.process({"rows": [("a", 1)]})


def test_states_that_a_stream_is_broadcast_for_are_compared_before_a_row_is_read() -> None:
    with run_in_memory(rules_job("rules", declared=True)) as run:
        run.process({"rules": [("a", 7)]})
        run.restart(rules_job("rules", declared=True))
        assert run.process({"rows": [("a", 1)]}) == {"out": [(7,)]}
        run.restart(rules_job("rules", str, declared=True))
        with pytest.raises(StateMigrationError, match=r"state 'rules' .*bigint.*string"):
            run.process({})


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (
            "v",
            r"stored by \['k'\], the job keys by \['v'\]\. Other columns are another key.*another uid.*replay",
        ),
        ("", "without key"),
    ],
)
def test_another_key_is_refused_without_a_new_row(key: str, match: str) -> None:
    with run_in_memory(job_of(Writes("sum"))) as run:
        run.process({"rows": [("a", 1)]})
        refused(run, Writes("sum") if key else PlainProcess(), match, key=key)


class Pair(NamedTuple):
    a: str
    b: int


def page(row: Any) -> str:
    return str(row.page)


def first(row: Any) -> Any:
    return Pair(row.user, 1)


class Visits(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        yield (self.seen.value(),)


USER = ("user",)
OTHER_KEYS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "another column": (USER, ("page",)),
    "a column of another type": (USER, ("n",)),
    "two columns change places": (("user", "page"), ("page", "user")),
    "one of two": (("user", "page"), ("user", "n")),
    "one more": (USER, ("user", "page")),
    "one less": (("user", "page"), USER),
    "a function for a column": (USER, (page, Types.STRING())),
    "a column for a function": ((page, Types.STRING()), ("page",)),
    "a function of another type": ((lambda row: row.n, Types.LONG()), (page, Types.STRING())),
    "a function of a record": (
        (page, Types.STRING()),
        (first, Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.INT()])),
    ),
    "a column that is computed": (("n",), ("computed",)),
}


def visits(*key: Any) -> StatefulJob:
    job = StatefulJob("kept")
    rows = job.source("rows", FileSource("/rows", schema="user string, page string, n bigint"))
    if key == ("computed",):
        rows = rows.map(lambda row: (row.page,), output_type="n string", uid="computes")
        key = ("n",)
    rows.key_by(*key).process(Visits(), uid="f", output_type="v bigint").sink("out", CollectSink())
    return job


@pytest.mark.parametrize("what", OTHER_KEYS)
def test_no_advice_makes_another_key_of_a_key_by_a_cast(what: str) -> None:
    before, after = OTHER_KEYS[what]
    with run_in_memory(visits(*before)) as run:
        run.process({"rows": [("u10", "p10", 10)]})
        run.restart(visits(*after))
        with pytest.raises(StateMigrationError, match="another uid: it starts empty, and a") as refused:
            run.process({"rows": [("u10", "p10", 10)]})
        said = str(refused.value)
        assert (
            "Restore the old key_by" in said
            or f"Key by {list(before)} again" in said
            or "Key by ['key'] again" in said
        )
        if "change_key_type" in said:
            assert "If it is the same key in another type" in said
            assert ("statelake change-key-type" in said) == isinstance(after[0], str), (
                "nothing is known of a function"
            )
        if set(before) == set(after):
            assert "names" not in said
        run.restart(visits(*before))
        run.process({"rows": [("u10", "p10", 10)]})
        assert [*run.state("f", "seen").values()] == [2]


class Both(KeyedCoProcessFunction):
    """Counts the rows of both streams."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        yield (self.seen.value(),)

    process_element2 = process_element1


def both(first: Any, second: Any) -> StatefulJob:
    job = StatefulJob("kept")
    schema = "user string, page string"
    streams = [job.source(name, FileSource(f"/{name}", schema=schema)) for name in ("clicks", "orders")]
    keyed = streams[0].connect(streams[1]).key_by(first, second, Types.STRING() if callable(first) else None)
    keyed.process(Both(), uid="f", output_type="v bigint").sink("out", CollectSink())
    return job


@pytest.mark.parametrize("empty", [False, True])
def test_another_key_of_the_second_stream_is_another_key(empty: bool) -> None:
    with run_in_memory(both("user", "user")) as run:
        run.process({"clicks": [("u1", "p1")]} if empty else {"orders": [("u1", "p1")]})
        run.restart(both("user", "page"))
        said = r"second stream was keyed by \['user'\], the job keys it by \['page'\]\. Other columns.*another uid"
        for rows in (None, {"orders": [("u1", "p1")]}):
            with pytest.raises(StateMigrationError, match=said):
                run.process(rows)
        run.restart(both("page", "user"))
        with pytest.raises(StateMigrationError, match=r"stored by \['user'\], the job keys by \['page'\]"):
            run.process()
        run.restart(both("user", "user"))
        run.process({"orders": [("u1", "p1")]})
        assert run.state("f", "seen") == {"u1": 2}


def test_a_function_in_place_of_the_columns_of_the_second_stream_is_another_key() -> None:
    with run_in_memory(both("user", "user")) as run:
        run.process({"clicks": [("u1", "p1")]})
        run.restart(both(page, page))
        with pytest.raises(StateMigrationError, match="another uid: it starts empty, and a replay"):
            run.process()


class Feed(ProcessFunction):
    """Turns a negative value into a delete."""

    emits_changes = True

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield row_of_kind(value, RowKind.DELETE if value.v < 0 else RowKind.INSERT)


def sink_job(*sequence: str) -> StatefulJob:
    job = StatefulJob("kept")
    rows = job.source("rows", FileSource("/rows", schema="k string, v bigint, at bigint"))
    feed = rows.process(Feed(), uid="feed", output_type="k string, v bigint, at bigint")
    feed.sink("last", DeltaSink("/last", key=["k"], sequence=sequence))
    return job


def test_a_keyed_sink_without_its_sequence_is_refused() -> None:
    with run_in_memory(sink_job("at")) as run:
        run.process({"rows": [("a", 1, 1), ("a", -1, 2)]})
        run.restart(sink_job())
        with pytest.raises(StateMigrationError, match=r"sink 'last': state 'deleted' holds 1 entry.*its"):
            run.process({"rows": [("a", 1, 1)]})
        run.restart(sink_job("at"))
        run.process({"rows": [("a", 1, 1)]})
        assert run.table("last") == []


def test_a_state_is_dropped_or_kept() -> None:
    with pytest.raises(ConfigurationError, match=r"drop_states and keep_states both name \['sum'\]"):
        job_of(Writes("sum"), lambda s: s.drop_states("sum").keep_states("sum"))
