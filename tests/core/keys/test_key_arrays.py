"""Whole columns of keys are made canonical, judged and hashed as single keys are."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.canonical import canonical_key, key_hash, storage_type
from state_engine.core.keys.hashing import hash_bytes, hash_bytes_array, hash_int32_array
from state_engine.core.keys.key_arrays import (
    canonical_array,
    check_key_column,
    hash_columns,
    is_canonical,
    key_refusals,
)
from tests.support.key_samples import COMPOSITES, KINDS, arrow_column, encode_keys, random_keys

ROWS = 400
KEYS = random_keys(seed=7, rows=ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_keys_is_canonical_as_its_values_are(kind: str) -> None:
    declared = KINDS[kind][0]
    canonical = canonical_array(arrow_column(KEYS[kind], declared))
    expected = encode_keys([canonical_key(key) for key in KEYS[kind]], declared)
    assert canonical.type == expected.type == storage_type(declared)
    assert repr(canonical.to_pylist()) == repr(expected.to_pylist())  # for Arrow -0.0 equals 0.0
    assert hash_columns([canonical]).tolist() == [key_hash(key) for key in KEYS[kind]]
    assert not is_canonical(declared) or canonical.equals(arrow_column(KEYS[kind], declared))


@pytest.mark.parametrize("kinds", COMPOSITES, ids="+".join)
def test_keys_of_several_columns_are_hashed_as_tuples_are(kinds: tuple[str, ...]) -> None:
    parts = [KEYS[f"part_{kind}"] for kind in kinds]
    columns = [
        canonical_array(arrow_column(part, KINDS[kind][0])) for part, kind in zip(parts, kinds, strict=True)
    ]
    assert hash_columns(columns).tolist() == [key_hash(key) for key in zip(*parts, strict=True)]
    tail = [column.slice(37) for column in columns]  # arrays that begin inside of a buffer
    assert hash_columns(tail).tolist() == hash_columns(columns).tolist()[37:]


def test_bytes_of_every_length_are_hashed_as_single_values_are() -> None:
    values = [bytes(range(n)) for n in range(70)]
    seeds = hash_columns([pa.array(range(70))])
    expected = [hash_bytes(v, s) for v, s in zip(values, seeds.tolist(), strict=True)]
    assert hash_bytes_array(pa.array(values), seeds).tolist() == expected
    assert hash_bytes_array(pa.array([], pa.binary()), seeds[:0]).tolist() == []


def test_an_array_of_another_width_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an array of int32, not int64"):
        hash_int32_array(pa.array([1]).to_numpy())


NAN = math.nan


def test_null_and_nan_are_refused_with_their_place() -> None:
    record = pa.struct({"a": pa.struct({"y": pa.float32()}), "b": pa.int64()})
    keys: list[Any] = [{"a": {"y": 1.0}, "b": 1}, None, {"a": {"y": NAN}, "b": 1}, {"a": None, "b": None}]
    nested = pa.array(keys, record)
    assert key_refusals(["s"], [nested]).to_pylist() == [
        None, "the key 's' is null", "the key 's['a']['y']' is NaN", None,
    ]  # fmt: skip
    assert key_refusals(["x", "y"], [pa.array([1.0, None, NAN]), pa.array([NAN, 1.0, NAN])]).to_pylist() == [
        "the key 'y' is NaN", None, "the key 'x' is NaN",
    ]  # fmt: skip


def test_a_type_that_cannot_be_a_key_is_refused_by_its_place() -> None:
    kind = pa.struct({"ok": pa.float64(), "part": pa.map_(pa.string(), pa.int64())})
    with pytest.raises(InvalidKeyError, match=r"'route\.part' has the type map<string, bigint>, which"):
        check_key_column(kind, "route")
