"""``ChangeFormat``: how a feed of operations says what was inserted, updated and deleted.

Decodes tables of Arrow rows, wherever they are: the driver's, or those of a task. A row of the feed is none, one or two
changes: an update with the row as it was before is two. What cannot be decoded is given back with the reason. Plays the
part of Flink's format ``debezium-json`` and its like, which make ``UPDATE_BEFORE`` and ``UPDATE_AFTER`` of an envelope.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.text.text_values import JsonNumber, Reader, TextRules, json_decoder, json_reader

_INSERT, _BEFORE, _AFTER, _DELETE = (kind.value for kind in RowKind)
_UNKNOWN = -1
_DEBEZIUM = {"c": _INSERT, "r": _INSERT, "u": _AFTER, "d": _DELETE}
_RULES = TextRules(zone=None, numbers="days")
"""Debezium has days for dates, and a number of several units for times."""
_TRUNCATE = (
    "a truncate (op 't') deletes rows without saying which: delete them one by one, or begin with empty state"
)


@dataclass(frozen=True)
class Changes:
    """Decoded rows of a feed.

    Attributes:
        origins: of each of them, the row of the feed; in order, and what an update replaces comes first.
        problems: rows of the feed that could not be decoded, and why.
    """

    rows: pa.Table
    kinds: np.ndarray[Any, Any]
    origins: np.ndarray[Any, Any]
    problems: Mapping[int, str]


Path = tuple[str, ...]
"""Names on the way to a field of an envelope."""
PlaceReader = tuple[Callable[[Any], Any], TypeInformation]
"""Gives the sequence of an envelope of JSON text; and its type."""
_WITHIN_MYSQL, _DIGITS = {("source", "pos"), ("source", "file")}, 20
_Envelopes = tuple[pa.Array, pa.Array, pa.Array, pa.Array | None, dict[int, str]]
"""Rows before and after, operations, sequences, and what could not be read and why."""


class ChangeFormat(ABC):
    """Decodes a feed of operations: the argument ``format`` of ``StatefulJob.source``.

    Make one by ``ChangeFormat.debezium`` or ``ChangeFormat.columns``.

    Attributes:
        sequence: column of the decoded rows that orders them; None leaves the order of the source.
    """

    sequence: str | None = None

    @staticmethod
    def debezium(
        *, column: str | None = None, schema: str | None = None, sequence: str | Iterable[str] | None = None
    ) -> ChangeFormat:
        """Debezium's envelopes, with ``before``, ``after`` and ``op``: c (create), r (read), u (update), d (delete).

        The elements are the rows in ``before`` and ``after``. An update is two changes, the row as it was and as it is;
        where the database does not log the former (``before`` is null) it is the latter alone. A truncate (t) becomes
        a dead letter, as does an envelope without the row that its operation needs.

        Args:
            column: holds the envelope, as a struct or as JSON text; None where ``before``, ``after`` and ``op`` are
                columns themselves, as structs and text. A null in it is Debezium's tombstone behind a delete, and
                passed over.
            schema: DDL of the rows, where envelopes are JSON text. Debezium's own wrapping (``schema``, ``payload``)
                may be there or not. Dates are text or days, decimals text or numbers, bytes base64, timestamps ISO
                text; a timestamp that comes as a number is a bigint.
            sequence: the field of the envelope that orders the changes: ``"source.lsn"`` of PostgreSQL,
                ``"source.change_lsn string"`` of SQL Server, ``"ts_ms"``. Rows get it as a column of its last name
                (``lsn``), in JSON text as a bigint unless a type stands behind it. Or a list of fields that order them
                together, the first one most: ``["source.file", "source.pos", "source.row"]`` of MySQL. Each holds a
                whole number, or text that ends in one, as the name of a log file does. Rows get them as one column of
                text, named after all of them (``file_pos_row``), in which each number has 20 digits, so that text has
                the order of the numbers. A change without it is refused. By default they have the order of the source.

        Raises:
            ConfigurationError: only one of them is given where both are needed; the sequence is not such a field.

        Example:
            >>> ChangeFormat.debezium(column="value", schema="id bigint, name string")
            ChangeFormat.debezium(column='value', schema='id bigint, name string')
        """
        if sequence is None or isinstance(sequence, str):
            return DebeziumFormat(column, schema, *_sequence_of(sequence))
        parts = tuple(map(_path_of, sequence if isinstance(sequence, Iterable) else [sequence]))
        if not parts:
            raise ConfigurationError(
                "ChangeFormat.debezium: sequence= is an empty list: name fields, or leave it out"
            )
        name = "_".join(path[-1] for path in parts)
        return DebeziumFormat(column, schema, name, sequence_type="string", parts=parts)

    @staticmethod
    def columns(
        *,
        op: str,
        insert: Iterable[str | int] = (),
        update: Iterable[str | int] = (),
        delete: Iterable[str | int] = (),
        update_before: Iterable[str | int] = (),
        sequence: str | None = None,
    ) -> ChangeFormat:
        """Rows with a column that names the operation.

        The elements are the rows without that column.

        Args:
            op: the column; text or a number.
            insert, update, delete: what it holds for such a row. An update is the row as it is after it.
            update_before: what it holds for a row as it was before an update, where the feed has those.
            sequence: column that orders the changes, such as the position in the database's log; without it they have
                the order of the source.

        Raises:
            ConfigurationError: an operation is named twice, or none is.

        Example:
            >>> ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"], sequence="lsn").sequence
            'lsn'
        """
        named = {_INSERT: insert, _BEFORE: update_before, _AFTER: update, _DELETE: delete}
        kinds: dict[str, int] = {}
        for kind, values in named.items():
            if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                raise ConfigurationError(
                    f"ChangeFormat.columns takes lists of operations, not {values!r}: write [{values!r}]"
                )
            for value in values:
                if str(value) in kinds:
                    raise ConfigurationError(f"ChangeFormat.columns: the operation {value!r} is named twice")
                kinds[str(value)] = kind
        if not kinds:
            raise ConfigurationError(
                "ChangeFormat.columns names no operation: say what the column holds, for example insert=['I'], "
                "update=['U'], delete=['D']"
            )
        return ColumnsFormat(op, kinds, sequence)

    def order_after(self, order_by: Sequence[str]) -> tuple[str, ...]:
        """Columns of decoded rows that order them after those that a user named."""
        return () if self.sequence is None or self.sequence in order_by else (self.sequence,)

    @abstractmethod
    def decoded(self, feed: pa.Schema) -> pa.Schema:
        """The user's columns of decoded rows. Raises ConfigurationError where the feed lacks what the format names."""

    @abstractmethod
    def decode(self, feed: pa.Table) -> Changes:
        """The changes in rows of a feed, which has the columns that ``decoded`` was shown."""


@dataclass(frozen=True, repr=False)
class ColumnsFormat(ChangeFormat):
    """See ``ChangeFormat.columns``."""

    op: str
    kinds: Mapping[str, int]
    sequence: str | None = None

    def decoded(self, feed: pa.Schema) -> pa.Schema:
        _require(feed, [self.op, *([self.sequence] if self.sequence else [])], repr(self))
        if self.sequence == self.op:
            raise ConfigurationError(f"{self!r}: one column cannot be both the operation and the sequence")
        if not (_is_text(feed.field(self.op).type) or pa.types.is_integer(feed.field(self.op).type)):
            raise ConfigurationError(
                f"{self!r}: the column '{self.op}' must be text or a whole number, not {feed.field(self.op).type}"
            )
        return pa.schema([field for field in feed if field.name != self.op])

    def decode(self, feed: pa.Table) -> Changes:
        kinds, problems = _kinds(one_chunk(feed[self.op]), self.kinds)
        for row in np.flatnonzero(kinds == _UNKNOWN):
            problems[int(row)] += f"; {self!r} knows {sorted(self.kinds)}"
        known = kinds != _UNKNOWN
        if self.sequence is not None:
            placed = _valid(one_chunk(feed[self.sequence]))
            problems |= {
                int(row): f"there is no '{self.sequence}'" for row in np.flatnonzero(known & ~placed)
            }
            known &= placed
        origins = np.flatnonzero(known)
        rows = feed.drop_columns([self.op]).take(pa.array(origins))
        return Changes(rows, kinds[origins], origins, problems)

    def __repr__(self) -> str:
        return f"ChangeFormat.columns(op={self.op!r})"


@dataclass(frozen=True, repr=False)
class DebeziumFormat(ChangeFormat):
    """See ``ChangeFormat.debezium``.

    Attributes:
        path: of the sequence, in the envelope.
        sequence_type: in JSON text.
        parts: paths of the fields that are the sequence together, where it is not one.
    """

    column: str | None = None
    schema: str | None = None
    sequence: str | None = None
    path: Path = ()
    sequence_type: str = ""
    parts: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.schema is not None:
            if self.column is None:
                raise ConfigurationError(
                    f"{self!r}: schema= is for envelopes that are JSON text: say in which column, column='value'"
                )
            if not isinstance(to_type(self.schema, parameter="schema"), StructType):
                raise ConfigurationError(f"{self!r}: schema must name columns, for example 'id bigint'")

    @property
    def _placed(self) -> StructType:
        """The type of the sequence in an envelope of JSON text, as if it were a row."""
        return StructType([self.sequence or ""], [to_type(self.sequence_type, parameter="sequence")])

    @property
    def _row(self) -> StructType:
        kind = to_type(self.schema, parameter="schema")
        assert isinstance(kind, StructType)
        return StructType(kind.names, kind.types)

    def decoded(self, feed: pa.Schema) -> pa.Schema:
        fields = feed
        if self.column is not None:
            _require(feed, [self.column], repr(self))
            held = feed.field(self.column).type
            if _is_text(held) or pa.types.is_binary(held):
                if self.schema is None:
                    raise ConfigurationError(
                        f"{self!r}: the column '{self.column}' is text, so the columns of its rows must be said: "
                        "schema='id bigint, name string'"
                    )
                return self._with_sequence(
                    list(self._row.arrow), self._placed.arrow[0].type if self.sequence else None
                )
            if not pa.types.is_struct(held):
                raise ConfigurationError(
                    f"{self!r}: the column '{self.column}' must be a struct or JSON text, not {held}"
                )
            fields = pa.schema(list(held))
        if self.schema is not None:
            raise ConfigurationError(
                f"{self!r}: the column '{self.column}' is a struct, whose rows have their types: leave schema out"
            )
        _require(fields, ["before", "after", "op"], repr(self))
        before, after = fields.field("before").type, fields.field("after").type
        if not pa.types.is_struct(after) or before != after:
            raise ConfigurationError(
                f"{self!r}: 'before' and 'after' must be structs of the same fields, not {before} and {after}"
            )
        return self._with_sequence(list(after), self._type_of_sequence(fields) if self.sequence else None)

    def _type_of_sequence(self, fields: pa.Schema) -> pa.DataType:
        if not self.parts:
            return self._type_of(self.path, fields)
        for path in self.parts:
            kind = self._type_of(path, fields)
            if not (pa.types.is_integer(kind) or _is_text(kind)):
                raise ConfigurationError(
                    f"{self!r}: '{'.'.join(path)}' is {kind}: the fields of a sequence are whole numbers, or text that "
                    "ends in one"
                )
        return pa.string()

    def _type_of(self, path: Path, fields: pa.Schema) -> pa.DataType:
        kind: pa.DataType = pa.struct(list(fields))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise ConfigurationError(f"{self!r}: the envelope has no field '{'.'.join(path)}'")
            kind = kind.field(name).type
        return kind

    def _with_sequence(self, columns: list[pa.Field], kind: pa.DataType | None) -> pa.Schema:
        if kind is None:
            return pa.schema(columns)
        if self.sequence in (field.name for field in columns):
            raise ConfigurationError(
                f"{self!r}: the rows have a column '{self.sequence}' of their own: leave it out of the schema"
            )
        return pa.schema([*columns, pa.field(self.sequence, kind)])

    def decode(self, feed: pa.Table) -> Changes:
        if self.schema is not None:
            texts = one_chunk(feed[self.column]).cast(pa.large_binary()).to_pylist()  # it may be no UTF-8
            before, after, ops, places, problems = _parsed(texts, self._row, self._place_reader())
        else:
            before, after, ops, places, problems = self._columns_of(feed)
        kinds, unknown = _kinds(ops, _DEBEZIUM)
        skipped = np.array([row in problems for row in range(len(ops))], bool)
        if self.column is not None:
            skipped |= pc.is_null(one_chunk(feed[self.column])).to_numpy(zero_copy_only=False)
        known = (kinds != _UNKNOWN) & ~skipped
        there = _valid(before), _valid(after)
        problems |= {row: why for row, why in unknown.items() if not skipped[row]}
        _check_rows(kinds, known, there, problems)
        if places is not None:
            absent = np.flatnonzero(known & ~_valid(places))
            named = " or no ".join(f"'{'.'.join(path)}'" for path in self.parts or [self.path])
            problems |= {int(row): f"there is no {named}" for row in absent if row not in problems}
        known &= np.array([row not in problems for row in range(len(ops))], bool)
        old = known & there[0] & ((kinds == _AFTER) | (kinds == _DELETE))
        new = known & (kinds != _DELETE)
        changes = _of_images(before, after, kinds, old, new, problems)
        if places is None:
            return changes
        return replace(
            changes, rows=changes.rows.append_column(self.sequence, places.take(pa.array(changes.origins)))
        )

    def _columns_of(self, feed: pa.Table) -> _Envelopes:
        def part(*path: str) -> pa.Array:
            if self.column is not None:
                return pc.struct_field(one_chunk(feed[self.column]), list(path))
            first = one_chunk(feed[path[0]])
            return pc.struct_field(first, list(path[1:])) if path[1:] else first

        places, problems = part(*self.path) if self.path else None, dict[int, str]()
        if self.parts:
            columns = [part(*path).to_pylist() for path in self.parts]
            places, problems = self._joined(zip(*columns, strict=True))
        return part("before"), part("after"), part("op"), places, problems

    def _joined(self, rows: Iterable[Sequence[Any]]) -> tuple[pa.Array, dict[int, str]]:
        problems, places = dict[int, str](), list[str | None]()
        for row, values in enumerate(rows):
            places.append(None)
            try:
                places[row] = _in_order(values, self.parts)
            except ValueTypeError as error:
                problems[row] = str(error)
        return pa.array(places, pa.string()), problems

    def _place_reader(self) -> PlaceReader | None:
        """What gives the sequence of an envelope of JSON text, and its type."""
        if self.sequence is None:
            return None
        placed = self._placed
        if self.parts:
            return lambda one: _in_order(
                [_field(one, path) for path in self.parts], self.parts
            ), placed.types[0]
        read = json_reader(placed, _RULES)
        return lambda one: _place_in(one, self.path, read), placed.types[0]

    def __repr__(self) -> str:
        named: Any = " ".join(filter(None, [".".join(self.path), self.sequence_type.replace("bigint", "")]))
        named = [".".join(path) for path in self.parts] or named
        given = {"column": self.column, "schema": self.schema, "sequence": named or None}
        said = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"ChangeFormat.debezium({said})"


def _kinds(ops: pa.Array, known: Mapping[str, int]) -> tuple[np.ndarray[Any, Any], dict[int, str]]:
    """Kind of each operation, and those that are unknown with the reason."""
    texts = ops.cast(pa.string())
    place = pc.index_in(texts, value_set=pa.array(list(known), pa.string()))
    kinds = np.array([*known.values(), _UNKNOWN], np.int8)[pc.fill_null(place, len(known)).to_numpy()]
    problems = {}
    for row in np.flatnonzero(kinds == _UNKNOWN):
        value = shown(ops, int(row))
        if value == "t" and known is _DEBEZIUM:
            problems[int(row)] = _TRUNCATE
        else:
            problems[int(row)] = "there is no operation" if value is None else f"unknown operation {value!r}"
    return kinds, problems


def _check_rows(
    kinds: np.ndarray[Any, Any],
    known: np.ndarray[Any, Any],
    there: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    problems: dict[int, str],
) -> None:
    """Find envelopes without the row that their operation needs."""
    for row in np.flatnonzero(known & (kinds == _DELETE) & ~there[0]):
        problems[int(row)] = (
            "a delete (op 'd') without the row before it, so which one is unknown: have the database log whole rows "
            "(of PostgreSQL REPLICA IDENTITY FULL)"
        )
    for row in np.flatnonzero(known & (kinds != _DELETE) & ~there[1]):
        problems[int(row)] = "an operation without the row after it ('after' is null)"


def _of_images(
    before: pa.Array,
    after: pa.Array,
    kinds: np.ndarray[Any, Any],
    old: np.ndarray[Any, Any],
    new: np.ndarray[Any, Any],
    problems: Mapping[int, str],
) -> Changes:
    """Changes of rows as they were and as they are, each where its mask says so."""
    count = len(kinds)
    both = pa.Table.from_arrays(
        pa.concat_arrays([before, after.cast(before.type)]).flatten(),
        schema=pa.schema(list(before.type)),
    )
    wanted = np.empty(2 * count, bool)
    wanted[0::2], wanted[1::2] = old, new
    chosen = np.flatnonzero(wanted)
    origins, is_new = chosen // 2, chosen % 2 == 1
    replaced = (kinds[origins] == _AFTER) & ~is_new
    of_each = np.where(replaced, _BEFORE, kinds[origins]).astype(np.int8)
    rows = both.take(pa.array(origins + count * is_new))
    return Changes(rows, of_each, origins, problems)


def _sequence_of(given: str | None) -> tuple[str | None, tuple[str, ...], str]:
    """Column, path and type of a sequence that was named, as in ``"source.change_lsn string"``."""
    if given is None:
        return None, (), ""
    named, _, kind = given.partition(" ")
    path = _path_of(named)
    if path in _WITHIN_MYSQL:
        raise ConfigurationError(
            f"ChangeFormat.debezium: sequence={given!r} does not order the changes of MySQL: positions begin again in "
            "each file of its log, whose names are not numbers. Give all three: sequence=['source.file', 'source.pos', "
            "'source.row']"
        )
    to_type(kind or "bigint", parameter="type of sequence")
    return path[-1], path, kind.strip() or "bigint"


def _path_of(named: str) -> Path:
    path = tuple(named.split(".")) if isinstance(named, str) else ()
    if not path or not all(path):
        raise ConfigurationError(
            f"ChangeFormat.debezium: sequence={named!r} names no field: write it as 'source.lsn' or 'ts_ms'"
        )
    return path


def _in_order(values: Sequence[Any], parts: Sequence[Path]) -> str | None:
    """Numbers, or texts that end in one, as one text whose order is theirs; None where one is missing.

    Example:
        >>> _in_order(["mysql-bin.1000000", 4], [("source", "file"), ("source", "pos")])
        '00000000000001000000.00000000000000000004'
    """
    if any(value is None for value in values):
        return None
    numbers = []
    for value, path in zip(values, parts, strict=True):
        is_number = isinstance(value, int | JsonNumber)
        digits = re.search(r"^[0-9]{1,20}$" if is_number else r"(?<![0-9])[0-9]{1,20}$", str(value))
        if digits is None:
            given = str(value) if is_number else repr(value)
            raise ValueTypeError(
                f"'{'.'.join(path)}': {given} is not a whole number of at least 0, and does not end in one"
            )
        numbers.append(digits[0].zfill(_DIGITS))
    return ".".join(numbers)


def _parsed(texts: list[bytes | None], kind: StructType, placed: PlaceReader | None) -> _Envelopes:
    before: list[Any] = []
    after: list[Any] = []
    ops: list[str | None] = []
    problems: dict[int, str] = {}
    places: list[Any] = []
    read, (place_of, place_type) = json_reader(kind, _RULES), placed or (None, None)
    for place, text in enumerate(texts):
        old = new = op = at = None
        try:
            if text is not None:
                envelope = _envelope(text)
                old, new, op = _images(envelope, read)
                at = None if place_of is None else place_of(envelope)
        except ValueTypeError as error:
            problems[place] = str(error)
        before.append(old)
        after.append(new)
        ops.append(op)
        places.append(at)
    return (
        kind.to_arrow(before, storage=False),
        kind.to_arrow(after, storage=False),
        pa.array(ops, pa.string()),
        None if place_type is None else place_type.to_arrow(places, storage=False),
        problems,
    )


def _envelope(text: bytes) -> dict[str, Any]:
    try:
        envelope = json_decoder().decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ValueTypeError(f"the envelope is not JSON: {error}") from None
    if isinstance(envelope, dict) and "op" not in envelope and isinstance(envelope.get("payload"), dict):
        envelope = envelope["payload"]
    if not isinstance(envelope, dict):
        raise ValueTypeError("the envelope is not a JSON object")
    return envelope


def _field(envelope: Any, path: Path) -> Any:
    for name in path:
        envelope = envelope.get(name) if isinstance(envelope, dict) else None
    return envelope


def _place_in(envelope: Any, path: Path, read: Reader) -> Any:
    try:
        (value,) = read({path[-1]: _field(envelope, path)})
    except ValueTypeError as error:
        raise ValueTypeError(f"'{'.'.join(path)}': {error}") from None
    return value


def _images(envelope: dict[str, Any], read: Reader) -> tuple[Any, Any, str | None]:
    images = []
    for name in ("before", "after"):
        try:
            images.append(read(envelope.get(name)))
        except ValueTypeError as error:
            raise ValueTypeError(f"'{name}': {error}") from None
    op = envelope.get("op")
    return images[0], images[1], op if op is None else str(op)


def _require(schema: pa.Schema, names: Iterable[str], what: str) -> None:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ConfigurationError(f"{what}: there is no column {missing} in the feed; it has {schema.names}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _valid(array: pa.Array) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return values
