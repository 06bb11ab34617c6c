"""``frame_code``: DataFrame code of a job runs in it, where PySpark would change values in silence.

PySpark takes a time without a zone by the zone of the process, so a job would give other rows on another machine: in
code of a job it is UTC, as in SQL and everywhere else. Of a value that is not of the declared type of a ``udf``,
PySpark makes null, or a number of fewer bits: in code of a job it becomes a value of that type without a loss, or it is
refused.

Both hold only in the thread that runs such code, for what it makes there. The user's own queries get what PySpark
gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.composite_types import DictType, ListType, StructType
from state_engine.core.types.scalar_types import StringType, TimestampType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import from_spark_json

_OF_A_JOB = ContextVar("_OF_A_JOB", default=False)
"""Whether this thread runs DataFrame code of a job."""


@contextmanager
def frame_code() -> Iterator[None]:
    """While it is entered, DataFrame code of a job runs."""
    _prepare_pyspark()
    before = _OF_A_JOB.set(True)
    try:
        yield
    finally:
        _OF_A_JOB.reset(before)


@lru_cache(maxsize=1)
def _prepare_pyspark() -> None:
    """Let PySpark ask whether a job's code runs: where it converts times, and where a ``udf`` becomes a column."""
    from py4j.protocol import register_input_converter
    from pyspark.sql.types import TimestampType as Times
    from pyspark.sql.udf import UserDefinedFunction

    register_input_converter(_NaiveTimes(), prepend=True)
    to_internal, call = Times.toInternal, UserDefinedFunction.__call__

    def of_time(self: Times, value: Any) -> Any:
        return to_internal(self, in_utc(value))

    def column(self: Any, *args: Any, **named: Any) -> Any:
        return call(_checked(self) if _OF_A_JOB.get() else self, *args, **named)

    Times.toInternal = of_time  # type: ignore[assignment, method-assign]
    UserDefinedFunction.__call__ = column  # type: ignore[method-assign]


def in_utc(value: Any) -> Any:
    """A time without a zone as one of UTC, in code of a job; anything else as it is."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive and _OF_A_JOB.get() else value


class _NaiveTimes:
    """A converter of py4j's, before that of PySpark: for ``F.lit``."""

    def can_convert(self, value: Any) -> bool:
        return in_utc(value) is not value

    def convert(self, value: datetime, client: Any) -> Any:
        from pyspark.sql.types import DatetimeConverter

        return DatetimeConverter().convert(in_utc(value), client)


# -- results of functions ----------------------------------------------------------------------------------------------


def _checked(made: Any) -> Any:
    """A ``udf`` whose function's results are looked at; one over columns, which Arrow looks at, as it is."""
    from pyspark.util import PythonEvalType

    by_value = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
    if made.evalType not in by_value or isinstance(made.func, CheckedResult):
        return made
    declared, name = made.returnType.jsonValue(), getattr(made.func, "__name__", type(made.func).__name__)
    try:
        _type_of(declared)
    except ConfigurationError:  # of a type that only Spark has
        return made
    result = CheckedResult(made.func, name, declared, made.returnType.simpleString())
    return type(made)(result, made.returnType, name, made.evalType, made.deterministic)


def _type_of(declared: Any) -> TypeInformation:
    """The type for Spark's JSON, as results of a ``udf`` have it."""
    if isinstance(declared, str):
        return _LEAVES[declared]() if declared in _LEAVES else from_spark_json(declared)
    if declared["type"] == "array":
        return ListType(_type_of(declared["elementType"]))
    if declared["type"] == "map":
        return DictType(_type_of(declared["keyType"]), _type_of(declared["valueType"]))
    if declared["type"] == "struct":
        fields = declared["fields"]
        return StructType([f["name"] for f in fields], [_type_of(f["type"]) for f in fields])
    raise ConfigurationError(f"{declared['type']} is a type of Spark alone")


class _Text(StringType):
    """Text, and whole numbers as text: ``udf`` without a type declares it."""

    def normalise(self, value: Any) -> str:
        return str(value) if type(value) is int else super().normalise(value)


class _Moment(TimestampType):
    """Times without a zone are UTC, as the zone of tasks is: another one is refused."""

    def __init__(self) -> None:
        super().__init__("UTC")

    def normalise(self, value: Any) -> datetime:
        naive = isinstance(value, datetime) and value.tzinfo is None
        return super().normalise(value.replace(tzinfo=UTC) if naive else value)


_LEAVES: dict[str, Callable[[], TypeInformation]] = {"string": _Text, "timestamp": _Moment}


class CheckedResult:
    """A function of a ``udf``, whose results are of the declared type.

    Args:
        declared: that type as Spark's JSON.
        shown: that type as its author wrote it.
    """

    def __init__(self, function: Callable[..., Any], name: str, declared: Any, shown: str) -> None:
        self._function, self._name, self._declared, self._shown = function, name, declared, shown

    def __call__(self, *args: Any, **named: Any) -> Any:
        value = self._function(*args, **named)
        try:
            return value if value is None else self._normal(value)
        except ValueTypeError as error:
            raise ValueTypeError(
                f"a transform uses a udf, {self._name}, declared {self._shown}, and {error}. Spark would make null or "
                "another value of it: declare the type that the function returns, or return a value of that type"
            ) from None

    @cached_property
    def _normal(self) -> Callable[[Any], Any]:
        return _type_of(self._declared).compiled()

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name != "_normal"}
