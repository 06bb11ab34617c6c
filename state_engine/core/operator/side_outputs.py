"""Outputs with marks: ``yield tag, value`` goes to a side output, ``yield Timestamped(value, ms)`` has its own time.

Plays the part of the ``SideOutput`` half of Flink's ``RecordWriterOutput``, and of its ``TimestampedCollector``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.timestamped import is_marked, marks_of
from state_engine.core.operator.element_kinds import ElementChange, KindOf
from state_engine.core.operator.outputs import ElementOutputs, Origin, SideOutputs
from state_engine.core.types.every_type import TypeInformation

MARKED: Any = object()
"""What an output becomes that has a tag or an event time of its own."""


class MarkedOr(TypeInformation):
    """The type of outputs, in whose place there may be outputs with marks, which become MARKED.

    An output that passes the quick test of its type is never looked at twice, so
    marks cost nothing where there are none.
    """

    def __init__(self, output_type: TypeInformation) -> None:
        self._check, self._normalise = output_type.check, output_type.compiled()

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        return self._check(var, names)

    def normalise(self, value: Any) -> Any:
        return MARKED if is_marked(value) else self._normalise(value)


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

    def write(self, tag: OutputTag, value: Any, origin: Origin, out: ElementOutputs) -> SideOutputs:
        """Append one value; the side output."""
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
        return side

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


class MarkedOutputs:
    """Appends the outputs of one operator that have marks.

    Args:
        normalise: makes an output what was declared; MARKED where it has marks.
    """

    def __init__(
        self, operator: str, normalise: Callable[[Any], Any], side: SideOutputWriter, *, timed: bool
    ) -> None:
        self._operator, self._normalise, self._side, self._timed = operator, normalise, side, timed

    def write(self, output: Any, origin: Origin, out: ElementOutputs) -> None:
        tag, value, at_ms = marks_of(output)
        if at_ms is not None and not self._timed:
            raise ConfigurationError(
                f"operator '{self._operator}' yields {output!r}, and its stream has no event time: give the source an "
                "event_time, or yield the value alone"
            )
        part: ElementOutputs | SideOutputs = out
        if tag is not None:
            part = self._side.write(tag, value, origin, out)
        else:
            normal = self._normalise(value)
            if normal is MARKED:
                raise ValueTypeError(f"{output!r} is marked twice: an output has one tag and one event time")
            out.values.append(normal)
            out.origins.append(origin)
        if at_ms is not None:
            part.times_ms[len(part.values) - 1] = at_ms
