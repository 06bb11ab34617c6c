"""``OutputTag``: names a side output of a function. Mirrors ``org.apache.flink.util.OutputTag``."""

from __future__ import annotations

from state_engine.core.names import check_text_name
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type


class OutputTag:
    """Name and type of a side output: a function sends a value there with ``yield tag, value``.

    Tags of one name and type are the same tag.

    Args:
        tag_id: any text of 1 to 255 characters, unique in its operator.
        type_info: type of the values, as a state descriptor would take it.

    Raises:
        InvalidNameError, ConfigurationError: the name or the type is none.

    Example:
        >>> OutputTag("late", str)
        OutputTag('late', string)
    """

    def __init__(self, tag_id: str, type_info: TypeLike | None = None) -> None:
        self.tag_id = check_text_name(tag_id, what="side output")
        self.type_info: TypeInformation = to_type(type_info, parameter=f"type_info of OutputTag '{tag_id}'")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OutputTag):
            return NotImplemented
        return self.tag_id == other.tag_id and self.type_info == other.type_info

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.type_info})"
