"""Programs of Flink's documents, as a PyFlink user would write them: fraud detector, state machine, broadcast rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from state_engine import (
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)

SMALL_AMOUNT, LARGE_AMOUNT, ONE_MINUTE = 1.00, 500.00, 60 * 1000


class FraudDetector(KeyedProcessFunction):
    """Alerts where a large transaction of an account directly follows a small one, within a minute."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.flag = runtime_context.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer-state", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if self.flag.value() is not None:
            if value.amount > LARGE_AMOUNT:
                yield value.account_id
            self.clean_up(ctx)
        if value.amount < SMALL_AMOUNT:
            self.flag.update(True)
            timer = ctx.timer_service().current_processing_time() + ONE_MINUTE
            ctx.timer_service().register_processing_time_timer(timer)
            self.timer.update(timer)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self.timer.clear()
        self.flag.clear()

    def clean_up(self, ctx: KeyedProcessFunction.Context) -> None:
        timer = self.timer.value()
        assert timer is not None
        ctx.timer_service().delete_processing_time_timer(timer)
        self.timer.clear()
        self.flag.clear()


TRANSITIONS = {
    "Initial": {"a": "W", "c": "X"},
    "W": {"b": "Y"},
    "X": {"b": "Y", "d": "Z"},
    "Y": {"e": "Z"},
    "Z": {"g": "Terminal"},
}


class StateMachineMapper(FlatMapFunction):
    """Follows the state machine of every address; an event that it does not allow is an alert and changes nothing."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.current = runtime_context.get_state(ValueStateDescriptor("state", Types.STRING()))

    def flat_map(self, value: Any) -> Iterable[Any]:
        address, event = value
        state = self.current.value() or "Initial"
        following = TRANSITIONS[state].get(event)
        if following is None:
            yield address, state, event
        elif following == "Terminal":
            self.current.clear()
        else:
            self.current.update(following)


@dataclass(frozen=True)
class Rule:
    name: str
    first: str
    second: str


class MatchFunction(KeyedBroadcastProcessFunction):
    """Pairs of shapes of one color, of which one follows the other as a rule of the broadcast stream says."""

    def __init__(self) -> None:
        self.rules = MapStateDescriptor("RulesBroadcastState", Types.STRING(), Rule)

    def open(self, runtime_context: RuntimeContext) -> None:
        items = MapStateDescriptor("items", Types.STRING(), Types.LIST(Types.LONG()))
        self.waiting = runtime_context.get_map_state(items)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(self.rules).put(value.name, Rule(value.name, value.first, value.second))

    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        for name, rule in ctx.get_broadcast_state(self.rules).items():
            stored = self.waiting.get(name) or []
            if value.shape == rule.second and stored:
                for item in stored:
                    yield f"MATCH: {item} - {value.item}"
                stored = []
            if value.shape == rule.first:
                stored.append(value.item)
            if stored:
                self.waiting.put(name, stored)
            else:
                self.waiting.remove(name)
