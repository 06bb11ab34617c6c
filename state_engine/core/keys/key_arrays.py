"""Keys as whole Arrow columns: made canonical, judged and hashed, as `canonical` does it value by value.

For every column these functions give what `canonical_key`, `key_hash` and `key_group_of_hash` give for each of its
values, and what the Spark columns of `state_engine.spark.key_columns` hold. Plays the part of Flink's
``KeyGroupStreamPartitioner`` together with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.canonical import canonical_key, storage_type
from state_engine.core.keys.hashing import (
    SEED,
    hash_bytes,
    hash_bytes_array,
    hash_int32_array,
    hash_int64_array,
    hash_long,
)
from state_engine.core.types.ddl import ddl_text

_EXACT = Context(prec=80)  # more digits than any decimal type has: scaling never rounds
_LONGEST_LONG = 18
"""Digits: Spark hashes a decimal of up to so many as a 64-bit integer."""


def check_key_column(kind: pa.DataType, name: str) -> None:
    """Raise :class:`InvalidKeyError` for a type that cannot be a key (list, map, …).

    >>> check_key_column(pa.int64(), "k")
    """
    if pa.types.is_struct(kind):
        for field in kind:
            check_key_column(field.type, f"{name}.{field.name}")
    try:
        storage_type(kind)
    except InvalidKeyError:
        raise InvalidKeyError(
            f"The column '{name}' has the type {ddl_text(kind)}, which cannot be a key. A key column can be a "
            "number, string, binary, boolean, date or timestamp, or a struct of these: key by those parts of it instead"
        ) from None


def is_canonical(kind: pa.DataType) -> bool:
    """Whether every column of a type is canonical as it is; one with floats may hold a -0.0.

    >>> is_canonical(pa.int64()), is_canonical(pa.int32()), is_canonical(pa.float64())
    (True, False, False)
    """
    return bool(storage_type(kind) == kind) and not _holds_floats(kind)


def may_be_refused(kind: pa.DataType) -> bool:
    """Whether a value of a type that is not null may be no key: floats, for NaN, and records, for floats inside."""
    return bool(pa.types.is_floating(kind) or pa.types.is_struct(kind))


def canonical_array(column: pa.Array) -> pa.Array:
    """A key column in canonical form, of :func:`storage_type`. Null stays null, and NaN stays for `key_refusals`.

    >>> canonical_array(pa.array([True, None])).to_pylist()
    [1, None]
    """
    kind, is_type = column.type, pa.types
    if is_type.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if is_type.is_floating(kind):
        wide = column.cast(pa.float64())
        return pc.if_else(pc.equal(wide, 0.0), 0.0, wide)  # also -0.0, which equals 0.0
    if is_type.is_decimal(kind):
        texts = [None if v is None else canonical_key(v) for v in column.to_pylist()]
        return pa.array(texts, pa.string())
    if is_type.is_struct(kind):
        parts = [canonical_array(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, names=[f.name for f in kind], mask=pc.is_null(column))
    target = storage_type(kind)
    return column if kind == target else column.cast(target)


def key_refusals(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """Why each row's key cannot be one, or null: a key of one column must not be null, no part may be NaN.

    >>> key_refusals(["x"], [pa.array([1.0, None, float("nan")])]).to_pylist()
    [None, "the key 'x' is null", "the key 'x' is NaN"]
    """
    why = pa.nulls(len(columns[0]), pa.string())
    for name, column in zip(names, columns, strict=True):
        for place, floats in _floats(name, column):
            why = pc.coalesce(why, _where(pc.is_nan(floats), f"the key '{place}' is NaN"))
    if len(columns) == 1:
        why = pc.coalesce(why, _where(pc.is_null(columns[0]), f"the key '{names[0]}' is null"))
    return why


def hash_columns(columns: Sequence[pa.Array]) -> np.ndarray:
    """The hash of every row of columns, chained in their order: what Spark's ``xxhash64`` gives for them.

    For canonical columns it is the hash of the key. Text need not be UTF-8.

    >>> hash_columns([pa.array([1, None]), pa.array(["a", "a"])]).tolist() == [
    ...     hash_bytes(b"a", hash_long(1)), hash_bytes(b"a")]
    True
    """
    return _chained(columns, np.full(len(columns[0]), SEED, np.int64))


def key_groups_of(hashes: np.ndarray, max_parallelism: int) -> np.ndarray:
    """The key group of each hash, as `key_group_of_hash` gives it. Bits are enough for a power of two.

    >>> key_groups_of(np.array([-1, 130]), 128).tolist(), key_groups_of(np.array([-1, 130]), 100).tolist()
    ([127, 2], [99, 30])
    """
    bits = max_parallelism - 1
    groups: np.ndarray = np.mod(hashes, max_parallelism) if max_parallelism & bits else hashes & bits
    return groups


def key_groups_in(hashes: np.ndarray, max_parallelism: int) -> set[int]:
    """The key groups that some of the hashes are in.

    >>> key_groups_in(np.array([-1, 130, 2]), 128)
    {2, 127}
    """
    return set(np.flatnonzero(np.bincount(key_groups_of(hashes, max_parallelism))).tolist())


def _chained(columns: Sequence[pa.Array], hashes: np.ndarray) -> np.ndarray:
    """Each hash is the seed of the next; a null leaves it as it is."""
    for column in columns:
        hashed = _hashed(column, hashes)
        if column.null_count:
            hashed = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), hashed, hashes)
        hashes = hashed
    return hashes


def _hashed(column: pa.Array, seeds: np.ndarray) -> np.ndarray:
    kind, is_type = column.type, pa.types
    if is_type.is_struct(kind):
        return _chained(column.flatten(), seeds)
    if is_type.is_floating(kind):
        return _hashed(_float_bits(column), seeds)
    if is_type.is_int64(kind) or is_type.is_timestamp(kind):
        return hash_int64_array(_without_null(column.cast(pa.int64())), seeds)
    if is_type.is_integer(kind) or is_type.is_boolean(kind) or is_type.is_date32(kind):
        return hash_int32_array(_without_null(column.cast(pa.int32())), seeds)
    if is_type.is_string(kind) or is_type.is_binary(kind):
        return hash_bytes_array(column.cast(pa.binary()), seeds)
    if is_type.is_decimal(kind):
        return _hashed_decimals(column, seeds)
    raise InvalidKeyError(f"values of type {ddl_text(kind)} have no order and cannot be keys")


def _without_null(column: pa.Array) -> np.ndarray:
    whole: np.ndarray = (pc.fill_null(column, 0) if column.null_count else column).to_numpy()
    return whole


def _float_bits(column: pa.Array) -> pa.Array:
    """The bits of floats as integers of their width: one zero, and one NaN."""
    wide = pa.types.is_float64(column.type)
    values = pc.fill_null(column, 0).to_numpy() + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64 if wide else np.int32)
    return pa.array(bits, mask=pc.is_null(column).to_numpy(zero_copy_only=False))


def _hashed_decimals(column: pa.Array, seeds: np.ndarray) -> np.ndarray:
    hashes = seeds.copy()
    for row, (value, seed) in enumerate(zip(column.to_pylist(), seeds.tolist(), strict=True)):
        if value is None:
            continue
        unscaled = int(value.scaleb(column.type.scale, _EXACT))
        if column.type.precision <= _LONGEST_LONG:
            hashes[row] = hash_long(unscaled, seed)
        else:
            width = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1  # as Java's BigInteger
            hashes[row] = hash_bytes(unscaled.to_bytes(width, "big", signed=True), seed)
    return hashes


def _floats(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns of floats in a key column, with their names in SQL."""
    if pa.types.is_floating(column.type):
        yield name, column
    elif pa.types.is_struct(column.type):
        for field, part in zip(column.type, column.flatten(), strict=True):
            yield from _floats(f"{name}['{field.name}']", part)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_floats(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))


def _where(condition: pa.Array, text: str) -> pa.Array:
    return pc.if_else(condition, pa.scalar(text), pa.scalar(None, pa.string()))
