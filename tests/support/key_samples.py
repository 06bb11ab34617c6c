"""Random keys of every type that can be one, with the values that show a wrong hash."""

from __future__ import annotations

import math
import random
import string
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.canonical import storage_type
from state_engine.core.keys.hashing import Canonical

Make = Callable[[random.Random], Any]


def integers(bits: int) -> Make:
    edges = [0, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]

    def make(r: random.Random) -> int:
        if r.random() < 0.02:
            return r.choice(edges)
        return r.getrandbits(r.randint(1, bits - 1)) * r.choice([1, -1])

    return make


def floats(form: str, bits: int, edges: list[float]) -> Make:
    """Any bit pattern but NaN: so also infinities, subnormals and both zeros."""

    def make(r: random.Random) -> float:
        if r.random() < 0.05:
            return r.choice([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), *edges])
        value: float = struct.unpack(f"<{form}", r.getrandbits(bits).to_bytes(bits // 8, "little"))[0]
        return 0.5 if math.isnan(value) else value

    return make


def decimals(precision: int, scale: int) -> Make:
    """Any number of digits, so also numbers that are written with an exponent elsewhere, and trailing zeros."""

    def make(r: random.Random) -> Decimal:
        digits = r.randrange(10 ** r.randint(0, precision))
        if r.random() < 0.3:
            zeros = 10 ** r.randint(0, precision)
            digits = digits // zeros * zeros
        return Decimal(digits * r.choice([1, -1])).scaleb(-scale, Context(prec=38))

    return make


def text(r: random.Random) -> str:
    alphabet = r.choice(
        [string.ascii_letters, "0123456789", "żółw éß漢字🐢\x00\u200b'\"\\ ", "\U0010ffff\ud7ff\ue000a"]
    )
    length = r.choice([0, 1, 3, 4, 7, 8, 9, 31, 32, 33, r.randint(0, 100), r.randint(0, 100)])
    return "".join(r.choices(alphabet, k=length if r.random() < 0.999 else 20_000))


def some_datetime(r: random.Random) -> datetime:
    first = datetime(1, 1, 3) if r.random() < 0.5 else datetime(1960, 1, 1)
    last = datetime(9999, 12, 29) if r.random() < 0.5 else datetime(2040, 1, 1)
    micros = r.randrange((last - first) // timedelta(microseconds=1))
    return first + timedelta(microseconds=micros // 10**6 * 10**6 if r.random() < 0.2 else micros)


def some_date(r: random.Random) -> date:
    return some_datetime(r).date()


def or_none(make: Make) -> Make:
    return lambda r: None if r.random() < 0.15 else make(r)


DOUBLES = floats("d", 64, [5e-324, -2.2250738585072009e-308, 1.7976931348623157e308])
INNER = pa.struct({"b": pa.float64(), "c.d": pa.date32()})
KINDS: dict[str, tuple[pa.DataType, Make]] = {
    "byte": (pa.int8(), integers(8)),
    "short": (pa.int16(), integers(16)),
    "int": (pa.int32(), integers(32)),
    "long": (pa.int64(), integers(64)),
    "float": (pa.float32(), floats("f", 32, [2.0**-149, -(2.0**-127), 2.0**127])),
    "double": (pa.float64(), DOUBLES),
    "decimal_5_2": (pa.decimal128(5, 2), decimals(5, 2)),
    "decimal_38_10": (pa.decimal128(38, 10), decimals(38, 10)),
    "decimal_38_0": (pa.decimal128(38, 0), decimals(38, 0)),
    "decimal_38_38": (pa.decimal128(38, 38), decimals(38, 38)),
    "string": (pa.string(), text),
    "binary": (pa.binary(), lambda r: r.randbytes(r.choice([0, 1, 4, 8, 31, 32, 33, r.randint(0, 300)]))),
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "date": (pa.date32(), some_date),
    "timestamp": (pa.timestamp("us", "UTC"), lambda r: some_datetime(r).replace(tzinfo=UTC)),
    "timestamp_ntz": (pa.timestamp("us"), some_datetime),
    "plain_struct": (
        pa.struct({"x": pa.int64(), "y": pa.string()}),
        lambda r: (or_none(integers(64))(r), or_none(text)(r)),
    ),
    "struct": (
        pa.struct({"a": pa.int16(), "inner": INNER}),
        lambda r: (
            or_none(integers(16))(r),
            or_none(lambda r: (or_none(DOUBLES)(r), or_none(some_date)(r)))(r),
        ),
    ),
}
COMPOSITES = [
    ("string", "long"),
    ("date", "decimal_5_2", "boolean"),
    ("float", "struct", "timestamp_ntz", "timestamp"),
    ("byte", "binary", "decimal_38_10"),
]


def arrow_column(values: list[Any], declared: pa.DataType) -> pa.Array:
    """Arrow takes structs as dicts; keys are tuples."""
    return pa.array([as_dicts(value, declared) for value in values], declared)


def as_dicts(value: Any, declared: pa.DataType) -> Any:
    if value is None or not pa.types.is_struct(declared):
        return value
    return {f.name: as_dicts(part, f.type) for f, part in zip(declared, value, strict=True)}


def encode_keys(canonical: Sequence[Canonical], declared: pa.DataType) -> pa.Array:
    """A key column as it is stored, from canonical keys of values of the declared type."""
    return _encoded(canonical, storage_type(declared))


def _encoded(canonical: Sequence[Any], storage: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(storage):
        return pa.array(canonical, storage)
    columns = list(
        zip(*[(None,) * storage.num_fields if key is None else key for key in canonical], strict=True)
    )
    return pa.StructArray.from_arrays(
        [_encoded(columns[i] if canonical else [], field.type) for i, field in enumerate(storage)],
        fields=list(storage),
        mask=pa.array([key is None for key in canonical], pa.bool_()),
    )


def random_keys(*, seed: int, rows: int) -> dict[str, list[Any]]:
    """Columns of keys of every kind; and for the composites nullable columns of the kinds they are made of."""
    r = random.Random(seed)
    keys = {kind: [make(r) for _ in range(rows)] for kind, (_, make) in KINDS.items()}
    for columns in COMPOSITES:
        for kind in columns:
            keys[f"part_{kind}"] = [or_none(KINDS[kind][1])(r) for _ in range(rows)]
    return keys


PLAIN = [k for k in KINDS if "struct" not in k and "decimal" not in k]
RECENT = datetime(2024, 2, 29, 13, 59, 59, 999_999)


def recent(table: pa.Table) -> pa.Table:
    """With temporal columns after 1900, some before 1970."""
    for at, name in enumerate(table.schema.names):
        if pa.types.is_temporal(table.schema.field(name).type):
            days = [RECENT - timedelta(hours=7.3 * i * i) for i in range(table.num_rows)]
            kind = table.schema.field(name).type
            values: list[Any] = [d.date() if pa.types.is_date(kind) else d for d in days]
            table = table.set_column(at, name, pa.array(values, kind))
    return table


def plain_table(seed: int, rows: int = 300) -> pa.Table:
    columns = random_keys(seed=seed, rows=rows)
    filled = recent(pa.table({k: pa.array(columns[k], KINDS[k][0]) for k in PLAIN}))
    absent = pa.array([i % 7 == 3 for i in range(rows)])
    return pa.table({n: pc.if_else(absent, None, filled[n].combine_chunks()) for n in filled.schema.names})
