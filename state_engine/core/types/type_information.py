"""``TypeInformation``: how a Python value of one declared type is checked, stored in Arrow and given back.

It normalises values when they are written (a value becomes its declared type, or a ``ValueTypeError`` says why not;
overflow is an error), gives fresh copies of mutable values when they are read, and converts whole columns to and from
Arrow. Nested values and fields may be None. Mirrors ``org.apache.flink.api.common.typeinfo.TypeInformation`` with its
``TypeSerializer``. What users may give for one is ``TypeLike``. Decision 0030.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias, UnionType
from typing import Any, Protocol, cast

import pyarrow as pa

from state_engine.core.errors import ValueTypeError


class TypeInformation:
    """One declared type.

    Attributes:
        arrow: the declared Arrow type; outputs are written with it.
        storage: the widest type of the same kind; states are stored with it, so that widening changes no table.
        mutable: whether values can be changed in place (reads then return copies).
    """

    arrow: pa.DataType
    storage: pa.DataType
    mutable = False

    def __deepcopy__(self, memo: Any) -> TypeInformation:
        """The type itself, which never changes: functions that are copied for each subtask share theirs."""
        return self

    def normalise(self, value: Any) -> Any:
        """The value as declared; a fresh one where it is mutable. Raises ValueTypeError."""
        raise NotImplementedError

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        """A Python expression, true only for values that are normal already; None where there is no such test."""
        return None

    def copy(self, value: Any) -> Any:
        """A copy that shares nothing mutable with the value."""
        return value

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        """Normal values (or None) as one Arrow array of the storage type or of the declared type."""
        return pa.array(values, self.storage if storage else self.arrow)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        """The values of an Arrow array of the declared or the storage type.

        Raises ValueTypeError where a stored value does not fit: it was written under a wider declaration.
        """
        return cast(list[Any], array.to_pylist())

    @property
    def completes(self) -> bool:
        """Whether reading a stored column gives values instead of nulls, see ``StructType``."""
        return False

    @property
    def has_times(self) -> bool:
        """Whether it is, or holds, times of day, which queries show as text."""
        return False

    def to_plain(self, value: Any) -> Any:
        """A normal value as plain nested Python (lists, tuples, dicts), for messages and JSON."""
        return value

    def compiled(self) -> Callable[[Any], Any]:
        """``normalise`` with its fast test in front; for the hot path."""
        names: dict[str, Any] = {"slow": self.normalise}
        test = self.check("v", names)
        if test is None:
            return self.normalise
        return cast(Callable[[Any], Any], eval(f"lambda v: v if {test} else slow(v)", names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return str(self.arrow)

    def __repr__(self) -> str:
        return f"TypeInformation({self})"

    def _narrowed(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        try:
            return array.cast(self.arrow)
        except pa.ArrowInvalid:
            for value in array.drop_null().to_pylist():
                self.normalise(value)
            raise

    def _refuse(self, value: Any, why: str = "") -> ValueTypeError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ValueTypeError(f"{shown} ({type(value).__name__}) is not a value of type {self}{why}")


class SparkType(Protocol):
    """A type of Spark, or any other object that gives one as Spark's JSON."""

    def jsonValue(self) -> object:
        """The type as Spark's JSON."""


TypeLike = (
    TypeInformation | type[object] | GenericAlias | UnionType | str | pa.DataType | pa.Schema | SparkType
)
"""A type as users declare it: one of ``Types``, a Python type such as ``int`` or ``list[int]``, a NamedTuple or a
dataclass, a pyarrow or Spark type or schema, or DDL text. ``to_type`` makes a ``TypeInformation`` of it."""
