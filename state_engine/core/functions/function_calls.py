"""How each class of function is called for an element: the one place that knows all of them.

The operator has a single loop, which calls ``process(value, context)`` and takes the outputs from what comes back.
``calls_of`` makes such calls from every function class. An element of two connected streams comes as the pair of its
stream, 0 or 1, and the value. Plays the part of Flink's many operators (``StreamMap``, ``CoProcessOperator``,
``CoBroadcastWithKeyedOperator``, …).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.broadcast_functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from state_engine.core.functions.checkpointed import has_operator_state
from state_engine.core.functions.co_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from state_engine.core.functions.contexts import BroadcastStates, ElementContext, TimerContext
from state_engine.core.functions.map_functions import FilterFunction, FlatMapFunction, MapFunction
from state_engine.core.functions.process_functions import KeyedProcessFunction, ProcessFunction, TimedFunction
from state_engine.core.functions.sink_function import SinkFunction
from state_engine.core.functions.vectorized_functions import StandsForElements, VectorizedKeyedFunction
from state_engine.core.state.state_table import KeyContext
from state_engine.core.time.timer_service import TimerService

Process = Callable[[Any, Any], Any]
"""Called with an element and its context; gives what the function returned, or a list, or None."""


@dataclass(frozen=True)
class Call:
    """One method of a function, ready to be called.

    Attributes:
        process: called with the element (or a timer's time) and ``context``.
    """

    name: str
    process: Process
    context: Any


@dataclass(frozen=True)
class FunctionCalls:
    """All that an operator calls of a function.

    Attributes:
        broadcast: for broadcast elements; None where the function takes none.
        timer: for timers; None where the function would not notice them.
        two_inputs: whether an element is a pair of its stream, 0 or 1, and its value.
    """

    element: Call
    broadcast: Call | None = None
    timer: Call | None = None
    two_inputs: bool = False


def has_timers(function: Any) -> bool:
    """Whether a function notices timers: it defines ``on_timer``, or gets those that are due as columns."""
    if isinstance(function, VectorizedKeyedFunction):
        return function.uses_timers
    return isinstance(function, TimedFunction) and type(function).on_timer is not TimedFunction.on_timer


def sees_time(function: Any) -> bool:
    """Whether a function may see the watermark: from its context, or through state that lives by event time."""
    if isinstance(function, _STATELESS):
        return type(function).open is not Function.open
    return bool(function.sees_time)


def takes_two_inputs(function: Any) -> bool:
    if isinstance(function, StandsForElements):
        return function.two_inputs
    return isinstance(
        function, CoMapFunction | CoFlatMapFunction | CoProcessFunction | KeyedCoProcessFunction
    )


def takes_broadcast(function: Any) -> bool:
    return isinstance(function, BroadcastProcessFunction | KeyedBroadcastProcessFunction)


_STATELESS = (MapFunction, FlatMapFunction, FilterFunction, CoMapFunction, CoFlatMapFunction)
"""What every element passes for itself: its outputs keep its kind."""


def keeps_kinds(function: Any) -> bool:
    """Whether the outputs of a function have the kind of the element that they came from."""
    return isinstance(function, _STATELESS)


def takes_changes(function: Any, *, keyed: bool) -> bool:
    """Whether a function may be given updates and deletes: it says so, or every element passes it for itself.

    What a map, flat_map or filter remembers of other elements would not take back what a delete withdraws, so one that
    may have state has to say so, too.
    """
    if function.accepts_changes:
        return True
    opened = keyed and type(function).open is not Function.open
    return keeps_kinds(function) and not opened and not has_operator_state(function)


def emits_changes(function: Any, *, changing: bool) -> bool:
    """Whether outputs have kinds; ``changing`` says whether elements do."""
    return changing if keeps_kinds(function) else bool(function.emits_changes)


def refusal_of_changes(
    function: Any, *, operator: str, keyed: bool, of: str = "", shortcut: str | None = None
) -> str:
    """Why an operator cannot be on a stream that changes, and the ways out.

    Args:
        shortcut: name of the method that stands for the function, where the user wrote none.
    """
    name = shortcut or type(function).__name__
    what = f"operator '{operator}': {name} takes inserts only, and its stream holds updates and deletes, too{of}. "
    own = "a KeyedProcessFunction" if keyed else "a ProcessFunction"
    before = "one"
    if keyed and takes_two_inputs(function):
        own, before = "a KeyedCoProcessFunction", "a KeyedProcessFunction"
    if shortcut is not None:
        return (
            what
            + _INSTEAD.get(shortcut, "")
            + (
                f"As it is, it cannot take back what they withdraw: use {own} that handles each ctx.row_kind() and "
                f"says accepts_changes = True, or put {before} before it that turns them into inserts"
            )
        )
    if isinstance(function, VectorizedKeyedFunction):
        return what + (
            "Handle ctx.kinds in it and say accepts_changes = True on the class, or put a function before it that "
            "emits inserts"
        )
    if keeps_kinds(function):
        return what + (
            "It may keep state, which a delete does not take back by itself: say accepts_changes = True on the class "
            f"once it allows for that, or make {own} of it, which sees ctx.row_kind()"
        )
    return what + (
        "Handle each ctx.row_kind() in it and say accepts_changes = True on the class, or put a function before "
        "it that does so and emits inserts"
    )


_DECLARED = (
    "eclare aggregates in its place, as in aggregate(n=count(), total=sum_('amount'), least=min_('amount')). "
)
_INSTEAD = {
    "window": "A deleted row could change windows that are closed, or split a session. ",
    **dict.fromkeys(
        ("join", "interval_join"), "Pairs would have to be taken back, which a join without within does. "
    ),
    "drop_duplicates": "With keep='last' it takes them, and gives the changes of the last row of each key. ",
    "over": "A result could count a row that is taken back later. aggregate(n=count(), …) takes them, and "
    "drop_duplicates(keep='last') gives the last row of each key. ",
    "sequence": "A row that is taken back could be of a sequence that came out already. "
    "drop_duplicates(keep='last') takes them, and gives the last row of each key. ",
    "silent": "A row that is taken back could be the last one before a silence that came out already. "
    "drop_duplicates(keep='last') takes them, and gives the last row of each key. ",
    "reduce": "Give it an inverse, which takes an element out of the reduction: reduce(…, inverse=…). ",
    "aggregate": f"Define retract(self, value, accumulator) in the function, the inverse of add; or d{_DECLARED}",
    **dict.fromkeys(("sum", "min", "max", "min_by", "max_by"), f"D{_DECLARED}"),
}
"""What to do in place of some shortcuts, before what is said of all of them."""


def check_stream(function: Any, *, operator: str, keyed: bool) -> None:
    """Refuse a function that this kind of stream cannot run. Raises ConfigurationError."""
    name = type(function).__name__
    if isinstance(function, VectorizedKeyedFunction):
        if not keyed:
            raise ConfigurationError(
                f"operator '{operator}': {name} is a VectorizedKeyedFunction, which works on keyed streams: call "
                "key_by first"
            )
        return
    if isinstance(function, TimedFunction) and not keyed:
        raise ConfigurationError(
            f"operator '{operator}': {name} is a {_base(function)}, which works on keyed streams: call key_by first"
        )
    if isinstance(function, BroadcastProcessFunction) and keyed:
        raise ConfigurationError(
            f"operator '{operator}': {name} is a BroadcastProcessFunction, but the stream is keyed: "
            "make it a KeyedBroadcastProcessFunction"
        )
    if not any(isinstance(function, kind) for kind in _MAKERS):
        raise ConfigurationError(
            f"operator '{operator}': {function!r} is not a function of a stream; "
            f"derive it from one of {', '.join(sorted(kind.__name__ for kind in (*_MAKERS, VectorizedKeyedFunction)))}"
        )


def calls_of(
    function: Any, *, key: KeyContext, timers: TimerService, broadcast_states: BroadcastStates
) -> FunctionCalls:
    """The calls of a function that ``check_stream`` has let pass."""
    maker = next(make for kind, make in _MAKERS.items() if isinstance(function, kind))
    calls: FunctionCalls = maker(function, lambda made_by: made_by(key, timers))
    contexts = [c.context for c in (calls.element, calls.broadcast, calls.timer) if c is not None]
    for context in contexts:
        context.broadcast_states = broadcast_states
    return calls


MakeContext = Callable[[type[ElementContext]], Any]


def _map(function: MapFunction, make: MakeContext) -> FunctionCalls:
    call = function.map
    return FunctionCalls(Call("map", lambda value, ctx: [call(value)], make(ElementContext)))


def _flat_map(function: FlatMapFunction, make: MakeContext) -> FunctionCalls:
    call = function.flat_map
    return FunctionCalls(Call("flat_map", lambda value, ctx: call(value), make(ElementContext)))


def _filter(function: FilterFunction, make: MakeContext) -> FunctionCalls:
    call = function.filter
    return FunctionCalls(
        Call("filter", lambda value, ctx: [value] if call(value) else None, make(ElementContext))
    )


def _sink(function: SinkFunction, make: MakeContext) -> FunctionCalls:
    return FunctionCalls(Call("invoke", partial(_invoke, function.invoke), make(SinkFunction.Context)))


def _invoke(invoke: Process, value: Any, context: Any) -> None:
    invoke(value, context)  # a sink has no outputs, whatever it returns


def _process(function: Any, make: MakeContext) -> FunctionCalls:
    return FunctionCalls(
        Call("process_element", function.process_element, make(type(function).Context)),
        timer=_timer(function, make),
    )


def _co_map(function: CoMapFunction, make: MakeContext) -> FunctionCalls:
    calls = (function.map1, function.map2)

    def mapped(pair: Any, ctx: Any) -> list[Any]:
        output = calls[pair[0]](pair[1])
        return [] if output is None else [output]  # as PyFlink, and unlike a map over one stream

    return FunctionCalls(Call("map", mapped, make(ElementContext)), two_inputs=True)


def _co_flat_map(function: CoFlatMapFunction, make: MakeContext) -> FunctionCalls:
    calls = (function.flat_map1, function.flat_map2)
    call = Call("flat_map", lambda pair, ctx: calls[pair[0]](pair[1]), make(ElementContext))
    return FunctionCalls(call, two_inputs=True)


def _co_process(function: Any, make: MakeContext) -> FunctionCalls:
    calls = (function.process_element1, function.process_element2)
    call = Call(
        "process_element", lambda pair, ctx: calls[pair[0]](pair[1], ctx), make(type(function).Context)
    )
    return FunctionCalls(call, timer=_timer(function, make), two_inputs=True)


def _broadcast(function: Any, make: MakeContext) -> FunctionCalls:
    kind = type(function)
    return FunctionCalls(
        Call("process_element", function.process_element, make(kind.ReadOnlyContext)),
        broadcast=Call("process_broadcast_element", function.process_broadcast_element, make(kind.Context)),
        timer=_timer(function, make),
    )


def _timer(function: Any, make: MakeContext) -> Call | None:
    if not has_timers(function):
        return None
    context: TimerContext = make(type(function).OnTimerContext)
    return Call("on_timer", function.on_timer, context)


def _base(function: Any) -> str:
    return next(kind.__name__ for kind in type(function).__mro__ if kind in _MAKERS)


_MAKERS: dict[type, Callable[[Any, MakeContext], FunctionCalls]] = {
    KeyedProcessFunction: _process,
    ProcessFunction: _process,
    KeyedCoProcessFunction: _co_process,
    CoProcessFunction: _co_process,
    KeyedBroadcastProcessFunction: _broadcast,
    BroadcastProcessFunction: _broadcast,
    CoMapFunction: _co_map,
    CoFlatMapFunction: _co_flat_map,
    MapFunction: _map,
    FlatMapFunction: _flat_map,
    FilterFunction: _filter,
    SinkFunction: _sink,
}
