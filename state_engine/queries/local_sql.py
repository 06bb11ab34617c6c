"""Answers to simple queries over the views of a job in this process, by DuckDB over pyarrow tables, without Spark.

The dialect of queries is Spark's, whoever answers. So DuckDB is asked only where both mean the same, see
``portable_sql``. For everything else there is no answer, and Spark gives it: for other functions, for types that the
two treat differently, for a state that is too large, and for a query with an error. Decision 0047.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.queries.portable_sql import OTHER_SYNTAX, Node, NotPortableError, PortableQuery
from state_engine.queries.state_views import SqlView

MOST_BYTES = 256 * 2**20
"""Of all files that an answer reads: what is folded within about a second or two, in memory."""


def answer(views: Sequence[SqlView], text: str, *, most_bytes: int = MOST_BYTES) -> pa.Table | None:
    """The answer to a query; None where Spark is to give it."""
    import duckdb  # here: it takes a fifth of a second, and nothing else needs it

    text = text.strip().removesuffix(";")
    if OTHER_SYNTAX.search(text):
        return None
    with duckdb.connect(":memory:") as connection:
        try:
            known = {view.name.lower(): view for view in views if view.table is not None}
            query = PortableQuery(_parsed(connection, text), known)
            used = [known[name] for name in query.tables]
            if sum(view.bytes() for view in used) > most_bytes:
                return None
            tables = {view.name: view.table() for view in used if view.table is not None}
            query.check_types([table.schema for table in tables.values()])
            rows = _asked(connection, text, tables)
            return _as_spark_gives_it(rows, query.names)
        except (NotPortableError, duckdb.Error, pa.ArrowInvalid):
            return None  # Spark answers, or says what is wrong


def _parsed(connection: Any, text: str) -> Node:
    (shown,) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
    parsed = json.loads(shown)
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise NotPortableError
    node: Node = parsed["statements"][0]["node"]
    return node


def _asked(connection: Any, text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    connection.execute("SET python_enable_replacements = false")
    for name, table in tables.items():
        connection.register(name, table)
    connection.execute("SET enable_external_access = false")
    return connection.sql(text).to_arrow_table()


def _as_spark_gives_it(rows: pa.Table, names: Sequence[str] | None) -> pa.Table:
    """Sums of integers are 64 bits wide, and columns without a name have the one that Spark gives them."""
    wide = [i for i, field in enumerate(rows.schema) if pa.types.is_decimal(field.type)]
    for i in wide:
        rows = rows.set_column(i, rows.schema[i].name, pc.cast(rows[i], pa.int64()))
    return rows if names is None else rows.rename_columns(list(names))
