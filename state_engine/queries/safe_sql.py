"""What a query over the views of a job may use: views, tables of the catalog and Spark's own functions.

Whoever may ask a question need not be somebody who may run code or read files as the driver does. So a query is taken
apart before Spark looks anything up: it may call functions that come with Spark, but for those that call Java methods
or read files, and no functions of the catalog; it may name no files and no data sources as tables; it may start no
program. Names that are only made when the query runs (``IDENTIFIER``, ``EXECUTE IMMEDIATE``) are refused with them.
Decision 0024.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.storage.java_gateway import java_class, jvm_of

FILES_AS_TABLES = "spark.sql.runSQLOnFiles"
"""Spark's own switch for tables such as ``parquet.`/path` ``, which Delta honours, too."""

_REACHING_OUT = frozenset(("reflect", "java_method", "try_reflect", "from_protobuf", "to_protobuf"))
"""Functions that call Java methods by name, or read a file that an argument names."""
_TABLE_FUNCTIONS = frozenset(
    (
        "range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack",
        "json_tuple", "variant_explode", "variant_explode_outer", "collations", "sql_keywords",
    )
)  # fmt: skip
_BUILT_IN = ("builtin", "system.builtin")
_REFUSED = {
    "ScriptTransformation": "it starts a program (TRANSFORM … USING)",
    "UnresolvedIdentifier": "a name in it is only made when it runs (IDENTIFIER)",
    "PlanWithUnresolvedIdentifier": "a name in it is only made when it runs (IDENTIFIER)",
    "ExpressionWithUnresolvedIdentifier": "a name in it is only made when it runs (IDENTIFIER)",
    "ExecuteImmediateQuery": "its statement is known only when it runs (EXECUTE IMMEDIATE)",
    "UnresolvedExecuteImmediate": "its statement is known only when it runs (EXECUTE IMMEDIATE)",
}


def check_safe(session: SparkSession, plan: Any) -> None:
    """Refuse a query that reaches the JVM or files.

    Args:
        plan: as parsed, in the JVM; nothing of it was looked up.
    """
    known = _functions(session)
    for node in _nodes(session, plan):
        kind = node.getClass().getSimpleName()
        if (why := _why_refused(kind, node, known)) is not None:
            raise ConfigurationError(
                f"the query is not run: {why}. Over the views of a job, Spark's own functions and the tables of the "
                "catalog can be used, nothing that reaches Java methods, files or programs. If the query is your "
                "own, allow that: engine.sql(…, unrestricted=True), or statelake sql --unrestricted"
            )


def _why_refused(kind: str, node: Any, known: frozenset[str]) -> str | None:
    if kind in _REFUSED:
        return _REFUSED[kind]
    if kind == "UnresolvedRelation":
        parts = _texts(node.multipartIdentifier())
        return f"{'.'.join(parts)} is a file, not a view" if "/" in parts[-1] or "\\" in parts[-1] else None
    if kind == "UnresolvedFunction":
        return _function(_texts(node.nameParts()), known)
    if kind == "UnresolvedGenerator":
        return _function([str(node.name().funcName())], known)
    if kind in ("UnresolvedTableValuedFunction", "UnresolvedTVFAliases"):
        name = _texts(node.name())[-1].lower()
        return None if name in _TABLE_FUNCTIONS else f"{name} is not a table function that only reads views"
    return None


def _function(parts: list[str], known: frozenset[str]) -> str | None:
    *above, name = (part.lower() for part in parts)
    if name in _REACHING_OUT:
        return f"the function {name} calls Java methods, or reads files"
    if name not in known or (above and ".".join(above) not in _BUILT_IN):
        return f"{'.'.join(parts)} is not a function of Spark itself"
    return None


_KNOWN: list[frozenset[str]] = []


def _functions(session: SparkSession) -> frozenset[str]:
    """Names of the functions that come with Spark; they are those of the one Spark that this process has."""
    if not _KNOWN:
        _KNOWN.append(frozenset(row[0].lower() for row in session.sql("SHOW SYSTEM FUNCTIONS").collect()))
    return _KNOWN[0]


def _nodes(session: SparkSession, plan: Any) -> Iterator[Any]:
    """All plans and expressions of a parsed query, those of subqueries and of WITH included."""
    class_of = java_class(jvm_of(session), "java.lang.Class").forName
    catalyst = "org.apache.spark.sql.catalyst"
    is_plan = class_of(f"{catalyst}.plans.QueryPlan").isInstance
    has_plan = class_of(f"{catalyst}.expressions.PlanExpression").isInstance
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _elements(node.children()) + _elements(node.innerChildren())
        if is_plan(node):
            waiting += _elements(node.expressions())
        elif has_plan(node):
            waiting.append(node.plan())


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _texts(sequence: Any) -> list[str]:
    return [str(part) for part in _elements(sequence)]
