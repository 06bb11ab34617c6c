"""Rows and functions that fail: the batch fails, or the row becomes a dead letter and the rest goes on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import DataStream, KeyedProcessFunction, StateEngine
from state_engine.core.errors import ConfigurationError, InvalidKeyError, StatelakeError, UserFunctionError
from tests.support.guides import GUIDES, code_blocks
from tests.support.tiny import OUTPUT, ROWS, Site, Sum


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, spark)


def raises(value: Any, total: int) -> Any:
    if value.v == 3:
        raise KeyError("three")
    return [(value.k, value.v, total)]


def raises_after_an_output(value: Any, total: int) -> Iterator[Any]:
    yield value.k, value.v, total
    raises(value, total)


def wrong_type(value: Any, total: int) -> Any:
    return [(value.k, "three" if value.v == 3 else value.v, total)]


def overflows(value: Any, total: int) -> Any:
    return [(value.k, value.v, total), (value.k, 2**63 if value.v == 3 else value.v, total)]


def letters(value: Any, total: int) -> Any:
    return "letters" if value.v == 3 else [(value.k, value.v, total)]


def too_few(value: Any, total: int) -> Any:
    yield (value.k,) if value.v == 3 else (value.k, value.v, total)


@dataclass(frozen=True)
class Case:
    """One bad element: row 2 of the file, key ``a``, in the middle of the input."""

    cause: str
    then: Callable[[Any, int], Any] | None = None
    rows: Any = field(default_factory=lambda: ROWS)
    key: str | None = '{"k": "a"}'
    rest: tuple[tuple[Any, ...], ...] = (("a", 1, 1), ("b", 2, 2), ("c", 4, 4))
    state: tuple[tuple[Any, int], ...] = (("a", 1), ("b", 2), ("c", 4))


CASES: dict[str, Case] = {
    "raises": Case("KeyError: 'three'", raises),
    "raises after an output": Case(
        "KeyError: 'three'", raises_after_an_output
    ),
    "wrong type": Case("ValueTypeError: field 'v': 'three' (str) is not a value of type int64", wrong_type),
    "overflow": Case(
        "ValueTypeError: field 'v'", overflows,
        rest=(("a", 1, 1), ("a", 1, 1), ("b", 2, 2), ("b", 2, 2), ("c", 4, 4), ("c", 4, 4)),
    ),
    "a string": Case("ValueTypeError: process_element returned 'letters'", letters),
    "too few fields": Case("it has 1 field, 3 are declared", too_few),
    "null key": Case(
        "InvalidKeyError: the key 'k' is null", rows={"k": ["a", "b", None, "c"], "v": [1, 2, 3, 4]}, key=None
    ),
    "NaN key": Case(
        "InvalidKeyError", rows={"k": [1.0, 2.0, math.nan, 3.0], "v": [1, 2, 3, 4]}, key=None,
        rest=(("1.0", 1, 1), ("2.0", 2, 2), ("3.0", 4, 4)), state=((1.0, 1), (2.0, 2), (3.0, 4)),
    ),
    "overflow of state": Case(
        "ValueTypeError", lambda value, total: [(value.k, value.v, total)],
        rows={"k": ["a", "b", "a", "c"], "v": [1, 2, 2**63 - 1, 4]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_under_fail_nothing_is_committed_and_all_is_reported(site: Site, name: str) -> None:
    case = CASES[name]
    with pytest.raises(UserFunctionError) as caught:
        site.put(case.rows).engine().run(site.job(Sum(case.then)))
    error = caught.value
    assert (error.job, error.operator, error.key) == ("tiny", "sums", case.key)
    assert case.cause in error.cause
    assert error.position is not None
    assert "source 'events'" in error.position
    assert "/feed/0.parquet, row 2" in error.position
    assert site.nothing_happened()


@pytest.mark.parametrize("name", CASES)
def test_under_dead_letter_the_row_is_kept_and_the_rest_goes_on(site: Site, name: str) -> None:
    case = CASES[name]
    report = site.put(case.rows).engine().run(site.job(Sum(case.then), on_error="dead_letter"))

    assert site.outputs() == sorted(case.rest, key=repr)
    assert site.state() == dict(case.state)
    (letter,) = site.dead_letters()
    assert case.cause in letter["error"]
    assert (letter["operator"], letter["key"]) == ("sums", case.key)
    assert "/feed/0.parquet, row 2" in letter["position"]
    assert '"v": ' in letter["row"]
    (batch,) = report.batches
    assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (4, 1, {"out": len(case.rest)})
    (row,) = site.engine().checkpoints("tiny")
    assert (row.rows_in, row.rows_refused, sum(f.rows for f in row.dead_letters)) == (4, 1, 1)


def test_a_failed_batch_leaves_what_was_committed_before(site: Site) -> None:
    site.put({"k": ["a"], "v": [1]}).engine().run(site.job(Sum(raises)))
    before = (site.outputs(), site.state())
    with pytest.raises(UserFunctionError):
        site.put({"k": ["a"], "v": [3]}, "1").engine().run(site.job(Sum(raises)))
    assert (site.outputs(), site.state()) == before
    assert len(site.engine().checkpoints("tiny")) == 1

    site.engine().run(site.job(Sum()))  # the function is repaired
    assert site.outputs() == [("a", 1, 1), ("a", 3, 4)]
    assert site.state() == {"a": 4}


def test_dead_letters_of_several_runs_stay(site: Site) -> None:
    job = site.job(Sum(raises), on_error="dead_letter")
    for n in range(3):
        site.put(ROWS, str(n)).engine().run(job)
    assert len(site.dead_letters()) == 3
    assert {letter["position"].split("/")[-1].split(",")[0] for letter in site.dead_letters()} == {
        "0.parquet", "1.parquet", "2.parquet",
    }  # fmt: skip
    assert site.engine().dead_letters("tiny").count() == 3
    assert site.state() == {"a": 3, "b": 6, "c": 12}


def test_a_job_without_dead_letters_has_an_empty_table_of_them(site: Site) -> None:
    assert site.engine().dead_letters("tiny").columns == site.engine().dead_letters("never_ran").columns
    assert site.engine().dead_letters("tiny").count() == 0


class Broken(KeyedProcessFunction):
    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, runtime_context: Any) -> None:
        if self.where == "open":
            raise OSError("no connection")

    def process_element(self, value: Any, ctx: Any) -> None:
        return None

    def close(self) -> None:
        if self.where == "close":
            raise OSError("no connection")


@pytest.mark.parametrize("where", ["open", "close"])
@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_open_and_close_fail_the_batch_whatever_the_policy(site: Site, where: str, policy: str) -> None:
    with pytest.raises(UserFunctionError, match="OSError: no connection"):
        site.put(ROWS).engine().run(site.job(Broken(where), on_error=policy))
    assert site.nothing_happened()


def test_a_composite_key_may_have_a_null_in_it(site: Site) -> None:
    rows = {"k": ["a", None, None], "l": [1, 1, 2], "v": [1, 2, 3]}
    site.put(rows).engine().run(site.job(key_by=("k", "l")))
    assert site.state() == {("a", 1): 1, (None, 1): 2, (None, 2): 3}


def new_rows(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(lambda batches: batches, frame.schema)


def through(change: Callable[[DataFrame], Any]) -> dict[str, Any]:
    """Options of a job whose input goes through DataFrame code."""
    return {"through": lambda stream: stream.transform(change)}


def odd_column(frame: DataFrame) -> DataFrame:
    return frame.withColumn("odd", F.expr("interval 1 month"))


Refusal = tuple[dict[str, Any], type[StatelakeError], str]
BEFORE_ANYTHING_RUNS: dict[str, Refusal] = {
    "a missing key column": (
        {"key_by": ("nope",)}, ConfigurationError, "key_by of operator 'sums': there is no column 'nope'",
    ),
    "a missing order column": (
        {"order_by": ("nope",)}, ConfigurationError, "order_by of the stream into operator 'sums'",
    ),
    "a transform without an order": (through(new_rows), ConfigurationError, "which have no order. Name one"),
    "a transform that returns no DataFrame": (through(lambda f: 5), ConfigurationError, "not a DataFrame"),
    "a list as key": (
        through(lambda f: f.withColumn("k", F.array("v"))), InvalidKeyError, "cannot be a key",
    ),
    "a map as key": (
        through(lambda f: f.withColumn("k", F.create_map("k", "v"))), InvalidKeyError, "cannot be a key",
    ),
    "two columns of one name": (
        through(lambda f: f.select("*", F.col("v").alias("v"))), ConfigurationError, "same name",
    ),
    "a column without a counterpart": (through(odd_column), ConfigurationError, "'odd'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BEFORE_ANYTHING_RUNS)
def test_wiring_that_cannot_work_is_refused_before_anything_runs(site: Site, what: str) -> None:
    options, kind, message = BEFORE_ANYTHING_RUNS[what]
    with pytest.raises(kind, match=message):
        site.put(ROWS).engine().run(site.job(**options))
    assert site.nothing_happened()


def test_an_order_that_is_named_replaces_the_one_that_was_lost(site: Site) -> None:
    job = site.job(through=lambda s: s.transform(new_rows, order_by=["v"]))
    site.put(pa.table({"v": [3, 1, 2], "k": ["a"] * 3})).engine().run(job)
    assert site.outputs() == [("a", 1, 1), ("a", 2, 3), ("a", 3, 6)]


def test_a_position_names_no_file_where_the_order_was_lost(site: Site) -> None:
    """Integers of a declared order are not read as numbers of files and rows."""
    job = site.job(Sum(raises), through=lambda s: s.transform(new_rows, order_by=["v"]))
    with pytest.raises(UserFunctionError) as caught:
        site.put(ROWS).engine().run(job)
    position = caught.value.position or ""
    assert "row" not in position
    assert "file" not in position
    assert position.startswith("source 'events', order ('3'")


def test_a_failure_in_a_chained_operator_names_that_operator(site: Site) -> None:
    job = site.job(output=OUTPUT)
    DataStream(job, job.operators["sums"]).key_by("k").process(Sum(raises), uid="second", output_type=OUTPUT)
    with pytest.raises(UserFunctionError) as caught:
        site.put(ROWS).engine().run(job)
    assert caught.value.operator == "second"
    assert caught.value.key == '{"k": "a"}'
    assert site.nothing_happened()


GUIDE = GUIDES / "bad_input.md"


@pytest.mark.spark
def test_the_guide(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("bad_input_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    module.engine = StateEngine(tmp_path / "root", spark)
    first, second = code_blocks(GUIDE, "python")
    exec(first, vars(module))
    (batch,) = module.report.batches
    assert (batch.rows_in, batch.rows_refused) == (4, 3)
    exec(second, vars(module))
    assert (len(module.sent.sent), module.sent.refused) == (3, 1)
    (left,) = module.engine.list_dead_letters(module.payments())
    assert "base64" in left.row
    rows = DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 3), ("a", 5), ("b", 3_000_000_000)]
    commands = [line.removeprefix("statelake ") for line in code_blocks(GUIDE, "")[0].splitlines()]
    assert [c.split()[:2] for c in commands] == [["dead-letters", "list"], *[["dead-letters", "replay"]] * 2]
