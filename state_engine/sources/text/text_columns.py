"""Columns of texts as Arrow arrays, a column at a time.

``text_values`` is the definition. Where all texts of a column are plain, Arrow converts them at once; a test compares
both value by value. One text that is not plain has the whole column go through the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.type_information import TypeInformation
from state_engine.sources.text.text_values import JsonNumber, Reader, TextRules, json_reader, text_reader

_DATE = r"[1-9]\d{3}-\d\d-\d\d"
_TIME = _DATE + r"[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
_ALWAYS_HELD = 15
"""So many digits of a number, a double holds."""
Faults = dict[int, str]
"""Why values are refused, by their place in the column."""


@dataclass(frozen=True)
class ColumnReader:
    """Reads values of one column.

    Attributes:
        text_type: of a text, which a value must be to be plain.
        fast: converts an array of plain texts; None where there is no such thing.
    """

    name: str
    kind: TypeInformation
    read: Reader
    text_type: type
    fast: Callable[[pa.Array], pa.Array] | None
    plain: str | None

    def array(self, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
        """The values as declared, and the reasons of those that are refused, which are null."""
        if self.fast is not None and set(map(type, values)) <= {self.text_type, type(None)}:
            try:
                texts = pa.array(values, pa.bool_() if self.text_type is bool else pa.string())
                if (
                    self.plain is None
                    or pc.all(pc.match_substring_regex(texts, self.plain)).as_py() is not False
                ):
                    return self.fast(texts), {}
            except (pa.ArrowInvalid, UnicodeEncodeError):
                pass  # one of them is not what it looks like
        read, faults, made = self.read, Faults(), []
        for place, value in enumerate(values):
            try:
                made.append(None if value is None else read(value))
            except ValueTypeError as error:
                made.append(None)
                faults[place] = f"column '{self.name}': {error}"
        return self.kind.to_arrow(made, storage=False), faults


def columns_of(
    readers: Sequence[ColumnReader], rows: Sequence[Sequence[Any]]
) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns of rows, null where a value is refused, and why rows are refused: by the first value that is."""
    arrays, problems = [], dict[int, str]()
    for reader, column in zip(readers, zip(*rows, strict=True) if rows else [()] * len(readers), strict=True):
        array, faults = reader.array(column)
        arrays.append(array)
        problems = faults | problems
    return arrays, problems


def csv_column(name: str, kind: TypeInformation, rules: TextRules) -> ColumnReader:
    """Reads fields of CSV: texts, and None for null.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> array, faults = csv_column("n", to_type("int", parameter="n"), TextRules()).array(["1", None, "x"])
        >>> array.to_pylist(), faults[2].partition(", ")[0]
        ([1, None, None], "column 'n': 'x': it is not a whole number")
    """
    fast, plain = _fast(kind, rules)
    try:
        read = text_reader(kind, rules)
    except ValueTypeError as error:
        raise ValueTypeError(f"column '{name}': {error}") from None
    return ColumnReader(name, kind, read, str, fast, plain)


def json_column(name: str, kind: TypeInformation, rules: TextRules) -> ColumnReader:
    fast, plain = _fast(kind, rules)
    p, arrow, text_type = pa.types, kind.arrow, str
    if p.is_boolean(arrow):
        return ColumnReader(name, kind, json_reader(kind, rules), bool, _same, None)
    if p.is_integer(arrow) or p.is_floating(arrow) or p.is_decimal(arrow):
        text_type = JsonNumber
    return ColumnReader(name, kind, json_reader(kind, rules), text_type, fast, plain)


def _fast(
    kind: TypeInformation, rules: TextRules
) -> tuple[Callable[[pa.Array], pa.Array] | None, str | None]:
    p, arrow = pa.types, kind.arrow
    if p.is_string(arrow):
        return _same, None
    if p.is_integer(arrow):
        return lambda texts: texts.cast(arrow), r"^-?\d{1,18}$"
    if p.is_float64(arrow):
        return _doubles(text_reader(kind, rules)), r"^-?\d{1,15}(\.\d{1,30})?([eE][+-]?\d{1,2})?$"
    if p.is_decimal(arrow) and arrow.precision > arrow.scale:
        fraction = rf"(\.\d{{1,{arrow.scale}}})?" if arrow.scale else ""
        return lambda texts: texts.cast(arrow), rf"^-?\d{{1,{arrow.precision - arrow.scale}}}{fraction}$"
    if p.is_date(arrow) and rules.date_pattern is None:
        return lambda texts: texts.cast(arrow), f"^{_DATE}$"
    if p.is_timestamp(arrow) and arrow.tz is None and rules.timestamp_ntz_pattern is None:
        return lambda texts: texts.cast(arrow), f"^{_TIME}$"
    if p.is_timestamp(arrow) and arrow.tz == "UTC" and rules.timestamp_pattern is None:
        return _instants(rules)
    return None, None


def _doubles(read: Reader) -> Callable[[pa.Array], pa.Array]:
    """Numbers; of so many digits that some may be lost, one that Arrow writes otherwise is looked at by itself."""

    def convert(texts: pa.Array) -> pa.Array:
        made = texts.cast(pa.float64())
        digits = pc.utf8_length(pc.replace_substring_regex(texts, r"[eE].*|[-.]", ""))
        many = pc.greater(digits, _ALWAYS_HELD)
        if pc.any(many).as_py():
            for text in texts.filter(pc.and_(many, pc.not_equal(made.cast(pa.string()), texts))).to_pylist():
                try:
                    read(text)
                except ValueTypeError as error:
                    raise pa.ArrowInvalid(str(error)) from None
        return made

    return convert


def _instants(rules: TextRules) -> tuple[Callable[[pa.Array], pa.Array], str]:
    """Instants that all end with Z; or, where times without a zone are in UTC, such ones."""

    def convert(texts: pa.Array) -> pa.Array:
        local = pc.replace_substring_regex(texts, "Z$", "").cast(pa.timestamp("us"))
        return pc.assume_timezone(local, "UTC")

    return convert, f"^{_TIME}{'Z?' if rules.zone is UTC else 'Z'}$"


def _same(texts: pa.Array) -> pa.Array:
    return texts
