"""State descriptors: the name and types of a state, given by the user to get a handle.

Mirror ``org.apache.flink.api.common.state.StateDescriptor`` and its subclasses, with PyFlink's keywords. Types may be
written as Python types, NamedTuple or dataclass classes, pyarrow types or DDL text (see ``type_parsing.to_type``).

Primitives differ in their handles; in storage there are three shapes only: a value, a list of elements, or a map of
entries per key.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, InvalidKeyError, InvalidNameError
from state_engine.core.keys.canonical import storage_type
from state_engine.core.keys.ordering import key_order
from state_engine.core.names import check_text_name, stored_name
from state_engine.core.state.aggregate_functions import AggregateFunction, FoldFunction, ReduceFunction
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type

TIMERS = "_timers"
"""Name of the state that holds timers; no user's state can have it."""


class StateDescriptor:
    """Name and value type of one state.

    Attributes:
        kind: the state primitive, as stored in checkpoints.
        shape: how it is stored: one value, a list of elements, or a map of entries per key.
        value_type: type of a value, list element or map value.
        ttl: how items expire; None where they do not.
        former_name: the name that the state had before it was renamed; None where it was not.
    """

    kind: ClassVar[str]
    shape: ClassVar[Literal["value", "list", "map"]] = "value"
    former_name: str | None = None
    _stored_as: str | None = None

    def __init__(self, name: str, value_type: TypeLike, *, parameter: str) -> None:
        self.name = check_text_name(name, what="state")
        if name == TIMERS:
            raise InvalidNameError(
                f"'{TIMERS}' cannot name a state: timers are kept under this name; choose another one"
            )
        self.value_type: TypeInformation = to_type(value_type, parameter=f"{parameter} of state '{name}'")
        self.ttl: StateTtlConfig | None = None

    def get_name(self) -> str:
        """The name of the state."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let items of this state expire; a configuration that is disabled changes nothing."""
        if not isinstance(ttl_config, StateTtlConfig):
            raise ConfigurationError(
                f"state '{self.name}': enable_time_to_live takes a StateTtlConfig, not {ttl_config!r}; "
                "make one with StateTtlConfig.new_builder(Time.hours(1)).build()"
            )
        self.ttl = ttl_config if ttl_config.is_enabled() else None

    def renamed_from(self, former_name: str) -> Self:
        """Take over what a checkpoint holds under a former name; this descriptor itself, so that calls can be chained.

        Nothing is rewritten. Once a checkpoint holds the state under its new name, this has no effect and may be
        left out. Flink has no such thing.

        Raises:
            ConfigurationError: the former name cannot be that of a state, or is the name itself.

        Example:
            >>> ValueStateDescriptor("total", int).renamed_from("sum").former_name
            'sum'
        """
        if former_name == self.name:
            raise ConfigurationError(f"state '{self.name}' cannot be renamed from its own name")
        self.former_name = check_text_name(former_name, what="state")
        return self

    def stored(self, name: str, value_type: TypeInformation) -> Self:
        """A copy that says how the state is stored: under which name, and with which names of fields."""
        made = copy.copy(self)
        made._stored_as, made.value_type = name, value_type
        return made

    @property
    def stored_as(self) -> str:
        """What its rows and its column are called: ``stored_name(name)``, but for what was renamed or came back."""
        return self._stored_as or stored_name(self.name)

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

    def __init__(self, name: str, value_type_info: TypeLike, *, default: Any = None) -> None:
        super().__init__(name, value_type_info, parameter="value_type_info")
        self.default = None if default is None else self.value_type.normalise(default)


class ListStateDescriptor(StateDescriptor):
    """Describes a ListState of elements of one type.

    Example:
        >>> ListStateDescriptor("recent", int).column_type
        ListType(list<item: struct<value: int64, updated_at: timestamp[us, tz=UTC]>>)
    """

    kind = "list"
    shape = "list"

    def __init__(self, name: str, elem_type_info: TypeLike) -> None:
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
    shape = "map"

    def __init__(self, name: str, key_type_info: TypeLike, value_type_info: TypeLike) -> None:
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


class SortedMapStateDescriptor(MapStateDescriptor):
    """Describes a SortedMapState: a MapState in the order of its keys.

    Example:
        >>> SortedMapStateDescriptor("counts", int, int)
        SortedMapStateDescriptor('counts', struct<key: int64, value: int64>)
    """

    kind = "sorted_map"

    def __init__(self, name: str, key_type_info: TypeLike, value_type_info: TypeLike) -> None:
        super().__init__(name, key_type_info, value_type_info)
        try:
            key_order(self.key_type)
        except InvalidKeyError as error:
            raise InvalidKeyError(f"key_type_info of state '{name}': {error}") from None


class ReducingStateDescriptor(StateDescriptor):
    """Describes a ReducingState.

    Args:
        name: name of the state, unique in its operator.
        reduce_function: a ReduceFunction, or a callable of two values.
        type_info: type of the values.

    Example:
        >>> ReducingStateDescriptor("sum", lambda a, b: a + b, int)
        ReducingStateDescriptor('sum', int64)
    """

    kind = "reducing"

    def __init__(
        self, name: str, reduce_function: ReduceFunction | Callable[[Any, Any], Any], type_info: TypeLike
    ) -> None:
        super().__init__(name, type_info, parameter="type_info")
        self.reduce_function = ReduceFunction.of(reduce_function, what=f"reduce_function of state '{name}'")

    def get_reduce_function(self) -> ReduceFunction:
        """The function that combines two values."""
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """Describes an AggregatingState; its accumulator is what is stored.

    Args:
        name: name of the state, unique in its operator.
        agg_function: an AggregateFunction.
        state_type_info: type of the accumulator.
    """

    kind = "aggregating"

    def __init__(self, name: str, agg_function: AggregateFunction, state_type_info: TypeLike) -> None:
        super().__init__(name, state_type_info, parameter="state_type_info")
        if not isinstance(agg_function, AggregateFunction):
            raise ConfigurationError(
                f"agg_function of state '{name}' must be an AggregateFunction, not {agg_function!r}"
            )
        self.agg_function = agg_function

    def get_agg_function(self) -> AggregateFunction:
        """The function that adds to an accumulator."""
        return self.agg_function


class FoldingStateDescriptor(StateDescriptor):
    """Describes a FoldingState. Deprecated, as in Flink: use an AggregatingState.

    Args:
        name: name of the state, unique in its operator.
        initial_value: what the first element is folded into.
        fold_function: a FoldFunction, or a callable of accumulator and element.
        type_info: type of the accumulator.
    """

    kind = "folding"

    def __init__(
        self,
        name: str,
        initial_value: Any,
        fold_function: FoldFunction | Callable[[Any, Any], Any],
        type_info: TypeLike,
    ) -> None:
        warnings.warn(
            f"state '{name}': folding state is deprecated; use an AggregatingStateDescriptor",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(name, type_info, parameter="type_info")
        self.initial_value = self.value_type.normalise(initial_value)
        self.fold_function = FoldFunction.of(fold_function, what=f"fold_function of state '{name}'")


SHAPES: dict[str, str] = {
    d.kind: d.shape for d in (*StateDescriptor.__subclasses__(), *MapStateDescriptor.__subclasses__())
}
"""Shape by primitive, for readers that know a state only from a checkpoint."""
