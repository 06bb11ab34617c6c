"""Declared aggregates by whole columns give what they give row by row: the same results and the same state."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from state_engine import DeltaSource, EmbeddedRocksDBStateBackend, StatefulJob, count, sum_
from state_engine.core.errors import InternalError, ValueTypeError
from state_engine.core.functions.vectorized_functions import PerElement
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates import keyed_aggregates
from state_engine.operators.aggregates.accumulators import BIGINT, DOUBLE, Extreme, SumNumbers
from state_engine.operators.aggregates.column_accumulators import merging_form, running_form
from state_engine.operators.aggregates.declarations import Aggregate, avg, max_, min_
from state_engine.operators.aggregates.exact_columns import running_sums
from state_engine.operators.aggregates.exact_sum import exact_sum, rounded_sum
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates, VectorizedAggregates
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.aggregates.segments import Segments
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory

ALL: dict[str, Any] = {"count": count, "sum": sum_, "avg": avg, "min": min_, "max": max_}
NOON = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, tuple[st.SearchStrategy[Any], list[str]]] = {
    "bigint": (st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), ["count", "sum", "avg", "min", "max"]),
    "smallint": (st.integers(-(2**15), 2**15 - 1), ["count", "sum", "avg", "min", "max"]),
    "double": (
        st.floats() | st.integers(-99, 99).map(lambda cents: cents / 100),
        ["count", "sum", "avg", "min", "max"],
    ),
    "float": (st.floats(width=32), ["count", "sum", "avg", "min", "max"]),
    "decimal(10,2)": (
        st.integers(-(10**10) + 1, 10**10 - 1).map(lambda units: Decimal(units).scaleb(-2)),
        ["count", "sum", "avg"],
    ),
    "decimal(38,0)": (st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal), ["count", "sum", "avg"]),
    "date": (st.dates(date(1900, 1, 1), date(2100, 1, 1)), ["count", "min", "max"]),
    "timestamp": (
        st.integers(-(10**12), 10**12).map(lambda us: NOON + timedelta(microseconds=us)),
        ["count", "min", "max"],
    ),
    "string": (st.text(st.characters(codec="utf-8"), max_size=3), ["count"]),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, dict[str, Aggregate], list[list[tuple[str, Any]]]]:
    kind = draw(st.sampled_from(sorted(VALUES)))
    values, kinds = VALUES[kind]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))
    aggregates = {"n": count()} | {f"of_{name}": ALL[name]("v") for name in chosen}
    row = st.tuples(st.sampled_from("abc"), st.none() | values)
    return kind, aggregates, draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=3))


@pytest.mark.internal_errors
@given(batches())
def test_columns_give_what_elements_give(
    given_batches: tuple[str, dict[str, Aggregate], list[list[tuple[str, Any]]]],
) -> None:
    kind, aggregates, rows = given_batches
    columns: Any = to_type(f"k string, v {kind}", parameter="rows")
    made: Any = plan(aggregates, columns, retract=False)
    vectorized = VectorizedAggregates.of(made)
    assert vectorized is not None, "each of these has a form over columns"
    outputs = pa.schema([("key", pa.string())]), made.results
    output_type = pa.schema([*outputs[0], *(pa.field(r.name, r.type.arrow) for r in made.results)])
    options: dict[str, Any] = {
        "key_by": lambda row: row[0],
        "key_type": str,
        "input_type": f"k string, v {kind}",
        "output_type": output_type,
    }
    one_by_one = KeyedHarness(KeyedAggregates(made), **options)
    by_columns = KeyedHarness(vectorized, **options)
    for batch in rows:
        try:
            results = by_columns.process(batch)
        except InternalError as error:  # nobody but an operator that goes on per element expects PerElement
            assume(not isinstance(error.__cause__, PerElement))
            raise
        assert repr(results) == repr(one_by_one.process(batch))
        if batch:
            assert repr(sorted(by_columns.state("aggregates").items())) == repr(
                sorted(one_by_one.state("aggregates").items())
            )


def test_columns_merge_how_often_a_value_is_nan() -> None:
    greatest = Extreme("max", DOUBLE, what="max")
    parts = [(1.0, 1), (None, 2)]
    kept = greatest.accumulator_type.to_arrow(parts, storage=False)
    merge = merging_form(greatest, DOUBLE)
    assert merge is not None
    assert merge(kept, Segments(np.array([0, 0]))).to_pylist() == [{"value": 1.0, "nans": 3}]


@given(st.data())
def test_columns_merge_accumulators_as_merge_does(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    values, kinds = VALUES[kind]
    name = data.draw(st.sampled_from(kinds))
    columns: Any = to_type(f"k string, v {kind}", parameter="rows")
    (step,) = plan({"one": ALL[name]("v")}, columns, merge=True).steps
    merge, accumulator = merging_form(step.accumulator, step.value_type), step.accumulator
    assert merge is not None
    parts = data.draw(st.lists(st.tuples(st.integers(0, 2), st.lists(values, max_size=3)), min_size=1))
    keys = sorted({key for key, _ in parts})
    made, merged = [], dict[int, Any]()
    try:
        for key, of_part in parts:
            made.append(accumulator.create_accumulator())
            for value in of_part:
                made[-1] = accumulator.add(value, made[-1])
            merged[key] = accumulator.merge(merged[key], made[-1]) if key in merged else made[-1]
        expected = accumulator.accumulator_type.to_arrow([merged[key] for key in keys], storage=False)
    except ValueTypeError:  # a sum that does not fit
        assume(False)
    segments = Segments(np.array([keys.index(key) for key, _ in parts]))
    kept = segments.taken(accumulator.accumulator_type.to_arrow(made, storage=False))
    try:
        assert merge(kept, segments).to_pylist() == expected.to_pylist()
    except PerElement:
        assume(False)


DOUBLES = [
    lambda r: round(r.uniform(-1000, 1000), 2),
    lambda r: r.uniform(-1, 1) * 2.0 ** r.randint(-60, 60),
    lambda r: float(r.randint(-5, 5)),
    lambda r: r.uniform(-1, 1) * 2.0 ** r.randint(-1080, -1000),
    lambda r: r.choice(
        [0.0, -0.0, 1e16, -1e16, 0.1, 2.0**53, 2.0**53 + 2, 0.5, -0.5, 1.5 * 2.0**-53, 2.0**-54]
    ),
]


@pytest.mark.parametrize("draw", DOUBLES)
def test_running_sums_of_doubles_are_those_of_exact_sum(draw: Any) -> None:
    random_numbers = random.Random(7)
    for _ in range(200):
        keys = [0, 1, 2, *(random_numbers.randrange(3) for _ in range(20))]
        values = [draw(random_numbers) for _ in keys]
        sums = [
            exact_sum([draw(random_numbers) for _ in range(random_numbers.randint(0, 4))]) for _ in range(3)
        ]
        segments = Segments(np.array(keys))
        start = pa.array(sums, pa.list_(pa.float64()))
        running, parts = running_sums(np.array(values)[segments.order], segments, start)
        for key, value, shown in zip(keys, values, segments.in_rows(running).tolist(), strict=True):
            sums[key] = exact_sum(sums[key], [value])
            assert shown == rounded_sum(sums[key])
        assert parts.to_pylist() == sums


@pytest.mark.parametrize("value", [[1e300, 1e-300], [1.7e308, 1.7e308]])
def test_doubles_that_are_too_far_apart_or_too_large_are_left_to_elements(value: list[float]) -> None:
    with pytest.raises(PerElement):
        running_sums(np.array(value), Segments(np.array([0, 0])), pa.array([[]], pa.list_(pa.float64())))


def test_strings_and_changing_rows_go_per_element() -> None:
    columns: Any = to_type("k string, v string", parameter="rows")
    assert KeyedAggregates(plan({"least": min_("v")}, columns, retract=False)).vectorized() is None
    changing = KeyedAggregates(plan({"n": count()}, columns, retract=True), emits_changes=True)
    assert changing.vectorized() is None


class SumOfSquares(SumNumbers):
    """Adds more than its base does."""

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return super().add(value * value, accumulator)


def test_a_subclass_of_an_accumulator_does_not_get_the_form_of_its_base() -> None:
    assert running_form(SumNumbers(BIGINT, what="sum_('v')"), BIGINT) is not None
    assert running_form(SumOfSquares(BIGINT, what="squares('v')"), BIGINT) is None


class Counted:
    """Counts what runs, and lets it run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches = self.elements = 0
        process_batch, process = VectorizedAggregates.process_batch, KeyedAggregates.process_element

        def batch(*given: Any) -> Any:
            self.batches += 1
            return process_batch(*given)

        def element(*given: Any) -> Any:
            self.elements += 1
            return process(*given)

        monkeypatch.setattr(VectorizedAggregates, "process_batch", batch)
        monkeypatch.setattr(keyed_aggregates.KeyedAggregates, "process_element", element)


def payments(backend: StateBackend | None = None, **aggregates: Aggregate) -> StatefulJob:
    job = StatefulJob("payments", parallelism=2, on_error="dead_letter", state_backend=backend)
    rows = job.source("rows", DeltaSource("/none"))
    rows.key_by("k").aggregate(uid="totals", **aggregates).sink("out", CollectSink())
    return job


TYPES = {"rows": "k string, v bigint"}


def test_a_job_computes_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Counted(monkeypatch)
    with run_in_memory(payments(n=count(), total=sum_("v")), types=TYPES) as run:
        assert run.process({"rows": [("a", 1), ("b", 5), ("a", None), ("a", 2)]})["out"] == [
            ("a", 1, 1), ("b", 1, 5), ("a", 2, 1), ("a", 3, 3),
        ]  # fmt: skip
        assert run.process({"rows": [("b", 1)]})["out"] == [("b", 2, 6)]
    assert ran.batches >= 2
    assert not ran.elements


def test_with_a_backend_that_spills_a_job_computes_per_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns hold the state of all keys at once."""
    ran = Counted(monkeypatch)
    with run_in_memory(payments(EmbeddedRocksDBStateBackend(), n=count()), types=TYPES) as run:
        assert run.process({"rows": [("a", 1), ("b", 5), ("a", 2)]})["out"] == [("a", 1), ("b", 1), ("a", 2)]
    assert (ran.batches, ran.elements) == (0, 3)


def test_a_sum_that_overflows_refuses_its_row_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Counted(monkeypatch)
    with run_in_memory(payments(total=sum_("v")), types=TYPES) as run:
        rows = [("a", 2**63 - 1), ("a", 1), ("a", -5)]
        assert run.process({"rows": rows})["out"] == [("a", 2**63 - 1), ("a", 2**63 - 6)]
        (letter,) = run.dead_letters()
        assert "does not fit into int64" in letter["error"]
    assert ran.elements == 3


def test_an_aggregate_that_is_added_is_null_for_the_keys_that_are_there() -> None:
    with run_in_memory(payments(n=count()), types=TYPES) as run:
        run.process({"rows": [("a", 1)]})
        run.restart(payments(n=count(), total=sum_("v")))
        assert run.process({"rows": [("a", 1), ("b", 2), ("b", 3)]})["out"] == [
            ("a", 2, None), ("b", 1, 2), ("b", 2, 5),
        ]  # fmt: skip
        assert run.process({"rows": [("a", 1)]})["out"] == [("a", 3, None)]


def test_columns_of_any_name_are_aggregated() -> None:
    job = StatefulJob("named", parallelism=1)
    rows = job.source("rows", DeltaSource("/none"))
    rows.key_by("aggregates").aggregate(uid="totals", n=count("_row")).sink("out", CollectSink())
    with run_in_memory(job, types={"rows": "aggregates string, _row bigint"}) as run:
        assert run.process({"rows": [("a", 1), ("a", 2)]})["out"] == [("a", 1), ("a", 2)]
