"""``PickledType``: objects that only Python can read, stored as a pickle in a binary column.

Reading a pickle runs whatever code it names, so whoever can write to the state's files could run code in the job.
Therefore no pickle is ever read or written unless the declaration says so: ``allow_pickle=True``. Mirrors PyFlink's
``PickledBytesTypeInfo``, which is its default where no type is given; here a missing type is an error.

Written by cloudpickle, so that objects of classes that workers cannot import (of a notebook, a script, a function) can
be stored, too: such an object brings its class along, as it was when the object was written.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.type_information import TypeInformation

_PROTOCOL = 5  # fixed, so that equal state has equal bytes whichever Python writes it


class PickledType(TypeInformation):
    """Any object that can be pickled; reads give fresh copies.

    Args:
        allow_pickle: must be True: the consent to run what the stored pickles say.

    Example:
        >>> PickledType(allow_pickle=True).normalise({1, 2})
        {1, 2}
    """

    arrow = storage = pa.binary()
    mutable = True

    def __init__(self, *, allow_pickle: bool) -> None:
        if allow_pickle is not True:
            raise ConfigurationError(
                "PICKLED_BYTE_ARRAY is off: reading a pickle runs the code it names, so anybody who can write to the "
                "state could run code in the job. Declare the type (a dataclass, for example); or, where everybody "
                "who can write to the state root is trusted, opt in with Types.PICKLED_BYTE_ARRAY(allow_pickle=True)"
            )

    def normalise(self, value: Any) -> Any:
        try:
            return pickle.loads(_dumps(value))
        except Exception as error:  # an object's own code runs here, and may raise anything
            raise self._refuse(value, f": it cannot be pickled and read again: {error}") from None

    def copy(self, value: Any) -> Any:
        return None if value is None else pickle.loads(_dumps(value))

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        return pa.array([None if v is None else _dumps(v) for v in values], pa.binary())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if data is None else self._load(data) for data in array.to_pylist()]

    def _load(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:
            raise self._refuse(
                data, f": the stored pickle cannot be read ({type(error).__name__}: {error})"
            ) from error

    def __str__(self) -> str:
        return "pickled object"


def _dumps(value: Any) -> bytes:
    # part of PySpark, which every worker has; it needs neither Spark nor a JVM, and comes when it is first used
    from pyspark import cloudpickle

    data: bytes = cloudpickle.dumps(value, _PROTOCOL)
    return data


def holds_pickles(kind: TypeInformation) -> bool:
    return str(PickledType(allow_pickle=True)) in str(kind)
