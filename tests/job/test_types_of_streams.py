"""What a function gets is what its stream declares, its keys too: of every type, in the harness and in a subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import KeyedProcessFunction, MapFunction, StatefulJob, Types
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.canonical import canonical_key, key_hash
from state_engine.core.keys.key_form import DeclaredKey, KeyForm
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.columns import elements, to_table
from state_engine.core.types.durations import Instant
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.row import Row
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_parsing import arrow_type, to_type
from state_engine.job.graph import declared_key
from state_engine.microbatch.routing.routed import HASH, SUBTASK, InputLayout, RoutedLayout
from state_engine.microbatch.subtask.subtask import Subtask
from state_engine.microbatch.subtask.subtask_outputs import read_exchange
from state_engine.microbatch.subtask.subtask_spec import (
    BatchClocks,
    OutputSpec,
    RestoredOperatorState,
    SubtaskSpec,
)
from state_engine.queries.state_rows import KEY, WHY
from state_engine.queries.stored_entries import key_table
from state_engine.sources.frames import order_name
from state_engine.sources.output_type import OutputType
from state_engine.state_processor.key_conversion import key_maker
from state_engine.storage.layout import JobLayout
from state_engine.testing import KeyedHarness, OperatorHarness
from tests.core.types.type_samples import LEAVES, Leg, samples
from tests.support.key_samples import encode_keys


class Same(MapFunction):
    def map(self, value: Any) -> Any:
        seen.append(value)
        return value


seen: list[Any] = []


def through_a_subtask(kind: TypeInformation, values: list[Any], directory: Path) -> list[Any]:
    """An identity map between files, as on the engine: what the next operator would get."""
    declared = OutputType.of(kind)
    rows = to_table(values, declared.columns, scalar=declared.scalar)
    names, order = tuple(rows.column_names), (order_name(0), order_name(1))
    layout = RoutedLayout(
        inputs=(InputLayout(names, names, declared.scalar, declared=declared.columns),), order=order, named=0,
        timed_order=False, positioned=True, keys=(), key_schema=None, event_time=False, key_refusals=False,
        refused=False, sources=False,
    )  # fmt: skip
    numbers = pa.array(range(len(values)), pa.int64())
    for name in order:
        rows = rows.append_column(name, numbers)
    rows = rows.append_column(HASH, pa.repeat(pa.scalar(0, pa.int64()), len(values)))
    rows = rows.append_column(SUBTASK, pa.repeat(pa.scalar(0, pa.int32()), len(values)))
    spec = SubtaskSpec(
        layout=JobLayout(f"file://{directory}", "job"), write_id="w", uid="same", parallelism=1, max_parallelism=1,
        function=Same(), routed=layout, keyed=False, key_schema=None,
        outputs=[OutputSpec(None, declared, [], exchange=True)], state_files=[], recorded_states={},
        operator_state=RestoredOperatorState(None, []), dead_letters=False,
        clocks=BatchClocks(0, MIN_TIMESTAMP, MIN_TIMESTAMP), checkpoint_id=1, parent_id=None,
    )  # fmt: skip
    report = Subtask(spec, 0, 0).run(rows)
    exchanged = read_exchange(report.exchange[""])
    return elements(exchanged, names, scalar=declared.scalar, declared=declared.columns)


def check(kind: TypeInformation, values: list[Any], outputs: list[Any]) -> None:
    assert seen == outputs == values
    assert [type(v) for v in outputs] == [type(v) for v in seen] == [type(v) for v in values]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_an_identity_map_changes_nothing(data: st.DataObject, tmp_path: Path) -> None:
    kind, strategy = data.draw(samples())
    values = [kind.normalise(v) for v in data.draw(st.lists(strategy, min_size=1, max_size=4))]
    seen.clear()
    check(kind, values, OperatorHarness(Same(), input_type=kind, output_type=kind).process(values))
    seen.clear()
    check(kind, values, through_a_subtask(kind, values, tmp_path))


@pytest.mark.parametrize("name", LEAVES)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_every_type_reaches_the_function(name: str, data: st.DataObject, tmp_path: Path) -> None:
    kind, strategy = LEAVES[name]
    values = [kind.normalise(v) for v in data.draw(st.lists(strategy, min_size=1, max_size=3))]
    seen.clear()
    check(kind, values, OperatorHarness(Same(), input_type=kind, output_type=kind).process(values))
    seen.clear()
    check(kind, values, through_a_subtask(kind, values, tmp_path))


@pytest.mark.parametrize("engine", [False, True])
def test_tuples_are_tuples_and_rows_are_rows(engine: bool, tmp_path: Path) -> None:
    """As in PyFlink: ``Types.TUPLE`` gives plain tuples, ``Types.ROW``, ``ROW_NAMED`` and DDL give Rows."""
    fields = [Types.STRING(), Types.LONG()]
    shown = {
        "('a', 1)": [Types.TUPLE(fields), to_type(tuple[str, int], parameter="type")],
        "Row(f0='a', f1=1)": [Types.ROW(fields)],
        "Row(k='a', n=1)": [Types.ROW_NAMED(["k", "n"], fields), to_type("k string, n bigint", parameter="type")],
    }  # fmt: skip
    for expected, kinds in shown.items():
        for kind in kinds:
            seen.clear()
            value = kind.normalise(("a", 1))
            if engine:
                outputs = through_a_subtask(kind, [value], tmp_path)
            else:
                outputs = OperatorHarness(Same(), input_type=kind, output_type=kind).process([value])
            assert [repr(v) for v in (*seen, *outputs)] == [expected, expected]
            assert all(type(v) is type(value) and v == ("a", 1) for v in (*seen, *outputs))


class Key(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield ctx.get_current_key()


KEYS: list[tuple[Any, list[Any]]] = [
    (Types.SQL_TIME(), [time(1, 2, 3), time(0)]),
    (Types.BIG_INT(), [10**30, -5]),
    (Types.BIG_DEC(), [Decimal("1.5"), Decimal("-2")]),
    (Types.INSTANT(), [Instant.of_epoch_milli(5), Instant.of_epoch_milli(-7)]),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), [frozenset({1}), "a"]),
    (Leg, [Leg("JFK", 1.5), Leg("LGA", 2.0)]),
    (str, ["a", "b"]),
    (tuple[int, str], [(1, "a"), (2, "b")]),
    (Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()]), [Row(n=1, s="a"), Row(n=2, s="b")]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=lambda v: str(v)[:40])
def test_the_current_key_is_what_is_declared(kind: Any, keys: list[Any]) -> None:
    harness = KeyedHarness(Key(), key_by=lambda v: keys[v], key_type=kind)
    outputs = harness.process([0, 1, 0])
    assert outputs == [keys[0], keys[1], keys[0]]
    assert [type(k) for k in outputs] == [type(keys[v]) for v in (0, 1, 0)]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=lambda v: str(v)[:40])
def test_stored_keys_come_back_as_declared(kind: Any, keys: list[Any]) -> None:
    """As a subtask finds them: from the canonical columns of the key."""
    declared = to_type(kind, parameter="key")
    record = declared if isinstance(declared, StructType) else None
    parts = record.types if record else (declared,)
    array = declared.to_arrow([declared.normalise(k) for k in keys], storage=False)
    columns = array.flatten() if record else [array]
    schema = KeySchema(tuple(f"k{i}" for i in range(len(parts))), tuple(p.arrow for p in parts))
    plain = [arrow_type(c.type).from_arrow(c) for c in columns]
    stored = [encode_keys([canonical_key(k) for k in p], c.type) for p, c in zip(plain, columns, strict=True)]
    form = KeyForm.of(tuple(parts), record)
    decoded = [k if form is None else form(k) for k in schema.decode(stored)]
    assert decoded == keys
    assert [type(k) for k in decoded] == [type(k) for k in keys]
    assert len({key_hash(k) for k in schema.decode(stored)}) == len(keys)


ALL: list[tuple[Any, Any]] = [
    (Types.BYTE(), 1), (Types.LONG(), 2**40), (Types.DOUBLE(), 1.5), (Types.BOOLEAN(), True), (Types.STRING(), "é"),
    (Types.CHAR(), "x"), (Types.BIG_INT(), 10**30), (Types.BIG_DEC(), Decimal("1.500000000000000000")),
    (Types.SQL_TIME(), time(1, 2, 3)), (Types.INSTANT(), Instant.of_epoch_milli(1_500)),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), frozenset({1})), (Types.LIST(Types.SQL_TIME()), [time(0), None]),
    (Types.MAP(Types.STRING(), Types.BIG_INT()), {"a": 10**20}), (Types.TUPLE([Types.SQL_TIME()]), (time(5),)),
]  # fmt: skip


class Describes(MapFunction):
    def map(self, value: Any) -> list[str]:
        return [f"{type(v).__name__} {v!r}" for v in value]


@pytest.mark.spark
def test_all_types_at_once_on_spark(spark: SparkSession) -> None:
    kind, row = Types.TUPLE([k for k, _ in ALL]), tuple(v for _, v in ALL)
    job = StatefulJob("types", parallelism=2)
    same = job.from_collection([row], kind, name="rows").map(lambda value: value, output_type=kind)
    assert same.map(Describes(), output_type=list[str]).collect(spark=spark) == [Describes().map(row)]
    job = StatefulJob("keys", parallelism=2)
    keyed = job.from_collection([row], kind, name="rows").key_by(
        lambda value: value[8], key_type=Types.SQL_TIME()
    )
    printed = keyed.process(Key(), uid="key", output_type=Types.SQL_TIME()).map(
        lambda at: repr(at), output_type=str
    )
    assert printed.collect(spark=spark) == [repr(time(1, 2, 3))]


class Flight(NamedTuple):
    leg: Leg
    tag: str

    def label(self) -> str:
        return f"{self.tag} {type(self.leg).__name__} {self.leg.minutes}"


def labels(flight: Flight) -> str:
    return flight.label()


@pytest.mark.spark
def test_a_transform_declares_what_it_gives(spark: SparkSession) -> None:
    """Behind DataFrame code elements are as declared, whatever order its columns have; a wrong type is an error."""
    kind, row = Types.TUPLE([k for k, _ in ALL]), tuple(v for _, v in ALL)
    job = StatefulJob("transformed", parallelism=2)
    rows = job.from_collection([row], kind, name="rows")
    shuffled = rows.transform(lambda frame: frame.select(*reversed(frame.columns)), output_type=kind)
    assert shuffled.map(Describes(), output_type=list[str]).collect(spark=spark) == [Describes().map(row)]
    assert shuffled.collect(spark=spark) == [row]
    assert rows.project(8, 6).map(lambda pair: repr(pair), output_type=str).collect(spark=spark) == [
        repr((row[8], row[6]))
    ]
    legs = rows.transform(
        lambda frame: frame.selectExpr("*", "named_struct('origin', 'JFK', 'minutes', 1.5D) AS leg", "'x' AS tag")
        .drop(*[f"f{at}" for at in range(len(ALL))]),
        output_type=Flight,
    )  # fmt: skip
    assert legs.map(labels, output_type=str).collect(spark=spark) == ["x Leg 1.5"]
    assert legs.key_by(lambda flight: flight.leg, key_type=Leg).process(
        KeyIsALeg(), uid="key", output_type=str
    ).collect(spark=spark) == ["Leg JFK"]
    for output_type, problem in {
        "f0 int": r"not declared \['f1', 'f2'",
        tuple[int, int]: r"missing \[\], not declared \['f2'",
        Flight: r"missing \['leg', 'tag'\]",
        str: r"missing \['value'\]",
    }.items():
        wrong = rows.transform(lambda frame: frame, output_type=output_type)
        with pytest.raises(ConfigurationError, match=problem):
            wrong.collect(spark=spark)
    wrong = rows.transform(lambda frame: frame.withColumn("f0", F.lit(1)), output_type=kind)
    with pytest.raises(ConfigurationError, match=r"column 'f0' is int.*declared tinyint.*cast"):
        wrong.collect(spark=spark)


class KeyIsALeg(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield f"{type(ctx.get_current_key()).__name__} {ctx.get_current_key().origin}"


@dataclass(frozen=True)
class Place:
    airport: str
    gate: int


def converted(old: KeySchema, keys: list[Any], convert: Callable[[Any], Any], new: DeclaredKey) -> list[Any]:
    """New keys, and for each why there is none."""
    rows = [k if isinstance(k, tuple) else (k,) for k in keys]
    columns = [
        encode_keys([canonical_key(v) for v in column], kind)
        for column, kind in zip(zip(*rows, strict=True), old.types, strict=True)
    ]
    stored = pa.StructArray.from_arrays(columns, fields=list(old.storage))
    (converted_batch,) = key_maker(old, convert, new)([pa.record_batch({KEY: stored})])
    return [(row["_new_key"], row[WHY]) for row in converted_batch.to_pylist()]


OF_NUMBERS = KeySchema(("n",), (pa.int64(),))


@pytest.mark.parametrize(
    ("kind", "convert", "expected"),
    [
        (Types.SQL_TIME(), lambda n: time(n), [{"k": 3_600_000_000}, {"k": 7_200_000_000}]),
        (Types.BIG_INT(), lambda n: 10**30 * n, [{"k": Decimal(10**30)}, {"k": Decimal(2 * 10**30)}]),
        (Place, lambda n: Place("JFK", n), [{"airport": "JFK", "gate": 1}, {"airport": "JFK", "gate": 2}]),
        (tuple[str, int], lambda n: ("JFK", n), [{"f0": "JFK", "f1": 1}, {"f0": "JFK", "f1": 2}]),
        (str, lambda n: f"k{n}", [{"k": "k1"}, {"k": "k2"}]),
    ],
)
def test_a_conversion_gives_keys_as_they_are_declared(kind: Any, convert: Any, expected: list[Any]) -> None:
    new = DeclaredKey.of("k", to_type(kind, parameter="key"))
    assert converted(OF_NUMBERS, [1, 2], convert, new) == [(key, None) for key in expected]


def test_what_is_no_key_is_refused_with_the_reason() -> None:
    new = DeclaredKey(("a", "b"), (Types.STRING(), Types.LONG()))
    rows = converted(OF_NUMBERS, [1, 2, 3], lambda n: {1: None, 2: ("x",), 3: ("x", 3)}[n], new)
    assert [key for key, why in rows if why is None] == [{"a": "x", "b": 3}]
    assert "None" in rows[0][1]
    assert "1 field, 2 are declared" in rows[1][1]


KEYS_OF_PEOPLE: list[tuple[Any, Any, Any]] = [
    (Types.SQL_TIME(), time(1), 3_600_000_000),
    (Types.BIG_INT(), 10**30, Decimal(10**30)),
    (Types.STRING(), "a", "a"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff", b"\x00\xff"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "AP8=", b"\x00\xff"),
    (Types.INSTANT(), Instant.of_epoch_milli(0), None),
]


@pytest.mark.parametrize(("kind", "key", "stored"), KEYS_OF_PEOPLE, ids=lambda v: str(v)[:20])
def test_keys_that_people_give_may_be_what_functions_see(kind: Any, key: Any, stored: Any) -> None:
    schema = DeclaredKey.of("k", kind).schema
    column = key_table([key, {"k": key}], schema, what="job 'j'")["k"]
    expected = kind.to_arrow([key, key], storage=False) if stored is None else pa.array([stored, stored])
    assert column.to_pylist() == expected.to_pylist()


def test_records_that_people_give() -> None:
    schema = DeclaredKey.of("k", to_type(Place, parameter="key")).schema
    for key in (Place("JFK", 1), ("JFK", 1), {"gate": 1, "airport": "JFK"}):
        assert key_table([key], schema, what="job 'j'").to_pylist() == [{"airport": "JFK", "gate": 1}]
    nested = KeySchema(("place",), (to_type(Place, parameter="key").arrow,))
    assert key_table([Place("JFK", 1)], nested, what="job 'j'").to_pylist() == [
        {"place": {"airport": "JFK", "gate": 1}}
    ]
    with pytest.raises(ConfigurationError, match=r"columns \['airport', 'gate'\], given is 'JFK'"):
        key_table(["JFK"], schema, what="job 'j'")
    with pytest.raises(
        ConfigurationError, match="job 'j': the column 'k' of its key holds bytes, and given is 'no base64'"
    ):
        key_table(["no base64"], DeclaredKey.of("k", to_type(bytes, parameter="key")).schema, what="job 'j'")
    with pytest.raises(InvalidKeyError, match="job 'j': the keys that are given cannot be of type"):
        key_table([object()], OF_NUMBERS, what="job 'j'")
    with pytest.raises(InvalidKeyError, match="job 'j': the keys"):
        key_table([1, "a"], OF_NUMBERS, what="job 'j'")


def test_a_job_says_what_its_keys_are() -> None:
    """By the function that makes them, or by the columns of a declared stream."""
    job = StatefulJob("keys")
    rows = job.from_collection([], Types.TUPLE([Types.SQL_TIME(), Types.STRING()]))
    by_function = rows.key_by(lambda row: Place(row[1], 1), key_type=Place)
    by_columns = rows.transform(lambda frame: frame, output_type=Types.ROW_NAMED(["at"], [Types.SQL_TIME()]))
    kinds = {}
    for name, stream in {"function": by_function, "columns": by_columns.key_by("at")}.items():
        stream.map(lambda value: value, output_type=str, uid=name)
        kinds[name] = declared_key(job.operators[name])
    assert kinds["function"] == DeclaredKey.of("key", to_type(Place, parameter="key"))
    columns = kinds["columns"]
    assert columns == DeclaredKey(("at",), (Types.SQL_TIME(),))
    assert columns.schema == KeySchema(("at",), (pa.int64(),))
    assert columns.form is not None
    assert columns.form(1_000_000) == time(0, 0, 1)
    rows.transform(lambda frame: frame).key_by("f0").map(lambda value: value, output_type=str, uid="unknown")
    assert declared_key(job.operators["unknown"]) is None
