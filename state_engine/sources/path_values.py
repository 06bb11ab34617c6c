"""Values that the directories above a file give: ``day=2024-01-05/part.parquet`` is of the 5th of January.

Only directories below the source's path count. A declared column is given by the path of a file where that has it,
whatever the file holds, and by the file itself elsewhere. Whoever reads the rows, the values are added to them by the
place of their file. Plays the part of Spark's ``PartitioningUtils``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import BadFileError, ValueTypeError
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN
from state_engine.sources.file_columns import names_in_file
from state_engine.sources.rows import Given, Read, TaskRows, match
from state_engine.sources.text.text_values import NameRules, Reader, TextRules, text_reader
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NULL = "__HIVE_DEFAULT_PARTITION__"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def texts_in_path(uri: str, root: str) -> list[tuple[str, str | None]]:
    """What the directories of a file below a root say: names and texts; None for null.

    Example:
        >>> texts_in_path("file:///in/day=2024-01-05/place=a%2Fb/1.parquet", "file:///in")
        [('day', '2024-01-05'), ('place', 'a/b')]
    """
    above = root.rstrip("/") + "/"
    if not uri.startswith(above):
        return []
    parts = (part.partition("=") for part in uri[len(above) :].split("/")[:-1])
    return [
        (_unescaped(name), None if text == _NULL else _unescaped(text))
        for name, is_value, text in parts
        if name and is_value
    ]


def _unescaped(text: str) -> str:
    """What a part of a path says; bytes that are not UTF-8 stay, so that they are refused."""
    return unquote(text, errors="surrogateescape")


def values_in_path(uri: str, root: str, declared: Sequence[pa.Field]) -> dict[str, Any]:
    """The declared columns that the path of a file gives, with their values.

    Raises:
        BadFileError: a text is no value of the declared type.
    """
    texts = texts_in_path(uri, root)
    if not texts:
        return {}
    keys = [name for name, _ in texts]
    names = names_in_file(uri, keys, [field.name for field in declared], NameRules())
    kinds = {field.name: field.type for field in declared}
    return {name: _parsed(uri, name, dict(texts)[key], kinds[name]) for name, key in names.items()}


def _parsed(uri: str, column: str, text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        return _value(text, kind)
    except ValueTypeError:
        raise BadFileError(
            f"{uri}: the directory gives column '{column}' the value {text!r}, which is not a {ddl_text(kind)}. Rename "
            "the directory, declare another type, or set on_bad_file='dead_letter' on its FileSource",
            uri,
        ) from None


def _value(text: str, kind: pa.DataType) -> Any:
    """What a text says, as a field of CSV says it; none of them is null. Raises ValueTypeError."""
    if pa.types.is_floating(kind) and _NUMBER.fullmatch(text[:-1]):
        text = text.removesuffix("f").removesuffix("d")  # as Java writes some
    value = _reader(kind)(text)
    if value is None:
        raise ValueTypeError("an empty text says nothing")
    return value


@lru_cache
def _reader(kind: pa.DataType) -> Reader:
    return text_reader(to_type(ddl_text(kind), parameter="a column"), TextRules())


# -- columns of a source that declares none ------------------------------------------------------------------------


def inferred_columns(uris: Sequence[str], root: str) -> list[pa.Field]:
    """The columns that the paths of files give, with the types that Spark infers; texts where they fit no other."""
    texts: dict[str, dict[str, None]] = {}
    for uri in uris:
        for name, text in texts_in_path(uri, root):
            seen = texts.setdefault(name, {})
            if text is not None:
                seen[text] = None
    return [pa.field(name, _common([_inferred(text) for text in seen])) for name, seen in texts.items()]


def _inferred(text: str) -> pa.DataType:
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        number = int(text)
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(2**bits) <= number < 2**bits:
                return kind
    if _NUMBER.fullmatch(re.sub("[fd]$", "", text)) or text in (
        "NaN",
        "Infinity",
        "-Infinity",
    ):
        return _of_number(text)
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        return _or_text(text, pa.date32())
    if re.fullmatch(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?", text):
        return _or_text(text, pa.timestamp("us", "UTC"))
    return pa.string()


def _of_number(text: str) -> pa.DataType:
    """Of a number that is no integer of 64 bits: a decimal where it is whole, else a double."""
    if _NUMBER.fullmatch(text):
        _, digits, exponent = Decimal(text).as_tuple()
        if isinstance(exponent, int) and exponent >= 0 and len(digits) + exponent <= 38 and "." not in text:
            return pa.decimal128(len(digits) + exponent, 0)
    return pa.float64()


def _or_text(text: str, kind: pa.DataType) -> pa.DataType:
    try:
        _value(text, kind)
    except ValueTypeError:
        return pa.string()
    return kind


def _common(kinds: Sequence[pa.DataType]) -> pa.DataType:
    several = set(kinds)
    if len(several) <= 1:
        return next(iter(several), pa.string())
    if several <= {pa.int32(), pa.int64()}:
        return pa.int64()
    if several == {pa.int32(), pa.float64()}:
        return pa.float64()
    if several == {pa.date32(), pa.timestamp("us", "UTC")}:
        return pa.timestamp("us", "UTC")
    digits = {pa.int32(): 10, pa.int64(): 20}
    if all(kind in digits or pa.types.is_decimal(kind) for kind in several):
        return pa.decimal128(max(digits.get(kind) or kind.precision for kind in several), 0)
    return pa.string()


# -- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathValues:
    """What the paths of the files of a slice give.

    Attributes:
        values: by column, its values by the place of the file.
        given: by column, whether the path of a file has it; only of columns that some paths lack.
    """

    values: Mapping[str, pa.Array]
    given: Mapping[str, pa.Array]

    @staticmethod
    def of(uris: Sequence[str], root: str, declared: Sequence[pa.Field]) -> PathValues:
        by_file = [values_in_path(uri, root, declared) for uri in uris]
        names = {name for values in by_file for name in values}
        fields = [field for field in declared if field.name in names]
        return PathValues(
            {f.name: pa.array([values.get(f.name) for values in by_file], f.type) for f in fields},
            {
                f.name: pa.array([f.name in values for values in by_file])
                for f in fields
                if not all(f.name in values for values in by_file)
            },
        )

    def left_to_files(self, schema: T.StructType) -> T.StructType:
        """The columns that the files give, or some of them."""
        whole = self.values.keys() - self.given.keys()
        return (
            T.StructType([field for field in schema.fields if field.name not in whole]) if whole else schema
        )

    def added_to(self, rows: Given, schema: T.StructType) -> Given:
        """Rows of the files, with all columns of a schema in its order, and the hidden ones."""

        def in_table(rows: pa.Table) -> Given:
            return self.in_arrow(rows, _names(rows.column_names, schema))

        def in_frame(rows: DataFrame) -> DataFrame:
            return rows.select(*[self._in_spark(name) for name in _names(rows.columns, schema)])

        def in_tasks(rows: TaskRows) -> Given:
            types = self.in_arrow(rows.schema.empty_table(), _names(rows.schema.names, schema)).schema
            scan = rows.scan
            with_values = None if scan is None else lambda: in_frame(scan())
            return replace(rows, schema=types, read=partial(_read, self, rows.read), scan=with_values)

        return match(rows, table=in_table, tasks=in_tasks, frame=in_frame)

    def in_arrow(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        columns = {}
        for name in names:
            if name not in self.values:
                columns[name] = rows[name]
                continue
            places = one_chunk(rows[FILE_COLUMN])
            column = self.values[name].take(places)
            if name in self.given:
                column = pc.if_else(self.given[name].take(places), column, one_chunk(rows[name]))
            columns[name] = column
        return pa.table(columns)

    def _in_spark(self, name: str) -> Column:
        if name not in self.values:
            return F.col(f"`{name}`")
        values = self.values[name]
        column = _by_place([_canonical(value) for value in values.to_pylist()]).cast(ddl_text(values.type))
        if name in self.given:
            is_given = _by_place([str(one) for one in self.given[name].to_pylist()]) == "True"
            column = F.when(is_given, column).otherwise(F.col(f"`{name}`"))
        return column.alias(name)


def _names(there: Sequence[str], schema: T.StructType) -> list[str]:
    return [*schema.names, *[name for name in there if name not in schema.names]]


def _by_place(texts: Sequence[str | None]) -> Column:
    return F.element_at(F.from_json(F.lit(json.dumps(texts)), "array<string>"), F.col(FILE_COLUMN) + 1)


def _canonical(value: Any) -> str | None:
    """A value as text that Spark casts to the same, in any session."""
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value)


def _read(values: PathValues, read: Read, task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    whole = values.values.keys() - values.given.keys()
    needed = dict.fromkeys([*[name for name in columns if name not in whole], FILE_COLUMN])
    for batch in read(task, tuple(needed)):
        yield from values.in_arrow(pa.Table.from_batches([batch]), columns).to_batches()
