"""``SqlRule``: a condition on single rows as SQL text, judged over Arrow columns by DuckDB, in this process.

The text is an expression of columns of one row, of parts that mean the same to Spark SQL and DuckDB. None of them looks
at other rows, at the clock or at chance: a row gets the same verdict in a replay, however batches are cut, and in
memory. Anything else is for a function over a ``pyarrow.Table``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.column_names import check_there

_ALLOWED = frozenset(
    (
        "COLUMN_REF", "VALUE_CONSTANT", "FUNCTION", "CASE_EXPR",
        "COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_LESSTHAN", "COMPARE_GREATERTHAN", "COMPARE_LESSTHANOREQUALTO",
        "COMPARE_GREATERTHANOREQUALTO", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM", "COMPARE_BETWEEN",
        "COMPARE_IN", "CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL",
        "OPERATOR_COALESCE",
    )
)  # fmt: skip
"""Parts of expressions, as DuckDB names them."""
_OPERATORS = frozenset(("+", "-", "*", "~~", "!~~"))
_FUNCTIONS = ("abs", "contains", "isnan", "length", "lower", "trim", "upper")
_OTHER_SYNTAX = re.compile(r"[\"`\\]")
"""Spark reads a text in double quotes as a value and DuckDB as a column; in ``LIKE``, only Spark has escapes."""
_LITERALS_OF_TIME = ("DATE", "TIMESTAMP")
_WAYS = (
    "A rule may use columns, literals, comparisons, BETWEEN, IN, LIKE, IS NULL, AND, OR, NOT, CASE, COALESCE, +, -, * "
    f"and the functions {', '.join(_FUNCTIONS)}. For more, give a function from a pyarrow.Table to a boolean column"
)


@dataclass(frozen=True)
class SqlRule:
    """A condition on the columns of a row.

    Attributes:
        columns: their names, as in the text.

    Example:
        >>> rule = SqlRule.of("amount > 0 AND kind IN ('a', 'b')")
        >>> rule.columns
        ('amount', 'kind')
        >>> rule.judged(pa.table({"amount": [1, -1, None], "kind": ["a", "a", "b"]})).to_pylist()
        [True, False, None]
    """

    text: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> SqlRule:
        """A text, checked. Raises ConfigurationError if it is not a condition on single rows."""
        if odd := _OTHER_SYNTAX.search(text):
            raise ConfigurationError(
                f"{text!r} holds {odd[0]!r}, which SQL engines read differently. {_WAYS}"
            )
        nodes = list(_walk(_parsed(text)))
        for node in nodes:
            _check(node, text)
        named = (node["column_names"][0] for node in nodes if node["type"] == "COLUMN_REF")
        return cls(text, tuple(dict.fromkeys(named)))

    def judged(self, rows: pa.Table) -> pa.ChunkedArray:
        """True, false or null for each row.

        Raises:
            ConfigurationError: the rows have no such columns, or of other types; it gives no truth value; or a value
                cannot be computed, for instance because a sum is too large.
        """
        import duckdb  # here: it takes a fifth of a second, and most jobs have no rule

        read = rows.select(self._columns_of(rows.column_names))
        with duckdb.connect(":memory:", config={"threads": 1}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET python_enable_replacements = false")
            connection.register("rows", read)
            connection.execute("SET enable_external_access = false")
            try:
                verdicts = connection.sql(f"SELECT ({self.text}) AS met FROM rows").to_arrow_table()["met"]
            except (duckdb.Error, pa.ArrowException) as error:
                raise ConfigurationError(
                    f"{self.text!r} cannot be judged: {str(error).splitlines()[0]}. {_WAYS}"
                ) from None
        if not pa.types.is_boolean(verdicts.type):
            raise ConfigurationError(
                f"{self.text!r} gives values of type {verdicts.type}, not true or false. {_WAYS}"
            )
        return verdicts

    def _columns_of(self, names: Sequence[str]) -> list[str]:
        """The columns of rows that the text means: the one of its name, or else the one that differs in case only."""
        lower: dict[str, list[str]] = {}
        for name in names:
            lower.setdefault(name.lower(), []).append(name)
        meant = {one: [one] if one in names else lower.get(one.lower(), []) for one in self.columns}
        check_there([one for one, of in meant.items() if not of], list(names), what=repr(self.text))
        several = [one for one in self.columns if len(lower[one.lower()]) > 1]
        if several:
            raise ConfigurationError(
                f"{self.text!r}: the columns {lower[several[0].lower()]} differ in case only, and SQL does not tell "
                "them apart: rename one in a transform before, or give a function from a pyarrow.Table to a boolean "
                "column"
            )
        # a rule without columns is judged for each row, too
        return list(dict.fromkeys(of[0] for of in meant.values())) or list(names[:1])


def _parsed(text: str) -> Mapping[str, Any]:
    """The one expression that a text is, as DuckDB's parser has it."""
    import duckdb  # here: see above

    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        query = f"SELECT ({text}) FROM rows"
        (shown,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone() or ("",)
    parsed = json.loads(shown)
    if parsed["error"]:
        raise ConfigurationError(f"{text!r} is not a SQL expression: {parsed['error_message']}. {_WAYS}")
    nodes = [one["node"] for one in parsed["statements"]]
    if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE" or len(nodes[0]["select_list"]) != 1:
        raise ConfigurationError(f"{text!r} is not one SQL expression. {_WAYS}")
    expression: Mapping[str, Any] = nodes[0]["select_list"][0]
    return expression


def _walk(part: Any) -> Iterator[Mapping[str, Any]]:
    """All parts of an expression that have a class, but for those inside of a literal of time."""
    if isinstance(part, list):
        for one in part:
            yield from _walk(one)
    elif isinstance(part, dict):
        if "class" in part:
            yield part
        if not _is_time(part):
            for one in part.values():
                yield from _walk(one)


def _is_time(part: Mapping[str, Any]) -> bool:
    """Whether a part is a literal like ``DATE '2026-01-31'``."""
    return (
        part.get("type") == "OPERATOR_CAST"
        and part["child"].get("type") == "VALUE_CONSTANT"
        and part["type_expr"].get("type_name") in _LITERALS_OF_TIME
    )


def _check(part: Mapping[str, Any], text: str) -> None:
    kind, name = part["type"], str(part.get("function_name", "")).lower()
    if kind == "FUNCTION":
        plain = not part["distinct"] and part["filter"] is None and not part["order_bys"]["orders"]
        if plain and name in (_OPERATORS if part["is_operator"] else _FUNCTIONS):
            return
        raise ConfigurationError(f"{text!r} uses {name!r}, which a rule by row cannot. {_WAYS}")
    if kind not in _ALLOWED and not _is_time(part):
        shown = str(kind).lower().replace("_", " ")
        raise ConfigurationError(f"{text!r} uses {shown!r}, which a rule by row cannot. {_WAYS}")
