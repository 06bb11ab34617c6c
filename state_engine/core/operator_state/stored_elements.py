"""The values of an operator state as a checkpoint holds it, for looking at without the function that declared it."""

from __future__ import annotations

from typing import Any

from state_engine.core.operator_state.operator_snapshot import BROADCAST, StateElements
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.json_values import from_json
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type


def stored_elements(state: StateElements) -> Any:
    """The elements of a list state; a dict of the entries of broadcast state.

    Records come as tuples with the names of their fields, whatever class they were declared with.

    Example:
        >>> stored_elements(StateElements("buffered", "even_split", "bigint", ("1", "2")))
        [1, 2]
    """
    plain = PlainType()
    kind: TypeInformation = plain if state.type == str(plain) else to_type(state.type, parameter="type")
    values = from_json(kind, state.elements)
    return dict(values) if state.scheme == BROADCAST else values
