"""Which columns routed rows have and what they are made of, for every input of an operator: decided before any row is.

Pure: from names and types of the streams' columns, and from what the operator declares. The router evaluates it where
the rows are, and the subtasks read rows by the same ``RoutedLayout``. Plays the part of Flink's ``StreamEdge`` with its
partitioner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_arrays import check_key_column, is_canonical, may_be_refused
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.job.graph import KEY_COLUMN, OperatorNode, SelectedKey
from state_engine.microbatch.routing.routed import (
    INPUT,
    InputLayout,
    RoutedInput,
    RoutedLayout,
    key_name,
    payload_name,
    selected_name,
)
from state_engine.sources.frames import (
    ARRIVAL,
    EVENT_TIME,
    HIDDEN,
    ORIGIN,
    PLACE_COLUMNS,
    REFUSED,
    SOURCE,
    TIME_REFUSAL,
    WATERMARK,
    StreamFrame,
    merged_orders,
    order_name,
    orders_by_event_time,
    shared_names,
)
from state_engine.sources.stream_columns import ROW_KIND, Constant, Rule, Taken


@dataclass(frozen=True)
class EdgeKey:
    """The key of one input.

    Attributes:
        columns: of the stream, or those that a function makes of each row.
        routed: names of the canonical columns in a routed row.
        refusals: whether a column says why a key cannot be one.
    """

    columns: tuple[str, ...]
    routed: tuple[str, ...]
    refusals: bool
    selected: bool


@dataclass(frozen=True)
class Edge:
    """One input on its way to the subtasks; all that who routes its rows needs to know.

    Attributes:
        columns: of a routed row, apart from those of the key, and what each is made of.
        order: those of them that make the order.
        source: the name of each row's source, whether or not it is routed.
        key: of a keyed input; without one, a row goes where its order sends it.
    """

    columns: tuple[tuple[str, Rule], ...]
    order: tuple[str, ...]
    source: Rule
    key: EdgeKey | None
    everywhere: bool

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the stream that it is made of."""
        rules = [rule for _, rule in self.columns]
        names = [rule.name for rule in rules if not isinstance(rule, Constant)]
        names += self.key.columns if self.key is not None and not self.key.selected else ()
        return tuple(dict.fromkeys(names))

    @property
    def for_watermarks(self) -> Edge:
        """Only what moves the watermark, and the place of each row."""
        wanted = {*self.order, EVENT_TIME, WATERMARK, ORIGIN, INPUT, *ARRIVAL}
        columns = [(name, rule) for name, rule in self.columns if name in wanted]
        return replace(self, columns=(*columns, (SOURCE, self.source)), key=None)


@dataclass(frozen=True)
class _Key:
    """Columns of the key of one input: names declared, names in the stream, and types."""

    names: tuple[str, ...]
    own: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    selected: bool


def planned(
    inputs: Sequence[RoutedInput], operator: OperatorNode, *, refused: bool = False
) -> tuple[list[Edge], RoutedLayout]:
    """How the rows of each input are routed, and what a routed row is.

    Args:
        inputs: those that have rows in this batch; their frames are ``ordered``.
        refused: whether rows that could not be parsed are routed beside them.
    """
    what, several = f"operator '{operator.uid}'", len(operator.inputs) > 1
    frames = [one.frame for one in inputs]
    for frame in frames:
        frame.require(frame.order_by, what=f"order_by of the stream into {what}")
        _check_payload(frame, what)
    keys = [_key(one, operator, what) for one in inputs]
    keyed = [key for key in keys if key is not None]
    refusals = any(key.selected or any(map(may_be_refused, key.types)) for key in keyed)
    orders = _orders(inputs, operator, what)
    common = _common_layout(
        frames, operator, keyed, what, refusals=refusals, refused=refused, order=len(orders[0])
    )
    edges, layouts, names = [], list(common.inputs), common.keys
    for one, key, order in zip(inputs, keys, orders, strict=True):
        payload = [payload_name(one.place, i) if several else c for i, c in enumerate(one.frame.user_columns)]
        layouts[one.place] = replace(
            layouts[one.place], columns=tuple(payload), names=tuple(one.frame.user_columns), scalar=one.scalar,
            declared=one.fitting,
        )  # fmt: skip
        columns = dict(zip(payload, map(Taken, one.frame.user_columns), strict=True))
        rules = columns | _hidden_columns(one.frame, order, common, frames, what)
        if several:
            rules[INPUT] = Constant(one.place, pa.int32())
        made = None if key is None else _edge_key(key, several=several, refusals=refusals)
        names = names if made is None else made.routed
        everywhere = operator.inputs[one.place].broadcast or operator.inputs[one.place].everywhere
        edges.append(Edge(tuple(rules.items()), common.order, one.frame.source_name, made, everywhere))
    return edges, replace(common, inputs=tuple(layouts), keys=names)


def _common_layout(
    frames: Sequence[StreamFrame], operator: OperatorNode, keys: Sequence[_Key], what: str, *,
    refusals: bool, refused: bool, order: int,
) -> RoutedLayout:  # fmt: skip
    """What does not depend on a single input."""
    first, timed = frames[0], any(f.event_time is not None for f in frames)
    alone, by_time = len(frames) == 1, operator.by_event_time
    return RoutedLayout(
        inputs=tuple(
            InputLayout(
                (), (), scalar=False, broadcast=i.broadcast, ordered=i.ordered, everywhere=i.everywhere
            )
            for i in operator.inputs
        ),
        order=tuple(order_name(i) for i in range(order)),
        named=1 if by_time else first.named if alone else shared_names(frames),
        timed_order=by_time or (all(f.timed_order for f in frames) and shared_names(frames) > 0),
        positioned=alone and first.source is not None and first.hidden_order[:2] == PLACE_COLUMNS,
        keys=(),
        key_schema=_key_schema(keys, what) if keys else None,
        event_time=timed,
        key_refusals=refusals,
        refused=refused,
        sources=not alone or (first.source is None and bool(first.sources)),
        lead=first.lead if alone and timed and not by_time else (),
        changing=any(f.changing for f in frames),
        reordered=timed and not by_time and any(f.reordered for f in frames),
    )


def _hidden_columns(
    frame: StreamFrame, order: Sequence[Rule], layout: RoutedLayout, frames: Sequence[StreamFrame], what: str
) -> dict[str, Rule]:
    rules = dict(zip(layout.order, order, strict=True))
    if layout.event_time:
        rules[EVENT_TIME] = frame.event_ms(what)
        rules |= {WATERMARK: frame.watermark, ORIGIN: frame.row_origin}
        rules |= {name: Taken(name) for name in layout.lead}
        if layout.reordered:
            rules |= frame.arrival
    if any(TIME_REFUSAL in f.schema.names for f in frames):
        rules[TIME_REFUSAL] = frame.time_refusal
    if layout.changing:
        rules[ROW_KIND] = frame.row_kind
    if layout.sources:
        rules[SOURCE] = frame.source_name
    if layout.refused:
        rules[REFUSED] = Constant(None, pa.string())
    return rules


def _orders(inputs: Sequence[RoutedInput], operator: OperatorNode, what: str) -> list[list[Rule]]:
    frames, places = [one.frame for one in inputs], _places(inputs, operator)
    return (
        orders_by_event_time(frames, places, what=what)
        if operator.by_event_time
        else merged_orders(frames, places)
    )


def _places(inputs: Sequence[RoutedInput], operator: OperatorNode) -> list[int]:
    """What puts rows of several inputs that tie into an order."""
    # A rule holds from its time on. Where all rules are applied first, what they put out stands in front of its peers.
    return [-1 if operator.inputs[one.place].broadcast else one.place for one in inputs]


def _key(one: RoutedInput, operator: OperatorNode, what: str) -> _Key | None:
    given = operator.inputs[one.place]
    if given.key is None:
        return None
    if isinstance(given.key, SelectedKey):
        types = tuple(kind.arrow for kind in DeclaredKey.of(KEY_COLUMN, given.key.key_type).types)
        return _Key(given.key_columns, tuple(map(selected_name, range(len(types)))), types, selected=True)
    one.frame.require(given.key, what=f"key_by of {what}")
    types = tuple(map(one.frame.arrow_type, given.key))
    for name, kind in zip(given.key, types, strict=True):
        try:
            check_key_column(kind, name)
        except InvalidKeyError as error:
            raise InvalidKeyError(f"{what}: {error}") from None
    return _Key(given.key_columns, given.key, types, selected=False)


def _edge_key(key: _Key, *, several: bool, refusals: bool) -> EdgeKey:
    """A column that is canonical already keeps its name, unless another input has to fit in."""
    pairs = enumerate(zip(key.own, key.types, strict=True))
    routed = tuple(own if is_canonical(kind) and not several else key_name(i) for i, (own, kind) in pairs)
    return EdgeKey(key.own, routed, refusals, key.selected)


def _key_schema(keys: Sequence[_Key], what: str) -> KeySchema:
    first = KeySchema(keys[0].names, keys[0].types)
    for key in keys[1:]:
        same = len(key.names) == len(first.names)
        if not same or KeySchema(first.names, key.types).storage != first.storage:
            raise ConfigurationError(
                f"{what}: its two streams are keyed by {first.names} and {key.names}, which are of different types, "
                "so they cannot share state; cast one in a transform"
            )
    return first


def _check_payload(frame: StreamFrame, what: str) -> None:
    names = frame.user_columns
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{what}: two columns of its input have the same name: {names}; rename one")
    for name in frame.schema.names:
        if not name.startswith(HIDDEN):
            try:
                frame.arrow_type(name)
            except ConfigurationError as error:
                raise ConfigurationError(f"{what}: {error}; cast or drop the column in a transform") from None
