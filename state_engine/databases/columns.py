"""Columns of a database table for the columns of outputs and states: which type holds which, and what is refused.

| output | PostgreSQL | SQLite |
|---|---|---|
| tinyint … bigint | bigint | bigint |
| float, double | double precision | double (NaN becomes null: SQLite has none) |
| decimal(p, s) | numeric(p, s) | text, so that no digit is lost |
| string, binary, boolean, date | text, bytea, boolean, date | text, blob, boolean, date |
| timestamp | timestamp with time zone | datetime in UTC |
| timestamp_ntz | timestamp | datetime |

An existing table may have narrower columns, where every value of the output fits, and further columns that fill
themselves. Lists, maps and structs have no counterpart.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from state_engine.core.errors import SinkError
from state_engine.databases.target import SqlTarget, check_names
from state_engine.sinks.row_rules import DecodedByPython, Longest, NotNull, RowRule, Without

_SQLITE = "sqlite"
_MICROSECONDS = 6
"""Digits of a second that a timestamp has."""

CHECKPOINT_ID = "_checkpoint_id"
"""The column of a table that shows a keyed state: the checkpoint that wrote a row. No sink writes to such a table."""


def sql_type(kind: pa.DataType, dialect: str) -> sa.types.TypeEngine[Any] | None:
    """The type of a column that holds every value of an Arrow type; None where there is none.

    Example:
        >>> sql_type(pa.int32(), "sqlite"), sql_type(pa.list_(pa.int32()), "sqlite")
        (BigInteger(), None)
    """
    if pa.types.is_decimal(kind):
        return sa.Text() if dialect == _SQLITE else sa.Numeric(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None and dialect != _SQLITE)
    simple: list[tuple[Any, sa.types.TypeEngine[Any]]] = [
        (pa.types.is_boolean, sa.Boolean()),
        (pa.types.is_integer, sa.BigInteger()),
        (pa.types.is_floating, sa.Double()),
        (pa.types.is_string, sa.Text()),
        (pa.types.is_binary, sa.LargeBinary()),
        (pa.types.is_date, sa.Date()),
    ]
    return next((made for test, made in simple if test(kind)), None)


def table_for(
    target: SqlTarget,
    schema: pa.Schema,
    dialect: str,
    *,
    ways_out: str = "turn it into text (to_json in a transform), take it apart, or leave it out",
) -> sa.Table:
    """The table as it is made where there is none.

    Args:
        ways_out: what to do about a column that has no counterpart, for the message.
    """
    check_names(target, schema.names, what=target.shown)
    kinds = {f.name: sql_type(f.type, dialect) for f in schema}
    bad = [name for name, kind in kinds.items() if kind is None]
    if bad:
        raise SinkError(
            f"{target.shown}: a database column cannot hold {bad[0]} {schema.field(bad[0]).type}; {ways_out}"
        )
    columns = [sa.Column(n, k, primary_key=n in target.key, autoincrement=False) for n, k in kinds.items()]
    return sa.Table(target.table, sa.MetaData(), *columns, schema=target.schema)


def check_table(
    target: SqlTarget,
    schema: pa.Schema,
    inspector: sa.Inspector,
    *,
    ways_out: str = "Change output_type or the table, or name another one, which is then made",
) -> None:
    """Refuse an existing table that cannot take every row of the output."""
    if target.table in inspector.get_view_names(target.schema):
        raise SinkError(f"{target.shown} is a view: name a table")
    dialect = inspector.dialect.name
    columns = {c["name"]: c for c in inspector.get_columns(target.table, target.schema)}
    problems = []
    for one in schema:
        column, wanted = columns.get(one.name), sql_type(one.type, dialect)
        if column is None:
            problems.append(f"has no column '{one.name}'" + (", see lineage=" * (one.name == "_write_id")))
        elif wanted is None or not _holds(column["type"], one.type, dialect):
            problems.append(
                f"has {one.name} {_type_text(column['type'])}, which does not hold every {one.type}"
            )
        elif column.get("computed") or ((identity := column.get("identity")) and identity.get("always")):
            problems.append(f"gives values to '{one.name}' itself: leave it out of the output")
    if CHECKPOINT_ID in columns and CHECKPOINT_ID not in schema.names:
        problems.append(
            f"shows a keyed state, as its column {CHECKPOINT_ID} says, and only its job writes to it"
        )
    for name, column in columns.items():
        fills = (
            column["nullable"] or column.get("default") or column.get("identity") or column.get("computed")
        )
        if name not in schema.names and not (fills or column.get("autoincrement") is True):
            problems.append(f"must be given a value of '{name}', which the output does not have")
    if target.key and set(target.key) not in _unique(target, inspector):
        problems.append(f"has no primary key or unique constraint of exactly {list(target.key)}")
    if problems:
        raise SinkError(f"{target.shown} cannot take these rows: it {'; it '.join(problems)}. {ways_out}")


def rules_of(connection: sa.Connection, target: SqlTarget, schema: pa.Schema) -> list[RowRule]:
    """Rules of a table, or of the one that is made where there is none, for the rows that it is offered.

    Those that Arrow can judge: see ``sql_checks`` for the others.
    """
    inspector, is_sqlite = sa.inspect(connection), connection.dialect.name == _SQLITE
    rules: list[RowRule] = [DecodedByPython()]
    if not is_sqlite:
        rules += [Without(field.name, "\0") for field in schema if pa.types.is_string(field.type)]
    if inspector.has_table(target.table, target.schema):
        own = inspector.get_columns(target.table, target.schema)
        numbered = inspector.get_pk_constraint(target.table, target.schema)["constrained_columns"]
        for column in (one for one in own if one["name"] in schema.names):
            name, kind = column["name"], column["type"]
            numbers_itself = is_sqlite and numbered == [name] and isinstance(kind, sa.Integer)
            if not column["nullable"] and not numbers_itself:
                rules.append(NotNull(name, nan=is_sqlite and pa.types.is_floating(schema.field(name).type)))
            if not is_sqlite and isinstance(kind, sa.String) and kind.length is not None:
                rules.append(Longest(name, kind.length))
    connection.rollback()
    return rules


def sql_checks(target: SqlTarget, inspector: sa.Inspector) -> list[tuple[str, str]]:
    checks = inspector.get_check_constraints(target.table, target.schema)
    return [(str(one["name"] or one["sqltext"]), str(one["sqltext"])) for one in checks]


def _holds(column: Any, kind: pa.DataType, dialect: str) -> bool:
    """Whether a column of a database holds every value of an Arrow type."""
    if pa.types.is_boolean(kind):
        return isinstance(column, sa.Boolean)
    if pa.types.is_integer(kind):
        return isinstance(column, sa.Integer) and (dialect == _SQLITE or _bits(column) >= kind.bit_width)
    if pa.types.is_floating(kind):
        narrow = isinstance(column, sa.REAL) and dialect != _SQLITE
        return isinstance(column, sa.Float) and (kind.bit_width <= 32 or not narrow)
    if pa.types.is_decimal(kind) and dialect != _SQLITE:
        return isinstance(column, sa.Numeric) and _digits(column, kind)
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        return isinstance(column, sa.String) and not isinstance(column, sa.Enum)
    if pa.types.is_binary(kind):
        return isinstance(column, sa.LargeBinary | sa.types._Binary)
    if pa.types.is_date(kind):
        return isinstance(column, sa.Date)
    if not isinstance(column, sa.DateTime) or dialect == _SQLITE:
        return isinstance(column, sa.DateTime)
    digits = getattr(column, "precision", None)
    return column.timezone == (kind.tz is not None) and (digits is None or digits >= _MICROSECONDS)


def _type_text(column: Any) -> str:
    if isinstance(column, sa.Enum):
        return f"{column.name}, an enum of {column.enums}"
    return str(column)


def _bits(column: Any) -> int:
    if isinstance(column, sa.SmallInteger):
        return 16
    return 64 if isinstance(column, sa.BigInteger) else 32


def _digits(column: Any, kind: pa.DataType) -> bool:
    if column.precision is None:
        return True
    scale = column.scale or 0
    return bool(scale >= kind.scale and column.precision - scale >= kind.precision - kind.scale)


def _unique(target: SqlTarget, inspector: sa.Inspector) -> list[set[str | None]]:
    """The sets of columns of which a table holds each combination once; an expression in an index is None."""
    at = (target.table, target.schema)
    whole = [
        index["column_names"]
        for index in inspector.get_indexes(*at)
        if index["unique"] and not any("where" in option for option in index.get("dialect_options", {}))
    ]
    constraints = [one["column_names"] for one in inspector.get_unique_constraints(*at)]
    primary = inspector.get_pk_constraint(*at)["constrained_columns"]
    keys: list[Any] = [primary, *constraints, *whole]
    return [set(names) for names in keys]
