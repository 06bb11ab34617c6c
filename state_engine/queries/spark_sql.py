"""Answers to queries over the views of a job, by Spark; and what such a query may use."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.queries.state_views import SqlView
from state_engine.storage.java_gateway import java_class, java_session, jvm_of


def query(
    session: SparkSession, views: Sequence[SqlView], text: str, *, unrestricted: bool = False
) -> DataFrame:
    """The answer to a query over views, of which only those are made that it names.

    Args:
        unrestricted: whether it may reach Java methods, files and programs.
    """
    text = text.strip().removesuffix(";")
    names = set(re.findall(r"\w+", text.lower()))
    names.update(name.replace("``", "`").lower() for name in re.findall(r"`((?:[^`]|``)+)`", text))
    try:
        parser = java_session(session).sessionState().sqlParser()
        plan = parser.parsePlan(text)
        _check_is_query(parser, text)
        if not unrestricted:
            check_safe(session, plan)
            session.conf.set(FILES_AS_TABLES, "false")
        for view in views:
            if view.name.lower() in names:
                view.frame(session).createOrReplaceTempView(view.sql_name)
        with quiet():
            return session.sql(text)
    except AnalysisException as error:
        raise ConfigurationError(_explained(error, views)) from None


def fetched(frame: DataFrame) -> pa.Table:
    try:
        with quiet():
            return frame.toArrow()
    except PySparkException as error:
        raise ConfigurationError(f"the query failed: {plain_message(error)}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from writing errors of queries to stderr, stack trace and all: they are raised as well."""
    # of PySpark's own kind: a plain one, made first, would be in its way for ever
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def plain_message(error: PySparkException) -> str:
    """What Spark says, without its plans and stack traces."""
    text = error.getMessage() or str(error)
    text = re.split(r";\n|\n\n== SQL|\n== SQL|\n\nJVM stacktrace", text)[0]
    return re.sub(r"^\[None\] |\s*SQLSTATE: \w+", "", text).strip()


def _check_is_query(parser: object, text: str) -> None:
    """Whether it can stand in parentheses: what changes anything cannot."""
    try:
        parser.parsePlan(f"SELECT * FROM (\n{text}\n)")  # type: ignore[attr-defined]
    except ParseException:
        raise ConfigurationError(
            f"only queries can be run over the views of a job (SELECT, WITH, VALUES): {text}"
        ) from None


def _explained(error: AnalysisException, views: Sequence[SqlView]) -> str:
    problem = plain_message(error)
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        name = (error.getMessageParameters() or {}).get("relationName", "").strip("`")
        problem = f"there is no view {name}; there are {', '.join(v.sql_name for v in views)}"
    return f"the query cannot be run: {problem}"


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
    """Refuse a query that reaches the JVM or files: who may ask need not be somebody who may run code.

    It may call functions that come with Spark, but for those that call Java methods or read files, and none of the
    catalog; it may name no files and no data sources as tables, and start no program. Names that are only made when the
    query runs (``IDENTIFIER``, ``EXECUTE IMMEDIATE``) are refused with them. Decision 0024.

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
