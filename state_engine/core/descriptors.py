"""State descriptors: the name and types of a state, given by the user to get a handle.

Mirror ``org.apache.flink.api.common.state.StateDescriptor`` and its subclasses, with PyFlink's keywords. Types may be
written as Python types, NamedTuple or dataclass classes, pyarrow types or DDL text (see ``type_parsing.to_type``).
"""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys import storage_type
from state_engine.core.names import check_name
from state_engine.core.type_parsing import to_type
from state_engine.core.types import TypeInformation


class StateDescriptor:
    """Name and value type of one state.

    Attributes:
        kind: the state primitive, as stored in checkpoints.
        value_type: type of a value, list element or map value.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, value_type: Any, *, parameter: str) -> None:
        self.name = check_name(name, what="state")
        self.value_type: TypeInformation = to_type(value_type, parameter=f"{parameter} of state '{name}'")

    def get_name(self) -> str:
        """The name of the state."""
        return self.name

    @property
    def column_type(self) -> pa.DataType:
        """The physical type of this state's column in Delta."""
        return self.value_type.storage

    def same_state(self, other: StateDescriptor) -> bool:
        """Whether both describe the same primitive with the same stored type."""
        return self.kind == other.kind and self.column_type == other.column_type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.column_type})"


class ValueStateDescriptor(StateDescriptor):
    """Describes a ValueState.

    Args:
        name: name of the state, unique in its operator.
        value_type_info: type of the value.
        default: what ``value()`` returns while nothing is stored, as a fresh copy each time.

    Example:
        >>> ValueStateDescriptor("average", tuple[int, float])
        ValueStateDescriptor('average', struct<f0: int64, f1: double>)
    """

    kind = "value"

    def __init__(self, name: str, value_type_info: Any, *, default: Any = None) -> None:
        super().__init__(name, value_type_info, parameter="value_type_info")
        self.default = None if default is None else self.value_type.normalise(default)


class ListStateDescriptor(StateDescriptor):
    """Describes a ListState of elements of one type.

    Example:
        >>> ListStateDescriptor("recent", int).column_type
        ListType(list<item: struct<value: int64, updated_at: timestamp[us, tz=UTC]>>)
    """

    kind = "list"

    def __init__(self, name: str, elem_type_info: Any) -> None:
        super().__init__(name, elem_type_info, parameter="elem_type_info")

    @property
    def column_type(self) -> pa.DataType:
        stamped = [
            pa.field("value", self.value_type.storage),
            pa.field("updated_at", pa.timestamp("us", "UTC")),
        ]
        return pa.list_(pa.struct(stamped))


class MapStateDescriptor(StateDescriptor):
    """Describes a MapState.

    Example:
        >>> MapStateDescriptor("airports", str, int).column_type
        StructType(struct<key: string, value: int64>)
    """

    kind = "map"

    def __init__(self, name: str, key_type_info: Any, value_type_info: Any) -> None:
        super().__init__(name, value_type_info, parameter="value_type_info")
        self.key_type: TypeInformation = to_type(key_type_info, parameter=f"key_type_info of state '{name}'")
        try:
            storage_type(self.key_type.arrow)
        except InvalidKeyError as error:
            raise InvalidKeyError(f"key_type_info of state '{name}': {error}") from None
        if self.key_type.mutable:
            raise InvalidKeyError(f"key_type_info of state '{name}': a dataclass must be frozen to be a key")

    @property
    def column_type(self) -> pa.DataType:
        return pa.struct([pa.field("key", self.key_type.storage), pa.field("value", self.value_type.storage)])
