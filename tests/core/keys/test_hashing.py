"""The hash against values that Spark's own xxhash64 printed, and its two forms against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.keys.hashing import (
    Canonical,
    hash_bytes,
    hash_canonical,
    hash_double,
    hash_int64_array,
    hash_long,
    hash_string,
)

int64 = st.integers(-(2**63), 2**63 - 1)

FROM_SPARK: list[tuple[Canonical, int]] = [
    (0, -5252525462095825812),
    (1, -7001672635703045582),
    (-1, 3858142552250413010),
    (2**63 - 1, -3246596055638297850),
    (0.0, -5252525462095825812),
    (-0.0, -5252525462095825812),
    (1.5, 7738255526519901366),
    (float("-inf"), 5326262080505358431),
    (5e-324, -7001672635703045582),
    ("", -7444071767201028348),
    ("N14228", 2818031054348419725),
    ("żółw 🐢", 3985547878056487879),
    ("ab" * 100, -7100217949104146337),
    (b"", -7444071767201028348),
    (b"\x00\xff", 879945414100663330),
    ((1, "a"), -8527884376001292090),
    (("a", 1), -1010403264180844141),
    (("EWR", None, "TYS"), 2074395026301774323),
    ((1, ("x", 2.5)), 6326440900476303730),
]


@pytest.mark.parametrize(("key", "expected"), FROM_SPARK, ids=[repr(key)[:20] for key, _ in FROM_SPARK])
def test_equals_what_spark_printed(key: Canonical, expected: int) -> None:
    assert hash_canonical(key) == expected


def test_every_nan_hashes_alike() -> None:
    other_nan = np.array([0x7FF8000000000001], np.int64).view(np.float64)[0]
    assert hash_double(float(other_nan)) == hash_double(float("nan")) == hash_long(0x7FF8000000000000)


def test_null_leaves_the_seed() -> None:
    assert hash_canonical(None, 7) == 7
    assert hash_canonical((None, None)) == 42


@given(st.lists(int64), int64)
def test_the_array_form_equals_the_scalar_form(values: list[int], seed: int) -> None:
    expected = [hash_long(value, seed) for value in values]
    assert hash_int64_array(np.array(values, np.int64), seed).tolist() == expected


@given(st.lists(st.tuples(int64, int64), min_size=1))
def test_columns_chain_in_the_array_form_too(rows: list[tuple[int, int]]) -> None:
    first, second = np.array(rows, np.int64).T
    chained = hash_int64_array(second, hash_int64_array(first))
    assert chained.tolist() == [hash_canonical(row) for row in rows]


@given(st.text(), st.binary(), int64)
def test_strings_hash_as_their_utf8_bytes(text: str, data: bytes, seed: int) -> None:
    assert hash_string(text, seed) == hash_bytes(text.encode(), seed)
    assert -(2**63) <= hash_bytes(data, seed) < 2**63


def test_arrays_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="int32"):
        hash_int64_array(np.array([1], np.int32))
    with pytest.raises(TypeError, match="float64"):
        hash_int64_array(np.array([1]), np.array([1.0]))
