"""The columns of a Parquet file as Spark has them, and whether they give declared ones without loss.

Spark's reader wraps some numbers that do not fit a declared type, and refuses others deep in a task. Here the footer
decides, before any row is read and for every reader alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.core.errors import BadFileError, ConfigurationError
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.spark_types import spark_type
from state_engine.core.types.walk import common_shape, walked
from state_engine.sources.file_columns import names_in_file
from state_engine.sources.text.text_values import NameRules

_WIDER = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
"""What holds unsigned numbers of so many bits."""
_INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Their types, and how many digits a decimal needs before the point to be read from one."""
_MOST_DIGITS = 38


def columns_of(file: pq.ParquetFile) -> pa.Schema:
    """The columns, without the forms that only Arrow knows: views, large and dictionary types, extensions."""
    stored = (file.schema.column(place) for place in range(file.metadata.num_columns))
    return pa.schema([field.with_type(_seen(field.type, stored)) for field in file.schema_arrow])


def _seen(kind: pa.DataType, stored: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """A type without what only Arrow knows; ``stored`` gives the columns of its parts without parts, in their order."""
    p = pa.types
    if p.is_struct(kind):
        return pa.struct([field.with_type(_seen(field.type, stored)) for field in kind])
    if p.is_map(kind):
        return pa.map_(_seen(kind.key_type, stored), _seen(kind.item_type, stored))
    if p.is_nested(kind):
        return pa.list_(_seen(kind.value_type, stored))
    return _seen_leaf(kind, next(stored))


def _seen_leaf(kind: pa.DataType, stored: pq.ColumnSchema) -> pa.DataType:
    p = pa.types
    if stored.logical_type.type == "UUID":
        return pa.uuid()
    if stored.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if p.is_dictionary(kind):
        kind = kind.value_type
    if p.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if p.is_large_string(kind) or p.is_string_view(kind):
        return pa.string()
    if p.is_large_binary(kind) or p.is_binary_view(kind):
        return pa.binary()
    if p.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    return {pa.date64(): pa.date32()}.get(kind, pa.int64() if p.is_duration(kind) else kind)


def inferred(uri: str, columns: pa.Schema) -> pa.Schema:
    """The schema of a source that declares none, as Spark infers it."""
    fields = []
    for field in columns:
        kind = _in_spark(field.type)
        if not _has_type(kind):
            raise BadFileError(
                f"{uri}: column '{field.name}' holds {_text(kind)}, for which Spark has no type. Declare the schema of "
                f"the FileSource: without the column, or with it as {_stored_as(kind)}",
                uri,
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _in_spark(kind: pa.DataType) -> pa.DataType:
    """The type that Spark gives a column; as it is where it gives none."""

    def leaf(part: pa.DataType) -> pa.DataType:
        if pa.types.is_unsigned_integer(part):
            return _WIDER[part.bit_width]
        if pa.types.is_fixed_size_binary(part):
            return pa.binary()
        return pa.int32() if pa.types.is_null(part) else part

    return walked(
        kind,
        leaf=leaf,
        record=lambda part, kinds: pa.struct([f.with_type(k) for f, k in zip(part, kinds, strict=True)]),
        sequence=lambda _, element: pa.list_(element),
        mapping=lambda _, key, value: pa.map_(key, value),
    )


def _has_type(kind: pa.DataType) -> bool:
    """Whether Spark has a type for a column, and each of its parts."""
    try:
        spark_type(kind)
    except ConfigurationError:
        return False
    return "decimal256" not in str(kind)


def check_columns(
    uri: str, there: Iterable[pa.Field], declared: Iterable[pa.Field], rules: NameRules, *, inside: str = ""
) -> None:
    """Check that the columns of a file give the declared ones.

    Raises:
        BadFileError: two columns could give a declared one, the rules refuse that one is missing or not declared, or a
            value may not fit the declared type.
    """
    kinds, wanted = {field.name: field.type for field in there}, list(declared)
    names = names_in_file(uri, [f.name for f in there], [f.name for f in wanted], rules, inside=inside)
    for field in wanted:
        if field.name in names:
            _check(uri, inside + field.name, kinds[names[field.name]], field.type, rules)


def _check(uri: str, column: str, there: pa.DataType, wanted: pa.DataType, rules: NameRules) -> None:
    shape = common_shape(there, wanted)
    if shape == "record":
        check_columns(uri, list(there), list(wanted), rules, inside=f"{column}.")
    elif shape == "list":
        _check(uri, f"{column}.element", there.value_type, wanted.value_type, rules)
    elif shape == "map":
        _check(uri, f"{column}.key", there.key_type, wanted.key_type, rules)
        _check(uri, f"{column}.value", there.item_type, wanted.item_type, rules)
    elif shape is None or not gives(there, wanted):
        raise BadFileError(
            f"{uri}: column '{column}' holds {_text(there)}, and not every such value is one of the declared "
            f"{ddl_text(wanted)}. Declare it as {_stored_as(there)}, write the file with the declared type, or set "
            "on_bad_file='dead_letter' on its FileSource",
            uri,
        )


def gives(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a column is one of a declared type, and Spark reads it as that.

    Of a date, time or timestamp, an integer is the stored number; of what Spark has no type for, binary the stored
    bytes.

    Example:
        >>> gives(pa.int32(), pa.int64()), gives(pa.int64(), pa.int32())
        (True, False)
    """
    p = pa.types
    if there == wanted:
        return True
    if there in _INTEGERS:
        digits = _INTEGERS[there]
        if p.is_decimal(wanted):
            return bool(wanted.precision - wanted.scale >= max(digits, 10))
        return digits <= _INTEGERS.get(wanted, 0) or (wanted == pa.float64() and there != pa.int64())
    if p.is_unsigned_integer(there):
        wider = _WIDER[there.bit_width]
        few_bits = there.bit_width < 32
        return bool(wanted == wider or (p.is_integer(wanted) and gives(wider, wanted))
                    or (few_bits and wanted == pa.float64()))  # fmt: skip
    if p.is_decimal128(there) and p.is_decimal(wanted):
        more = wanted.scale - there.scale
        return bool(more >= 0 and wanted.precision - there.precision >= more)
    return wanted in _GIVEN.get(there, ()) or (
        wanted == pa.binary()
        and any(of(there) for of in (p.is_float16, p.is_decimal256, p.is_fixed_size_binary))
    )


_WHOLE = (pa.int32(), pa.int64())
_GIVEN: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
    pa.uuid(): (pa.binary(),),
    pa.null(): (*_INTEGERS, pa.float64(), pa.date32()),
    pa.date32(): (*_WHOLE, pa.timestamp("us")),
    pa.time32("ms"): _WHOLE,
    pa.time64("us"): (pa.int64(),),
    pa.time64("ns"): (pa.int64(),),
    pa.timestamp("us"): (pa.timestamp("us", "UTC"), pa.int64()),
    pa.timestamp("us", "UTC"): (pa.timestamp("us"), pa.int64()),
    pa.timestamp("ns"): (pa.int64(),),
    pa.timestamp("ns", "UTC"): (pa.int64(),),
}
"""By type in a file, the other types that are read from it."""


def _text(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return "nanoseconds"
    return ddl_text(_in_spark(kind)) if _has_type(_in_spark(kind)) else str(kind)


def _stored_as(kind: pa.DataType) -> str:
    if _has_type(_in_spark(kind)):
        return ddl_text(_in_spark(kind))
    if pa.types.is_nested(kind):
        return "the types that its parts are stored in"
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return "bigint, which gives the stored number"
    return "binary, which gives the stored bytes"
