"""Which casts of keys lose nothing; and under which names a key of another type is stored."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.keys.key_conversions import is_lossless
from state_engine.core.keys.key_schema import KeySchema

TEXT, NTZ, UTC = pa.string(), pa.timestamp("us"), pa.timestamp("us", "UTC")
LOSSLESS = [
    (pa.int8(), pa.int16()), (pa.int32(), pa.int64()), (pa.int32(), pa.float64()), (pa.int16(), pa.float32()),
    (pa.int32(), pa.decimal128(10, 0)), (pa.int64(), pa.decimal128(21, 2)), (pa.int64(), TEXT),
    (pa.float32(), pa.float64()), (pa.decimal128(5, 2), pa.decimal128(7, 3)), (pa.decimal128(5, 2), TEXT),
    (pa.date32(), TEXT), (pa.date32(), NTZ), (pa.bool_(), TEXT), (TEXT, TEXT),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", TEXT)])),
]  # fmt: skip
LOSSY = [
    (pa.int64(), pa.int32()), (pa.int32(), pa.float32()), (pa.int64(), pa.float64()),
    (pa.int32(), pa.decimal128(9, 0)), (pa.int32(), pa.decimal128(10, 1)), (pa.float64(), pa.float32()),
    (pa.float64(), TEXT), (pa.decimal128(5, 2), pa.decimal128(5, 3)), (pa.decimal128(5, 2), pa.int64()),
    (TEXT, pa.int64()), (TEXT, pa.date32()), (pa.date32(), UTC), (pa.date32(), pa.int64()), (UTC, TEXT),
    (NTZ, UTC), (pa.bool_(), pa.int8()), (pa.binary(), TEXT),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), LOSSLESS, ids=[f"{a}_{b}" for a, b in LOSSLESS])
def test_casts_that_lose_nothing(old: pa.DataType, new: pa.DataType) -> None:
    assert is_lossless(old, new)


@pytest.mark.parametrize(("old", "new"), LOSSY, ids=[f"{a}_{b}" for a, b in LOSSY])
def test_casts_that_could_lose_something(old: pa.DataType, new: pa.DataType) -> None:
    assert not is_lossless(old, new)


@given(st.integers(-(2**31), 2**31 - 1))
def test_whole_numbers_map_to_the_same_key(number: int) -> None:
    for kind in (pa.int64(), pa.float64(), pa.decimal128(10, 0), TEXT):
        assert is_lossless(pa.int32(), kind)
        assert pa.array([number], pa.int32()).cast(kind).cast(pa.int32())[0].as_py() == number


def key(**types: pa.DataType) -> KeySchema:
    return KeySchema(tuple(types), tuple(types.values()))


def test_a_column_of_a_table_has_one_type() -> None:
    number, text, day = key(k=pa.int32()), key(k=TEXT), key(k=pa.date32())
    assert number.stored_in([]).columns == ("k",)
    assert number.stored_in([number.storage]).columns == ("k",)
    second = text.stored_in([number.storage])
    assert (second.columns, str(second)) == (("k__2",), "struct<`k__2`: string>")
    both = pa.struct([*number.storage, *second.storage])
    assert text.stored_in([both]).columns == ("k__2",), "there is a column for it already"
    assert key(k=pa.float64()).stored_in([both]).columns == ("k__3",)
    assert day.stored_in([both]).columns == ("k",), "days are stored as numbers"
    assert key(K=pa.int32()).stored_in([both]).columns == ("K__3",), "upper and lower case are the same name"
    several = key(k__2=pa.int32(), k=TEXT)
    assert several.stored_in([number.storage]).columns == ("k__2", "k__3")


def test_a_recorded_key_is_called_as_it_was_declared() -> None:
    text = key(k=TEXT, n=pa.int16()).stored_in([key(k=pa.int64()).storage])
    recorded = KeySchema.recorded(str(text), text.declared_text)
    assert (recorded, recorded.names, recorded.columns) == (text, ("k", "n"), ("k__2", "n"))
    assert recorded.is_stored_like(key(k=TEXT, n=pa.int64()))
    assert not recorded.is_stored_like(key(k=TEXT, m=pa.int64()))
    assert KeySchema.recorded("struct<`k`: bigint>", "") == key(k=pa.int64())
    assert key(k=pa.decimal128(5, 2)).is_stored_like(key(k=pa.decimal128(9, 4)))
    assert not key(k=pa.decimal128(5, 2)).is_stored_like(key(k=TEXT))
