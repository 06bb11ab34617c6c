"""Rules as SQL text: verdicts against a plain evaluator of three-valued logic, and Spark's; and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.operators.row_expectation import RowExpectation
from state_engine.operators.sql_rule import SqlRule

Verdict = bool | None
Values = dict[str, Any]
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("x", pa.float64()), ("s", pa.string())])


class Condition(NamedTuple):
    """A condition as SQL, and what it is in Python."""

    text: str
    of: Callable[[Values], Verdict]


def compared(rng: random.Random) -> Condition:
    name = rng.choice("abx")
    literal = rng.randint(-3, 3)
    sign, holds = rng.choice(
        [
            ("<", lambda v: v < literal),
            ("<=", lambda v: v <= literal),
            ("=", lambda v: v == literal),
            ("<>", lambda v: v != literal),
            (">", lambda v: v > literal),
        ]
    )
    text = f"{name} {sign} {literal}"
    return Condition(text, lambda row: None if row[name] is None else holds(row[name]))


def special(rng: random.Random) -> Condition:
    low, high = sorted((rng.randint(-3, 3), rng.randint(-3, 3)))
    return rng.choice(
        [
            Condition("a IS NULL", lambda row: row["a"] is None),
            Condition("s IS NOT NULL", lambda row: row["s"] is not None),
            Condition("s LIKE 'a%'", lambda row: None if row["s"] is None else row["s"].startswith("a")),
            Condition(
                "s NOT LIKE '%b'", lambda row: None if row["s"] is None else not row["s"].endswith("b")
            ),
            Condition("length(s) > 1", lambda row: None if row["s"] is None else len(row["s"]) > 1),
            Condition("upper(s) = 'AB'", lambda row: None if row["s"] is None else row["s"].upper() == "AB"),
            Condition("contains(s, 'b')", lambda row: None if row["s"] is None else "b" in row["s"]),
            Condition("abs(a) < 2", lambda row: None if row["a"] is None else abs(row["a"]) < 2),
            Condition("COALESCE(a, 7) > 1", lambda row: (7 if row["a"] is None else row["a"]) > 1),
            Condition(
                "a + b * 2 > 1",
                lambda row: None if row["a"] is None or row["b"] is None else row["a"] + row["b"] * 2 > 1,
            ),
            Condition(
                f"a BETWEEN {low} AND {high}",
                lambda row: None if row["a"] is None else low <= row["a"] <= high,
            ),
            Condition(
                f"b IN ({low}, {high})", lambda row: None if row["b"] is None else row["b"] in (low, high)
            ),
            Condition(
                "CASE WHEN a > 0 THEN b > 0 ELSE x > 0 END",
                lambda row: _positive(row["b"] if _positive(row["a"]) else row["x"]),
            ),
        ]
    )


def _positive(value: Any) -> Verdict:
    return None if value is None else value > 0


def condition(rng: random.Random, depth: int = 3) -> Condition:
    kind = rng.choice(["leaf", "leaf", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        return rng.choice([compared, special])(rng)
    left = condition(rng, depth - 1)
    if kind == "not":
        return Condition(f"NOT ({left.text})", lambda row: _inverted(left.of(row)))
    right = condition(rng, depth - 1)
    ends = kind == "or"

    def both(row: Values) -> Verdict:
        verdicts = (left.of(row), right.of(row))
        if ends in verdicts:
            return ends
        return None if None in verdicts else not ends

    return Condition(f"({left.text}) {kind.upper()} ({right.text})", both)


def _inverted(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict


def rows(rng: random.Random, number: int) -> list[Values]:
    values: dict[str, list[Any]] = {
        "a": [None, *range(-3, 4)],
        "b": [None, *range(-3, 4)],
        "x": [None, -2.5, 0.0, 0.5, 3.0],
        "s": [None, "", "a", "ab", "Ab", "b", "cab"],
    }
    return [{name: rng.choice(of) for name, of in values.items()} for _ in range(number)]


@pytest.mark.parametrize("seed", range(60))
def test_verdicts_are_those_of_three_valued_logic(seed: int) -> None:
    rng = random.Random(seed)
    one, given = condition(rng), rows(rng, 40)
    table = pa.Table.from_pylist(given, SCHEMA)
    expected = [one.of(row) for row in given]
    assert SqlRule.of(one.text).judged(table).to_pylist() == expected
    met = RowExpectation("rule", one.text, "drop").met(table)
    assert met.tolist() == [verdict is True for verdict in expected]


@pytest.mark.more
@pytest.mark.spark
def test_spark_gives_the_same_verdicts(spark: SparkSession) -> None:
    rng = random.Random(1)
    given = rows(rng, 200)
    conditions = [condition(rng).text for _ in range(40)]
    conditions += ["x > 0.5", "d > DATE '2024-01-02'", "d > '2024-01-02'", "isnan(x)", "n = 1.5"]
    table = pa.Table.from_pylist(given, SCHEMA)
    table = table.append_column("d", pa.array([i % 3 for i in range(200)], pa.int32()).cast(pa.date32()))
    days = pa.array([19723 + i % 3 for i in range(200)], pa.int32()).cast(pa.date32())  # from 2024-01-01 on
    table = table.set_column(4, "d", days)
    table = table.append_column("n", pa.array([1.5 * (i % 3) for i in range(200)]).cast(pa.decimal128(10, 2)))
    nan = pa.array([float("nan") if i % 5 == 0 else 0.25 for i in range(200)])
    table = table.set_column(2, "x", nan)
    frame = spark.createDataFrame(table).coalesce(1)
    shown = frame.selectExpr(*[f"({text}) AS c{at}" for at, text in enumerate(conditions)]).toArrow()
    for at, text in enumerate(conditions):
        assert SqlRule.of(text).judged(table).to_pylist() == shown[f"c{at}"].to_pylist(), text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("amount >", "is not a SQL expression"),
        ("", "uses 'row'"),
        ("sum(amount) > 1", "'sum'"),
        ("random() > 0.5", "'random'"),
        ("now() > amount", "'now'"),
        ("floor(amount) > 1", "'floor'"),
        ("row_number() OVER () = 1", "'window row number'"),
        ("amount > (SELECT 1)", "'subquery'"),
        ("amount > $1", "'value parameter'"),
        ("CAST(amount AS int) > 1", "'operator cast'"),
        ("amount > 1) FROM rows UNION SELECT (true", "not one SQL expression"),
        ("amount > 1, amount", "uses"),
        ("amount > 1), (amount", "not one SQL expression"),
        ("amount / 2 > 1", "'/'"),
        ('"amount" > 1', "holds '\"'"),
        (r"name LIKE 'a\_b'", r"holds '\\'"),
    ],
)
def test_a_text_that_is_no_condition_on_single_rows_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RowExpectation("rule", text, "drop")
    assert says in str(refused.value)
    assert str(refused.value).startswith("expectation 'rule': ")
    assert "give a function from a pyarrow.Table to a boolean column" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("other > 1", "there is no column 'other'; the stream has ['amount', 'Name', 'name']"),
        ("current_date > '2024-01-01'", "there is no column 'current_date'"),
        ("amount + 1", "gives values of type int64, not true or false"),
        ("amount > 'x'", "cannot be judged: Conversion Error"),
        ("NAME = 'a'", "differ in case only"),
    ],
)
def test_a_text_that_does_not_fit_the_columns_is_refused(text: str, says: str) -> None:
    rows = pa.table({"amount": [1], "Name": ["a"], "name": ["b"]})
    with pytest.raises(ConfigurationError) as refused:
        RowExpectation("rule", text, "drop").met(rows)
    assert says in str(refused.value)


def test_a_value_that_cannot_be_computed_ends_it() -> None:
    rule = RowExpectation("rule", "amount * amount > 0", "drop")
    assert rule.met(pa.table({"amount": [2**30]})).tolist() == [True]
    with pytest.raises(ConfigurationError, match="'amount \\* amount > 0' cannot be judged: Out of Range"):
        rule.met(pa.table({"amount": [2**62]}))


def test_names_of_columns_have_no_case_and_records_have_fields() -> None:
    rows = pa.table({"Amount": [1, 2], "of": [{"kind": "a"}, {"kind": "b"}]})
    assert RowExpectation("rule", "amount > 1", "drop").met(rows).tolist() == [False, True]
    assert RowExpectation("rule", "of.kind = 'a'", "drop").met(rows).tolist() == [True, False]
    assert RowExpectation("rule", "true", "drop").met(rows).tolist() == [True, True]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda rows: rows["a"], "gave 2 values of type int64 for 2 rows"),
        (lambda rows: pa.array([True]), "gave 1 value of type bool for 2 rows"),
        (lambda rows: [True, False], "gave list for 2 rows"),
    ],
)
def test_a_function_that_gives_no_boolean_column_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ValueTypeError) as refused:
        RowExpectation("rule", given, "drop").met(pa.table({"a": [1, 2]}))
    assert says in str(refused.value)
