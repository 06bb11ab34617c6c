"""``EngineSession``: the Spark session that the engine works in, beside the session of its user.

It shares the Spark context with the user's session, sees its views, functions and catalogs, and has options of its own:
those that may change a row are the engine's (``OPTIONS``) or Spark's defaults, and only those of places and speed are
taken over. So rows do not depend on the session that an engine was given, and no option of that session ever changes.
DataFrames that are handed out go back to the user's session, see ``moved``. Decision 0096.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.conversion import SparkConversionMixin

from state_engine.core.errors import ConfigurationError
from state_engine.spark.frame_code import look_at_functions
from state_engine.spark.placement import Limits, limits_of
from state_engine.spark.spark_names import T
from state_engine.storage.java_gateway import (
    analyzed_plan,
    frame_of,
    java_class,
    java_session,
    jvm_of,
    session_attributes,
)

OPTIONS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    **{
        f"spark.sql.{files}.{kind}RebaseModeIn{way}": "CORRECTED"
        for files, kind in (("parquet", "datetime"), ("parquet", "int96"), ("avro", "datetime"))
        for way in ("Read", "Write")
    },
    # Adaptive execution runs each stage of a shuffle as a job of its own and plans anew in between: that costs more
    # than a micro-batch gains.
    "spark.sql.adaptive.enabled": "false",
    # a subtask holds its rows anyway
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Spark's 4 MiB would give every 32 small files a task of their own
    "spark.sql.files.openCostInBytes": "262144",
}
"""Options of the engine's session, whatever the user's are."""

TAKEN_OVER = tuple(
    f"spark.sql.{name}"
    for name in (
        "catalog", "defaultCatalog", "warehouse.dir", "extensions", "hive.", "artifact.",
        "shuffle.", "files.max", "files.min", "sources.parallelPartitionDiscovery.",
        "autoBroadcastJoinThreshold", "broadcastTimeout", "codegen.", "inMemoryColumnarStorage.",
        "windowExec.", "sortMergeJoinExec.", "cartesianProductExec.", "objectHashAggregate.",
        "parquet.fieldId.", "parquet.compression.", "ui.", "redaction.", "debug.", "maxPlanStringLength",
    )
)  # fmt: skip
"""What the names of Spark's own SQL options begin with that are taken over: places and speed, and no row depends on
them. Options of others (Delta's, a catalog's) are taken over, too."""

_SPEED = (
    "spark.sql.adaptive.", "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.files.openCostInBytes",
)  # fmt: skip
"""Of ``OPTIONS``, those that no row depends on."""

_CREATING = threading.Lock()


class EngineSession(SparkSession):
    """A session beside the user's.

    Args:
        user: whose context, views, functions, catalogs and limits of placement it has.
    """

    def __init__(self, user: SparkSession) -> None:
        # not the constructor of Spark's class, which has RDD.toDF of the whole process make frames of this session
        self.user = user
        self.renew()

    def renew(self) -> None:
        """Take over the views, functions, catalogs and options that the user's session has by now."""
        java = java_session(self.user).cloneSession()
        conf = java.sessionState().conf()
        for name in str(conf.getAllConfs().keys().mkString("\n")).split("\n"):
            if name.startswith("spark.sql.") and not name.startswith(TAKEN_OVER) and conf.isModifiable(name):
                conf.unsetConf(name)
        for name, value in OPTIONS.items():
            conf.setConfString(name, value)
        _same_catalog(java_session(self.user), java)
        # and nothing that PySpark keeps in an attribute of the session before
        self.__dict__ = session_attributes(self.user, java) | {"user": self.user}
        look_at_functions(self)

    @property
    def limits(self) -> Limits:
        return limits_of(self.user)

    def newSession(self) -> EngineSession:
        """Another one of the engine's, with the same options."""
        return EngineSession(self.user)

    def createDataFrame(self, data: Any, schema: Any = None, *args: Any, **options: Any) -> DataFrame:  # type: ignore[override]
        """As PySpark's, which besides makes the session the active one of the whole process."""
        if isinstance(data, pa.Table):
            return SparkConversionMixin.createDataFrame(self, data, schema)
        if isinstance(data, list) and isinstance(schema, T.StructType):
            return self._create_dataframe(data, schema, None, True)
        with _CREATING:  # it may need anything of PySpark's own method
            before = SparkSession._activeSession
            try:
                return super().createDataFrame(data, schema, *args, **options)
            finally:
                SparkSession._activeSession = before

    def differing_options(self) -> dict[str, str]:
        """Options of the user's session that may change a row, where this session has other values."""
        java = java_session(self.user).sessionState().conf()
        names = set(str(java.getAllConfs().keys().mkString("\n")).split("\n")) | set(OPTIONS)
        judged = sorted(
            n for n in names if n.startswith("spark.sql.") and not n.startswith((*TAKEN_OVER, *_SPEED))
        )
        theirs = {n: java.getConfString(n) for n in judged if java.isModifiable(n)}
        own = java_session(self).sessionState().conf()
        return {n: str(value) for n, value in theirs.items() if value != own.getConfString(n)}


def _same_catalog(theirs: Any, own: Any) -> None:
    """Have a session look up tables where another one does: it has the options of its catalogs, and its database."""
    used, made = (session.sessionState().catalogManager() for session in (theirs, own))
    name = used.currentCatalog().name()
    if name != made.currentCatalog().name():
        made.setCurrentCatalog(name)
        made.setCurrentNamespace(used.currentNamespace())


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows, as a DataFrame of another session: what is made of it goes by the options of that one."""
    return frame_of(analyzed_plan(frame), session)


def handed_out(frame: DataFrame) -> DataFrame:
    """A DataFrame of the engine's session as one of the user's, by whose options it is shown and gone on with."""
    session = frame.sparkSession
    return moved(frame, session.user) if isinstance(session, EngineSession) else frame


def taken_in(frame: DataFrame, session: SparkSession) -> DataFrame:
    """A DataFrame that the user gave, as one of the engine's session."""
    is_own = frame.sparkSession is session or not isinstance(session, EngineSession)
    return frame if is_own else moved(frame, session)


def own_frame(frame: DataFrame, session: SparkSession, *, what: str) -> DataFrame:
    """A DataFrame that a function made of one of the engine's, as one of the engine's session."""
    if not isinstance(session, EngineSession) or frame.sparkSession is session:
        return frame
    differing = session.differing_options()
    if differing:
        shown = ", ".join(f"{name}={value}" for name, value in differing.items())
        raise ConfigurationError(
            f"{what} returned a DataFrame of your own Spark session, whose options may give other rows than those of "
            f"a run ({shown}). Begin with the DataFrame that the function is given (rows.join(other, …), not "
            "other.join(rows, …)), take the session from it (rows.sparkSession), or unset these options"
        )
    return moved(frame, session)


def active_session() -> Any:
    """Spark's active session of this thread, as Java has it; None where there is none."""
    context = SparkContext._active_spark_context
    if context is None:
        return None
    active = _sessions(context).getActiveSession()
    return active.get() if active.isDefined() else None


def activate(java: Any) -> None:
    """Make a session, as Java has it, Spark's active one of this thread; None for none."""
    context = SparkContext._active_spark_context
    if context is None:
        return
    if java is None:
        _sessions(context).clearActiveSession()
    else:
        _sessions(context).setActiveSession(java)


def _sessions(context: SparkContext) -> Any:
    return java_class(jvm_of(context), "org.apache.spark.sql.classic.SparkSession")
