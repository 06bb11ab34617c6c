"""Answers without Spark to queries that mean the same to Spark and to DuckDB, as far as parts and types show.

The parts are a list of what is known to be the same. A part that is not on it, or has an option that is not known here,
is not portable, so a newer parser makes fewer queries portable, not wrong ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.queries.state_views import SqlView

Node = Mapping[str, Any]
"""A part of a query, as DuckDB's ``json_serialize_sql`` gives it."""

OTHER_SYNTAX = re.compile(r"[\"\\]|\b\d+[A-Za-z_]")
"""Texts in double quotes, escapes and numbers with suffixes are read differently, or as something else."""
_EMPTY: tuple[Any, ...] = (None, "", False, [], {"map": []}, {"type": "ORDER_MODIFIER", "orders": []})
_NO_PART = frozenset(
    ("type", "class", "alias", "query_location", "query_location_length", "qualified_name", "named_param_map")
)
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "aggregate_handling": ("STANDARD_HANDLING",),
    "join_type": ("INNER", "LEFT"),
    "ref_type": ("REGULAR", "CROSS"),
    "is_implicit": (True,),
    "nearest_count": (1,),
    "nearest_order_type": ("ASCENDING",),
    "limit_type": ("ROW_COUNT",),
    "materialized": ("CTE_MATERIALIZE_DEFAULT",),
    "null_order": ("ORDER_DEFAULT", "NULLS FIRST", "NULLS LAST"),
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "SELECT_NODE": (
        "modifiers", "cte_map", "select_list", "from_table", "where_clause", "group_expressions", "having",
    ),
    "ORDER_MODIFIER": ("orders",),
    "LIMIT_MODIFIER": ("limit", "offset"),
    "DISTINCT_MODIFIER": (),
    "BASE_TABLE": (),
    "SUBQUERY": ("subquery",),
    "JOIN": ("left", "right", "condition"),
    "STAR": (),
    "COLUMN_REF": (),
    "VALUE_CONSTANT": (),
    "FUNCTION": ("arguments",),
    "CASE_EXPR": ("case_checks", "else_expr"),
    "COMPARE_BETWEEN": ("input", "lower", "upper"),
    "CONJUNCTION_AND": ("children",),
    "CONJUNCTION_OR": ("children",),
    "COMPARE_IN": ("children",),
    "OPERATOR_NOT": ("children",),
    "OPERATOR_IS_NULL": ("children",),
    "OPERATOR_IS_NOT_NULL": ("children",),
    "OPERATOR_COALESCE": ("children",),
    **dict.fromkeys(
        (
            "COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_LESSTHAN", "COMPARE_GREATERTHAN",
            "COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO",
        ),
        ("left", "right"),
    ),
    # an element of a list of another part
    "": ("expression", "when_expr", "then_expr", "node"),
    "ASCENDING": ("expression",),
    "DESCENDING": ("expression",),
    "ORDER_DEFAULT": ("expression",),
}  # fmt: skip
_READ_HERE: Mapping[str, tuple[str, ...]] = {
    "SELECT_NODE": ("group_sets",),
    "BASE_TABLE": ("table_name",),
    "COLUMN_REF": ("column_names",),
    "VALUE_CONSTANT": ("literal",),
    "FUNCTION": ("function_name", "distinct", "is_operator"),
    "": ("name",),
    **dict.fromkeys(("ASCENDING", "DESCENDING", "ORDER_DEFAULT"), ("null_order",)),
}
_AGGREGATES = frozenset(("count", "count_star", "sum", "min", "max", "avg"))
_OPERATORS = frozenset(("+", "-", "*", "~~", "!~~"))
_LITERALS = frozenset(("INTEGER", "STRING", "BOOLEAN", "NULL_LITERAL"))
_MOST = 2**63 - 1


class NotPortableError(Exception):
    """The two may mean something else by this query."""


class PortableQuery:
    """A query by which both engines mean the same.

    Args:
        tables: names of those that it may read.

    Attributes:
        names: of the columns of the answer, as Spark has them; None where they are those of a table.
    """

    def __init__(self, node: Node, tables: Collection[str]) -> None:
        self._tables = {name.lower() for name in tables}
        self._nodes = list(_walk(node))
        self._aliases = {one["key"].lower() for n in self._nodes for one in _entries_of(n)}
        self._has_join = any(n.get("type") == "JOIN" for n in self._nodes)
        for one in self._nodes:
            self._check(one)
        self.names = self._names(node)

    @property
    def tables(self) -> list[str]:
        """Those that it reads, in lower case."""
        named = {n["table_name"].lower() for n in self._nodes if n.get("type") == "BASE_TABLE"}
        return sorted(named - self._aliases)

    def check_types(self, schemas: Sequence[pa.Schema]) -> None:
        """Whether all columns are of types that both treat alike; what has parts may be shown, and taken apart."""
        leaves = [one for schema in schemas for field in schema for one in _leaves(field)]
        if any(pa.types.is_decimal(kind) or pa.types.is_float32(kind) for _, kind in leaves):
            raise NotPortableError
        nested = {name.lower() for name, kind in leaves if pa.types.is_nested(kind)}
        shown = [one for n in self._nodes if n.get("type") == "SELECT_NODE" for one in n["select_list"]]
        used = [n for n in self._nodes if n.get("type") == "COLUMN_REF" and _last(n) in nested]
        if not all(any(one is item for item in shown) for one in used):
            raise NotPortableError
        compares_all = any(n.get("type") == "DISTINCT_MODIFIER" for n in self._nodes)
        if compares_all and (used or (nested and any(item["type"] == "STAR" for item in shown))):
            raise NotPortableError

    def _check(self, node: Node) -> None:
        kind = node.get("type", "")
        if kind not in _PARTS:
            raise NotPortableError
        known = _NO_PART.union(_PARTS[kind], _READ_HERE.get(kind, ()))
        for name, value in node.items():
            if name not in known and value not in _EMPTY and value not in _DEFAULTS.get(name, ()):
                raise NotPortableError
        if not self._is_fine(kind, node):
            raise NotPortableError

    def _is_fine(self, kind: str, node: Node) -> bool:
        match kind:
            case "BASE_TABLE":
                return node["table_name"].lower() in self._tables | self._aliases
            case "STAR":
                return not self._has_join  # names would come twice
            case "SUBQUERY":
                return "class" not in node  # not one that stands for a value
            case "SELECT_NODE":
                return node["group_sets"] in ([], [list(range(len(node["group_expressions"])))])
            case "VALUE_CONSTANT":
                return _is_plain(node["literal"])
            case "FUNCTION":
                return node["function_name"].lower() in (_OPERATORS if node["is_operator"] else _AGGREGATES)
            case _:
                return True

    def _names(self, node: Node) -> list[str] | None:
        items = node["select_list"]
        if any(item["type"] == "STAR" for item in items):
            if len(items) > 1:
                raise NotPortableError
            return None
        return [_name_of(item) for item in items]


def _name_of(item: Node) -> str:
    if item["alias"]:
        return str(item["alias"])
    if item["type"] == "COLUMN_REF":
        return str(item["column_names"][-1])
    if item["type"] == "FUNCTION" and item["function_name"] == "count_star":
        return "count(1)"
    arguments = [one["expression"] for one in item.get("arguments", ())]
    is_plain = item["type"] == "FUNCTION" and not item["is_operator"] and not item["distinct"]
    columns = [one["column_names"] for one in arguments if one["type"] == "COLUMN_REF"]
    if is_plain and len(arguments) == len(columns) == 1 and len(columns[0]) == 1:
        return f"{item['function_name']}({columns[0][0]})"
    raise NotPortableError


def _last(column: Node) -> str:
    return str(column["column_names"][-1]).lower()


def _is_plain(literal: Node) -> bool:
    return literal["kind"] in _LITERALS and (literal["kind"] != "INTEGER" or int(literal["text"]) <= _MOST)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for name in _PARTS.get(node.get("type", ""), ()):
        value = node.get(name)
        if name == "cte_map":
            for one in _entries_of(node):
                if {k for k, v in one["value"].items() if v not in _EMPTY} - {"query_node", "materialized"}:
                    raise NotPortableError
                yield from _walk(one["value"]["query_node"])
        elif isinstance(value, list):
            for one in value:
                yield from _walk(one)
        elif isinstance(value, dict):
            yield from _walk(value)


def _entries_of(node: Node) -> list[Node]:
    entries: list[Node] = node.get("cte_map", {"map": []})["map"]
    return entries


def _leaves(field: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    yield field.name, field.type
    for i in range(field.type.num_fields):
        yield from _leaves(field.type.field(i))


MOST_BYTES = 256 * 2**20
"""Of all files that an answer reads: what is folded within about a second or two, in memory."""


def answer(views: Sequence[SqlView], text: str, *, most_bytes: int = MOST_BYTES) -> pa.Table | None:
    """The answer to a query, by DuckDB over pyarrow tables; None where Spark is to give it.

    Spark gives it for other functions, for types that the two treat differently, for a state that is too large, and for
    a query with an error. Decision 0047.
    """
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
