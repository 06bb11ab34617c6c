"""Writing to side outputs: ``yield tag, value`` is distinguished from an output; tag and value are checked.

Plays the part of the ``SideOutput`` half of Flink's ``RecordWriterOutput``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.output_tag import OutputTag, is_tagged
from state_engine.core.operator.element_kinds import ElementChange, KindOf
from state_engine.core.operator.outputs import ElementOutputs, Origin, SideOutputs
from state_engine.core.types.every_type import TypeInformation

TAGGED: Any = object()
"""What an output becomes that belongs to a side output."""


class TaggedOr(TypeInformation):
    """The type of outputs, in whose place there may be pairs of a tag and a value, which become TAGGED.

    An output that passes the quick test of its type is never looked at twice, so
    tags cost nothing where there are none.
    """

    def __init__(self, output_type: TypeInformation) -> None:
        self._check, self._normalise = output_type.check, output_type.compiled()

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        return self._check(var, names)

    def normalise(self, value: Any) -> Any:
        return TAGGED if is_tagged(value) else self._normalise(value)


class SideOutputWriter:
    """Appends to the side outputs of one operator.

    Args:
        declared: tags that somebody reads, by id; None takes any tag.
        kind_of: gives a value its kind, where side outputs have kinds.
    """

    def __init__(
        self, operator: str, declared: Mapping[str, OutputTag] | None, *, kind_of: KindOf | None = None
    ) -> None:
        self._kind_of = kind_of
        self._operator, self._open = operator, declared is None
        self._tags: dict[str, OutputTag] = dict(declared or {})
        self._normalise: dict[str, Callable[[Any], Any]] = {}

    def write(self, tagged: tuple[OutputTag, Any], origin: Origin, out: ElementOutputs) -> None:
        """Append one value."""
        tag, value = tagged
        normalise = self._known(tag)
        try:
            if self._kind_of is None:
                normal = normalise(value)
            else:
                kind, plain = self._kind_of(value)
                normal = ElementChange(kind, normalise(plain))
        except ValueTypeError as error:
            raise ValueTypeError(f"side output '{tag.tag_id}': {error}") from error
        side = out.side.get(tag.tag_id)
        if side is None:
            side = out.side[tag.tag_id] = SideOutputs()
        side.values.append(normal)
        side.origins.append(origin)

    def _known(self, tag: OutputTag) -> Callable[[Any], Any]:
        known = self._tags.get(tag.tag_id)
        if known is None and self._open:
            known = self._tags[tag.tag_id] = tag
        if known is None:
            raise ConfigurationError(
                f"operator '{self._operator}' has no side output '{tag.tag_id}' (it has {sorted(self._tags)}): "
                "ask the stream for it, get_side_output(tag), or do not yield to it"
            )
        if known is not tag and known != tag:
            raise ConfigurationError(
                f"operator '{self._operator}': the side output '{tag.tag_id}' was declared as {known!r} and is "
                f"yielded as {tag!r}; use one OutputTag for both"
            )
        if tag.tag_id not in self._normalise:
            self._normalise[tag.tag_id] = known.type_info.compiled()
        return self._normalise[tag.tag_id]
