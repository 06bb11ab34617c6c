"""``output_check`` and ``state_check``: a function of rows as an asset check of a sink or a keyed state."""

# No "from __future__ import annotations" here: Dagster reads the annotations of the function below.
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_engine import DeltaSink, open_state
from state_engine.core.argument_checks import checked_function
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.naming import sink_key, state_key
from state_engine.dagster.translator import StatelakeTranslator
from state_engine.expectations.validation import sink_frame
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob, registered_job
from state_engine.sources.delta_table import newest_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Judge = Callable[[Any], bool | dg.AssetCheckResult]
"""Takes rows, and returns whether they are as they should be, or a whole result."""
Rows = Callable[[StateEngineResource, str], "DataFrame | pa.Table"]
"""The rows to judge, given the name of the check."""


@checked_function
def output_check(
    job: StatefulJob | RegisteredJob,
    sink: str,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    without_spark: bool = False,
    translator: StatelakeTranslator | None = None,
) -> Callable[[Judge], dg.AssetChecksDefinition]:
    """Make an asset check of a function of the rows that a sink has published: all of them, as a DataFrame.

    The check has the name and the docstring of the function. It needs the resource ``state_engine``. Of a job that
    never ran it passes without a call.

    Args:
        job: that the sink belongs to.
        sink: its name; a ``DeltaSink`` or a ``FileSink``.
        severity: of a failure, where the function returns a bool.
        blocking: whether assets below the sink wait for the check, and do not run where it fails.
        without_spark: whether the function is given a ``pyarrow.Table``, for which no session starts; of a
            ``DeltaSink`` with a path, whose rows fit into memory.
        translator: the one that the job's assets were made with.

    Raises:
        ConfigurationError: the job has no such sink, it is not read without Spark, or the severity is none.

    Example:
        >>> from state_engine import DeltaSink, FileSource, StatefulJob
        >>> job = StatefulJob("clicks")
        >>> stream = job.source("clicks", FileSource("/lake/inbox", schema="user string"))
        >>> _ = stream.sink("copy", DeltaSink("/lake/clicks"))
        >>> @output_check(job, "copy")
        ... def users_are_there(rows):
        ...     return rows.where("user is null").isEmpty()
        >>> [key.to_user_string() for key in users_are_there.check_keys]
        ['clicks/sinks/copy:users_are_there']
    """
    shown = _shown(job, translator)
    if sink not in shown.job.sinks:
        raise ConfigurationError(
            f"job '{shown.name}': there is no sink '{sink}' to check. Sinks are {list(shown.job.sinks)}"
        )

    place = shown.job.sinks[sink].sink
    path = place.path if isinstance(place, DeltaSink) else None
    if without_spark and not path:
        raise ConfigurationError(
            f"job '{shown.name}': rows of the sink '{sink}' are read by Spark: without_spark=True is for a DeltaSink "
            "with a path"
        )

    def rows(resource: StateEngineResource, check: str) -> "DataFrame | pa.Table":
        if without_spark and path:
            return _without_spark(path, check)
        return sink_frame(resource.engine(), shown.job, sink, asked_by=f"check '{check}'")

    return _check(shown, shown.key(sink_key(shown.name, sink)), rows, severity, blocking=blocking)


@checked_function
def state_check(
    job: StatefulJob | RegisteredJob,
    operator: str,
    state: str,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    without_spark: bool = False,
    translator: StatelakeTranslator | None = None,
) -> Callable[[Judge], dg.AssetChecksDefinition]:
    """Make an asset check of a function of the entries of a keyed state, as ``StateEngine.read_state`` returns them.

    As ``output_check`` in all else.

    Args:
        job: that the state belongs to.
        operator: uid of its operator.
        state: its name.
        severity: of a failure, where the function returns a bool.
        blocking: whether assets below the state wait for the check, and do not run where it fails.
        without_spark: whether the function is given a ``pyarrow.Table``, as ``open_state.read_state`` returns it;
            the state must fit into memory.
        translator: the one that the job's assets were made with.

    Raises:
        ConfigurationError: the job has no such operator.
    """
    shown = _shown(job, translator)
    if operator not in shown.job.operators:
        raise ConfigurationError(
            f"job '{shown.name}': there is no operator '{operator}' to check. Operators are "
            f"{list(shown.job.operators)}"
        )

    def rows(resource: StateEngineResource, check: str) -> "DataFrame | pa.Table":
        if without_spark:
            return open_state.read_state(resource.root, shown.name, operator, state)
        return resource.engine().read_state(shown.job, operator, state)

    return _check(shown, shown.key(state_key(shown.name, operator, state)), rows, severity, blocking=blocking)


def _without_spark(path: str, check: str) -> "pa.Table":
    rows = newest_table(path)
    if rows is None:
        raise SourceError(
            f"check '{check}': only Spark can read the table {path} (partitions, deletion vectors, columns that "
            "changed, old dates). Leave out without_spark=True: the function is then given a DataFrame"
        )
    return rows


def _shown(job: StatefulJob | RegisteredJob, translator: StatelakeTranslator | None) -> DagsterJob:
    return DagsterJob(
        registered=registered_job(job), settings=Settings(), translator=translator or StatelakeTranslator()
    )


def _check(
    shown: DagsterJob,
    key: dg.AssetKey,
    rows: Rows,
    severity: dg.AssetCheckSeverity,
    *,
    blocking: bool,
) -> Callable[[Judge], dg.AssetChecksDefinition]:
    if not isinstance(severity, dg.AssetCheckSeverity):
        raise ConfigurationError(f"severity must be one of {[*dg.AssetCheckSeverity]}, not {severity!r}")

    def of(judge: Judge) -> dg.AssetChecksDefinition:
        name = judge.__name__

        @dg.asset_check(name=name, asset=key, description=inspect.getdoc(judge), blocking=blocking)
        def check(state_engine: StateEngineResource) -> dg.AssetCheckResult:
            from state_engine.spark.stores import find_stores  # PySpark is imported on first use

            find_stores()
            if not open_state.checkpoints(state_engine.root, shown.name):
                return dg.AssetCheckResult(
                    passed=True, description=f"job '{shown.name}' has no checkpoint yet"
                )
            verdict = judge(rows(state_engine, name))
            if isinstance(verdict, dg.AssetCheckResult):
                return verdict
            return dg.AssetCheckResult(passed=verdict, severity=severity)

        return check

    return of
