"""The kinds of elements in the harness: in, through every class of function, and out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from state_engine import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    Row,
    RowKind,
    SinkFunction,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.operators.rolling import MapWithState, RollingReduce
from state_engine.testing import KeyedHarness, OperatorHarness
from tests.support.changes import ACCOUNT, TOTAL, Totals, as_rows, history, kinds_and_values, totals_of

INSERT, BEFORE, AFTER, DELETE = RowKind
KINDS = [INSERT, DELETE, BEFORE, AFTER]


def seen_and_own(value: Any, ctx: Any) -> tuple[RowKind, RowKind]:
    return ctx.row_kind(), value.get_row_kind()


def cut(elements: list[Any], random: Random) -> Iterator[list[Any]]:
    while elements:
        size = random.randrange(1, 8)
        yield elements[:size]
        elements = elements[size:]


class Doubled(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return [value.replace(amount=value.amount + extra) for extra in range(value.amount % 3)]


STATELESS: list[tuple[Any, Callable[[tuple[Any, ...]], list[tuple[Any, ...]]]]] = [
    (
        MapFunction.of(lambda r: Row(r.id, r.owner.upper(), -r.amount), what="map"),
        lambda v: [(v[0], v[1].upper(), -v[2])],
    ),
    (MapFunction.of(lambda r: r, what="map"), lambda v: [v]),
    (FilterFunction.of(lambda r: r.amount > 2, what="filter"), lambda v: [v] if v[2] > 2 else []),
    (Doubled(), lambda v: [(v[0], v[1], v[2] + extra) for extra in range(v[2] % 3)]),
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("function", "model"), STATELESS)
def test_what_passes_every_element_for_itself_keeps_its_kind(
    function: Any, model: Callable[[Any], Any], seed: int
) -> None:
    changes, random = history(seed, 60), Random(seed)
    harness = OperatorHarness(
        function, parallelism=1 + seed % 3, changing=True, input_type=ACCOUNT, output_type=ACCOUNT
    )
    outputs = [
        one
        for part in cut(as_rows(changes, "id", "owner", "amount"), random)
        for one in harness.process(part)
    ]
    assert kinds_and_values(outputs) == [(kind, made) for kind, values in changes for made in model(values)]


@pytest.mark.parametrize("seed", range(30))
def test_a_keyed_function_of_changes_equals_a_plain_loop(seed: int) -> None:
    changes, random = history(seed, 80), Random(seed)
    harness = KeyedHarness(
        Totals(), key_by=lambda account: account.owner, parallelism=1 + seed % 3, changing=True, input_type=ACCOUNT,
        output_type=TOTAL,
    )  # fmt: skip
    outputs = [
        one
        for part in cut(as_rows(changes, "id", "owner", "amount"), random)
        for one in harness.process(part)
    ]
    assert kinds_and_values(outputs) == totals_of(changes)


def test_an_update_that_changes_the_key_deletes_from_the_old_key_and_adds_to_the_new_one() -> None:
    harness = KeyedHarness(Totals(), key_by=lambda account: account.owner, parallelism=3, changing=True)
    harness.process([Row(id=1, owner="a", amount=5)])
    moved = [
        Row.of_kind(BEFORE, id=1, owner="a", amount=5),
        Row.of_kind(AFTER, id=1, owner="b", amount=5),
    ]
    assert kinds_and_values(harness.process(moved)) == [(DELETE, ("a", 5)), (INSERT, ("b", 5))]
    assert harness.state("sum") == {"b": (5, 1)}


def test_a_context_and_a_row_say_the_same_kind_in_every_function() -> None:
    seen: list[Any] = []

    class One(ProcessFunction):
        accepts_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield str(seen_and_own(value, ctx))

    class Two(CoProcessFunction):
        accepts_changes = True

        def process_element1(self, value: Any, ctx: Any) -> Any:
            yield str(seen_and_own(value, ctx))

        process_element2 = process_element1

    class Rules(BroadcastProcessFunction):
        accepts_changes = True

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            yield str(seen_and_own(value, ctx))

        process_element = process_broadcast_element

    class Sent(SinkFunction):
        accepts_changes = True

        def invoke(self, value: Any, context: Any) -> None:
            seen.append(str(seen_and_own(value, context)))

    rows, expected = [Row.of_kind(kind, 1) for kind in KINDS], [str((kind, kind)) for kind in KINDS]
    assert OperatorHarness(One(), changing=True, input_type="f0 bigint").process(rows) == expected
    pairs = [(1 + at % 2, row) for at, row in enumerate(rows)]
    assert OperatorHarness(Two(), changing=True, input_type="f0 bigint").process_pairs(pairs) == expected
    assert OperatorHarness(Rules(), changing=True).process(rows, broadcast=rows) == expected * 2
    assert OperatorHarness(Rules(), changing=True, ordered=True).process_pairs(pairs) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("copy.deepcopy", lambda function: function)
        assert OperatorHarness(Sent(), changing=True).process(rows) == []
    assert seen == expected


def test_functions_of_two_streams_keep_the_kind_of_the_element() -> None:
    class Mapped(CoMapFunction):
        def map1(self, value: Any) -> Any:
            return value + 1

        def map2(self, value: Any) -> Any:
            return None if value == 0 else -value

    class FlatMapped(CoFlatMapFunction):
        def flat_map1(self, value: Any) -> Any:
            return [value, value]

        def flat_map2(self, value: Any) -> Any:
            return [value]

    pairs = [(1, (DELETE, 5)), (2, (AFTER, 7)), (2, (BEFORE, 0)), (1, 9)]
    mapped = OperatorHarness(Mapped(), changing=True, output_type=int).process_pairs(pairs)
    assert mapped == [(DELETE, 6), (AFTER, -7), (INSERT, 10)]
    assert OperatorHarness(FlatMapped(), changing=True).process_pairs(pairs[:2]) == [
        (DELETE, 5),
        (DELETE, 5),
        (AFTER, 7),
    ]


def test_elements_that_are_no_rows_come_and_go_as_pairs() -> None:
    class Negated(ProcessFunction):
        accepts_changes = emits_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            if ctx.row_kind() is DELETE:
                yield value  # an insert
            yield ctx.row_kind(), -value

    outputs = OperatorHarness(Negated(), changing=True, output_type=int).process([(DELETE, 1), (AFTER, 2), 3])
    assert outputs == [(INSERT, 1), (DELETE, -1), (AFTER, -2), (INSERT, -3)]


def test_what_accepts_changes_puts_out_inserts_unless_it_says_otherwise() -> None:
    class Counted(ProcessFunction):
        accepts_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield 1 if ctx.row_kind() is DELETE else value

    deleted = Row.of_kind(DELETE, id=7)
    assert OperatorHarness(Counted(), changing=True).process([deleted]) == [1]
    for kind in (BEFORE, AFTER):
        for output_type in (None, "id bigint"):
            harness = OperatorHarness(Counted(), changing=True, output_type=output_type)
            with pytest.raises(ValueTypeError, match=r"emits_changes = True"):
                harness.process([Row.of_kind(kind, id=7)])


def test_a_map_cannot_give_an_output_another_kind() -> None:
    turned = MapFunction.of(lambda row: Row.of_kind(AFTER, id=row.id), what="map")
    harness = OperatorHarness(turned, changing=True, output_type="id bigint")
    assert kinds_and_values(harness.process([Row.of_kind(AFTER, id=1)])) == [(AFTER, (1,))]
    with pytest.raises(ValueTypeError, match=r"has the kind \+U, but outputs of map, filter and flat_map"):
        harness.process([Row.of_kind(DELETE, id=1)])


def test_a_state_takes_no_row_of_another_kind_and_says_the_way_out() -> None:
    class Last(KeyedProcessFunction):
        accepts_changes = True

        def __init__(self, plain: bool) -> None:
            self._plain = plain

        def open(self, runtime_context: Any) -> None:
            self._last = runtime_context.get_state(ValueStateDescriptor("last", "id bigint"))

        def process_element(self, value: Any, ctx: Any) -> Any:
            if self._plain:
                value.set_row_kind(INSERT)
            self._last.update(value)
            yield ctx.row_kind().value

    row = Row.of_kind(AFTER, id=7)
    with pytest.raises(ValueTypeError, match=r"set_row_kind\(RowKind.INSERT\)"):
        KeyedHarness(Last(plain=False), key_by=lambda row: row.id, changing=True).process([row])
    harness = KeyedHarness(Last(plain=True), key_by=lambda row: row.id, changing=True)
    assert (harness.process([row]), harness.state("last")) == ([AFTER.value], {7: (7,)})


def test_side_outputs_have_kinds_as_the_function_gives_them() -> None:
    big, small = OutputTag("big", "id bigint"), OutputTag("small", Types.LONG())

    class Sorted(ProcessFunction):
        accepts_changes = emits_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            if value.id > 5:
                yield big, value
            else:
                yield small, (ctx.row_kind(), value.id)

    class Parted(FlatMapFunction):
        def flat_map(self, value: Any) -> Any:
            yield (big, value) if value.id > 5 else (small, value.id)

    rows = [Row.of_kind(DELETE, id=7), Row.of_kind(AFTER, id=2), Row.of_kind(BEFORE, id=9), Row(id=1)]
    for function in (Sorted(), Parted()):
        harness = OperatorHarness(function, changing=True, input_type="id bigint")
        assert harness.process(rows) == []
        assert kinds_and_values(harness.side_output(big)) == [(DELETE, (7,)), (BEFORE, (9,))]
        assert harness.side_output(small) == [(AFTER, 2), (INSERT, 1)]


def test_what_a_refused_element_put_out_goes_with_its_kind() -> None:
    class Fails(ProcessFunction):
        accepts_changes = emits_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield ctx.row_kind(), value
            if value == 2:
                raise ValueError("two")

    harness = OperatorHarness(Fails(), changing=True, on_error="dead_letter")
    assert harness.process([(DELETE, 1), (AFTER, 2), (BEFORE, 3)]) == [(DELETE, 1), (BEFORE, 3)]
    assert [refusal.index for refusal in harness.refused] == [1]


def test_a_timer_is_an_insert_whatever_the_element_before_it() -> None:
    class Timed(KeyedProcessFunction):
        accepts_changes = emits_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value)
            yield ctx.row_kind(), value

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield -1 if ctx.row_kind() is INSERT else -2

    harness = KeyedHarness(
        Timed(),
        key_by=lambda value: 0,
        timestamp_of=lambda value: value,
        max_out_of_orderness_ms=0,
        changing=True,
    )
    outputs = harness.process([(DELETE, 5), (DELETE, 9), (DELETE, 20)])
    assert outputs == [(DELETE, 5), (DELETE, 9), (INSERT, -1), (DELETE, 20), (INSERT, -1)]


def test_the_context_after_a_batch_and_on_streams_of_inserts_says_insert() -> None:
    class Kinds(BroadcastProcessFunction):
        accepts_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield ctx.row_kind().name

        process_broadcast_element = process_element

    assert OperatorHarness(Kinds()).process([1], broadcast=[2]) == ["INSERT", "INSERT"]
    harness = OperatorHarness(Kinds(), changing=True)
    assert harness.process([1], broadcast=[(DELETE, 2)]) == ["DELETE", "INSERT"]


class Remembers(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def map(self, value: Any) -> Any:
        return value


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


REFUSED = [
    (
        Plain(),
        None,
        r"'harness': Plain takes inserts only, .* Handle each ctx.row_kind\(\) .* accepts_changes = True",
    ),
    (Remembers(), lambda v: v, r"Remembers takes inserts only, .* may keep state.*once it allows for that"),
    (RollingReduce(lambda a, b: a, int), lambda v: v, r"RollingReduce takes inserts only"),
    (MapWithState(lambda a, b: (a, b), int), lambda v: v, r"MapWithState takes inserts only"),
]


@pytest.mark.parametrize(("function", "key_by", "message"), REFUSED)
def test_a_function_that_takes_inserts_only_is_refused(function: Any, key_by: Any, message: str) -> None:
    OperatorHarness(function, key_by=key_by)
    with pytest.raises(ConfigurationError, match=message):
        OperatorHarness(function, key_by=key_by, changing=True)


def test_a_row_of_another_kind_needs_a_harness_of_a_stream_that_changes() -> None:
    harness = OperatorHarness(MapFunction.of(lambda row: row, what="map"))
    with pytest.raises(ConfigurationError, match=r"has the kind -D: give the harness changing=True"):
        harness.process([Row.of_kind(DELETE, id=1)])


def test_a_map_with_an_open_but_without_keys_takes_changes() -> None:
    assert OperatorHarness(_Opened(), changing=True).process([(DELETE, 1)]) == [(DELETE, 1)]


class _Opened(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.extra = 0

    def map(self, value: Any) -> Any:
        return value + self.extra
