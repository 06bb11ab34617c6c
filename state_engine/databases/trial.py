"""``Trial``: an empty copy of a database table, on which rows are tried before they are staged for good.

CHECK constraints are text in the database's own language, so the database judges them. The copy is temporary and seen
by its own connection only. It has the columns, defaults and CHECK constraints of the table; no unique key, foreign key
or trigger, which depend on other rows: those are not a matter of a single row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError

from state_engine.databases.columns import rules_of, sql_checks, table_for
from state_engine.databases.rows import BATCH_ROWS, driver_values
from state_engine.databases.target import SqlTarget
from state_engine.sinks.row_rules import refused_rows

_COPY = "_statelake_trial"


@dataclass(frozen=True)
class Trial:
    """One copy, over one connection."""

    connection: sa.Connection
    target: SqlTarget

    @staticmethod
    def of(connection: sa.Connection, target: SqlTarget) -> Trial:
        if connection.dialect.name == "sqlite":
            # under its own name, which is what its text says
            text = connection.execute(
                sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"),
                {"name": target.table},
            ).scalar_one()
            connection.exec_driver_sql(
                re.sub(r"^\s*CREATE\s+TABLE", "CREATE TEMP TABLE", text, flags=re.IGNORECASE)
            )
            return Trial(connection, replace(target, schema="temp"))
        quote = connection.dialect.identifier_preparer.quote
        original = ".".join(quote(name) for name in (target.schema, target.table) if name)
        parts = "INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY"
        connection.exec_driver_sql(f"CREATE TEMP TABLE {_COPY} (LIKE {original} {parts})")
        return Trial(connection, replace(target, table=_COPY, schema=None))

    def broken(self, batches: Iterable[pa.RecordBatch]) -> dict[int, str]:
        """Places of the rows that break a constraint, in the order of the batches, and which one."""
        broken: dict[int, str] = {}
        first = 0
        for batch in batches:
            rows = driver_values(batch, self.connection.dialect.name).to_pylist()
            self._try(self._insert(batch.schema), rows, first, broken)
            first += batch.num_rows
        return broken

    def drop(self) -> None:
        self.connection.rollback()
        name = self.connection.dialect.identifier_preparer.quote(self.target.table)
        schema = f"{self.target.schema}." if self.target.schema else ""
        self.connection.exec_driver_sql(f"DROP TABLE IF EXISTS {schema}{name}")
        self.connection.commit()

    def _try(self, insert: sa.Insert, rows: list[dict[str, Any]], first: int, broken: dict[int, str]) -> None:
        """By halves, where the database refuses some: almost always there is none."""
        try:
            with self.connection.begin_nested():
                self.connection.execute(insert, rows)
        except (IntegrityError, DataError) as error:
            if len(rows) == 1:
                broken[first] = _says(error)
                return
            half = len(rows) // 2
            self._try(insert, rows[:half], first, broken)
            self._try(insert, rows[half:], first + half, broken)

    def _insert(self, schema: pa.Schema) -> sa.Insert:
        dialect = self.connection.dialect.name
        insert = sa.insert(table_for(self.target, schema, dialect))
        # two rows of one key are no matter here
        return insert.prefix_with("OR REPLACE") if dialect == "sqlite" else insert


def has_checks(connection: sa.Connection, target: SqlTarget) -> bool:
    inspector = sa.inspect(connection)
    there = inspector.has_table(target.table, target.schema) and bool(sql_checks(target, inspector))
    connection.rollback()
    return there


def refused_by(connection: sa.Connection, target: SqlTarget, rows: pa.Table) -> dict[int, str]:
    """Rows that an existing table refuses for what they hold, in order, and why.

    Args:
        rows: with columns of the table; those that it does not have are not looked at.
    """
    refused = refused_rows(rules_of(connection, target, rows.schema), rows)
    inspector = sa.inspect(connection)
    there = {column["name"] for column in inspector.get_columns(target.table, target.schema)}
    places = [row for row in range(rows.num_rows) if row not in refused]
    tried = rows.select([name for name in rows.column_names if name in there]).take(places)
    trial = Trial.of(connection, target)
    try:
        broken = trial.broken(tried.combine_chunks().to_batches(BATCH_ROWS))
    finally:
        trial.drop()
    return dict(sorted({**refused, **{places[at]: why for at, why in broken.items()}}.items()))


def _says(error: IntegrityError | DataError) -> str:
    """What the database says of a row, without the name of the copy."""
    diagnosis = getattr(error.orig, "diag", None)
    if diagnosis is not None and diagnosis.constraint_name:
        return f"it breaks the constraint {diagnosis.constraint_name}"
    return f"the database says: {str(error.orig).splitlines()[0]}"
