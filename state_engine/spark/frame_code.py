"""``frame_code``: DataFrame code of a job runs in it, where PySpark would change values in silence.

PySpark takes a time without a zone by the zone of the process, so a job would give other rows on another machine: in
code of a job it is UTC, as in SQL and everywhere else. Of a value that is not of the declared type of a ``udf``,
PySpark makes null, or a number of fewer bits: in code of a job it becomes a value of that type without a loss, or it is
refused. The same holds for rows that ``createDataFrame`` takes with a declared schema, from a list or an RDD.

Both hold only in the thread that runs such code, for what it makes there. The user's own queries get what PySpark
gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.composite_types import DictType, ListType, StructType
from state_engine.core.types.scalar_types import StringType, TimestampType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import from_spark_json
from state_engine.storage.java_gateway import java_class, java_session, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """Let PySpark ask whether a job's code runs, where it takes times, functions and rows."""
    from py4j.protocol import register_input_converter
    from pyspark.sql import SparkSession
    from pyspark.sql.types import TimestampType as Times
    from pyspark.sql.udf import UDFRegistration, UserDefinedFunction

    register_input_converter(_NaiveTimes(), prepend=True)
    _first(Times, "toInternal", lambda value: (in_utc(value),))
    _first(SparkSession, "_create_dataframe", _checked_rows)
    _first(UDFRegistration, "register", _registered)
    call = UserDefinedFunction.__call__

    def column(self: Any, *args: Any, **named: Any) -> Any:
        return call(_checked(self) if _OF_A_JOB.get() else self, *args, **named)

    UserDefinedFunction.__call__ = column  # type: ignore[method-assign]


def _first(owner: type, name: str, prepared: Callable[..., tuple[Any, ...]]) -> None:
    """Have a method of PySpark's be called with what becomes of its arguments, in code of a job."""
    method = getattr(owner, name)

    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if not _OF_A_JOB.get():
            return method(self, *args, **named)
        return method(self, *prepared(*args, **named))

    setattr(owner, name, call)


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


def _registered(name: str, f: Any, returnType: Any = None) -> tuple[Any, ...]:
    """A function that is to have a name in SQL text: what it gives is looked at."""
    from pyspark.sql.types import StringType as Text
    from pyspark.sql.udf import UserDefinedFunction

    is_function = hasattr(f, "asNondeterministic")
    made = f if is_function and returnType is None else None
    if made is None and not is_function:
        made = UserDefinedFunction(f, Text() if returnType is None else returnType, name)
    return (name, f, returnType) if made is None else (name, _checked(made))


def look_at_functions(session: SparkSession) -> None:
    """Have functions of Python that SQL text names in a session give values of their declared types.

    A function is taken out of the expression that Spark makes of it, and gets its name again.
    """
    from pyspark.sql.udf import UDFRegistration

    jvm = jvm_of(session.sparkContext)
    known = java_session(session).sessionState().functionRegistry()
    spark_s = java_class(jvm, "org.apache.spark.sql.catalyst.analysis.FunctionRegistry").builtin()
    # what differs, as Java finds it: a reply of py4j's over 8 KiB, such as all names, waits 40 ms for the network
    own = known.functionBuilders().toSet().diff(spark_s.functionBuilders().toSet()).toSeq()
    for place in range(own.size()):
        named, made_by = own.apply(place)._1(), own.apply(place)._2()
        if made_by._1().getSource() == "python_udf":
            made = _taken_out(made_by._2().apply(jvm.PythonUtils.toSeq([])))
            if made is not None:
                UDFRegistration(session).register(named.funcName(), made)


def _taken_out(expression: Any) -> Any:
    """The function that an expression of Spark calls, whose results are looked at; None where they need not be."""
    from pyspark.cloudpickle import loads
    from pyspark.sql.types import _parse_datatype_json_string
    from pyspark.sql.udf import UserDefinedFunction

    signed = str(expression.func().command().mkString(" ")).split()
    content = loads(bytes(int(byte) % 256 for byte in signed))
    if not isinstance(content, tuple):  # a large one is elsewhere
        return None
    declared = _parse_datatype_json_string(expression.dataType().json())
    made = UserDefinedFunction(
        content[0], declared, expression.name(), expression.evalType(), expression.udfDeterministic()
    )
    checked = _checked(made)
    return None if checked is made else checked


def _checked_rows(data: Any, schema: Any, *others: Any) -> tuple[Any, ...]:
    """Rows of a list or an RDD, which become values of their declared type."""
    from pyspark import RDD
    from pyspark.sql.types import DataType

    if not isinstance(schema, DataType):
        return (data, schema, *others)
    declared = schema.jsonValue()
    try:
        _type_of(declared)
    except ConfigurationError:  # of a type that only Spark has
        return (data, schema, *others)
    row = CheckedRow(declared, schema.simpleString())
    return (data.map(row) if isinstance(data, RDD) else list(map(row, data)), schema, *others)


def _checked(made: Any) -> Any:
    """A ``udf`` whose function's results are looked at; one over columns, which Arrow looks at, as it is."""
    from pyspark.sql.udf import UserDefinedFunction
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
    return UserDefinedFunction(result, made.returnType, name, made.evalType, made.deterministic)


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


_WAY_OUT = (
    "Spark would make null or another value of it: declare the type that it has, or give a value of that type"
)
_LEAVES: dict[str, Callable[[], TypeInformation]] = {"string": _Text, "timestamp": _Moment}


class _Checked:
    """Makes values of a declared type.

    Args:
        declared: that type as Spark's JSON.
        shown: that type as its author wrote it.
    """

    def __init__(self, declared: Any, shown: str) -> None:
        self._declared, self._shown = declared, shown

    def _value(self, value: Any, what: str) -> Any:
        try:
            return value if value is None else self._normal(value)
        except ValueTypeError as error:
            raise ValueTypeError(
                f"a transform uses {what} declared {self._shown}, and {error}. {_WAY_OUT}"
            ) from None

    @cached_property
    def _normal(self) -> Callable[[Any], Any]:
        return _type_of(self._declared).compiled()

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name != "_normal"}


class CheckedResult(_Checked):
    """A function of a ``udf``, whose results are of the declared type."""

    def __init__(self, function: Callable[..., Any], name: str, declared: Any, shown: str) -> None:
        super().__init__(declared, shown)
        self._function, self._name = function, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._value(self._function(*args, **named), f"a udf, {self._name},")


class CheckedRow(_Checked):
    """Makes rows of ``createDataFrame``; what a dict does not name is null, as PySpark has it."""

    def __call__(self, row: Any) -> Any:
        if isinstance(row, dict) and self._declared["type"] == "struct":
            row = {field["name"]: None for field in self._declared["fields"]} | row
        return self._value(row, "createDataFrame with rows")
