"""Answers to queries over the views of a job, by Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.queries.safe_sql import FILES_AS_TABLES, check_safe
from state_engine.queries.state_views import SqlView
from state_engine.storage.java_gateway import java_session


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
    """All rows of the answer to a query."""
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
