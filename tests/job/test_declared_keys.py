"""Keys that operations hand to functions, and take from people, are what the job declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state_engine import StatefulJob, Types
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.canonical import canonical_key
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.durations import Instant
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import declared_key
from state_engine.queries.state_rows import KEY, WHY
from state_engine.queries.stored_entries import key_table
from state_engine.state_processor.key_conversion import key_maker
from tests.support.key_samples import encode_keys


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


KEYS: list[tuple[Any, Any, Any]] = [
    (Types.SQL_TIME(), time(1), 3_600_000_000),
    (Types.BIG_INT(), 10**30, Decimal(10**30)),
    (Types.STRING(), "a", "a"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff", b"\x00\xff"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "AP8=", b"\x00\xff"),
    (Types.INSTANT(), Instant.of_epoch_milli(0), None),
]


@pytest.mark.parametrize(("kind", "key", "stored"), KEYS, ids=lambda v: str(v)[:20])
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
