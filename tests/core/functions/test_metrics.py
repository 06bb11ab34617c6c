"""Metrics: what each kind counts, groups, and sums over subtasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, InvalidNameError
from state_engine.core.functions.every_function import KeyedProcessFunction
from state_engine.core.functions.metrics import MetricGroup, summed
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.testing import KeyedHarness


def test_each_kind_has_its_numbers() -> None:
    group = MetricGroup()
    rows = group.counter("rows")
    rows.inc()
    rows.inc(5)
    rows.dec()
    rows.dec(2)
    level = [3]
    group.gauge("level", lambda: level[0])
    level[0] = 4
    group.meter("events", 5).mark_event()
    group.meter("events").mark_event(2)
    delay = group.distribution("delay")
    for value in (5, -1, 2):
        delay.update(value)
    group.distribution("none")
    assert rows.get_count() == 3
    assert group.meter("events").get_count() == 3
    assert group.values() == {
        "rows": 3.0, "level": 4.0, "events": 3.0, "none:count": 0.0, "none:sum": 0.0,
        "delay:count": 3.0, "delay:sum": 6.0, "delay:min": -1.0, "delay:max": 5.0,
    }  # fmt: skip


def test_groups_are_part_of_the_name() -> None:
    group = MetricGroup()
    group.add_group("a").add_group("key", "value").counter("n").inc()
    group.counter("n").inc(2)
    assert group.values() == {"a.key.value.n": 1.0, "n": 2.0}
    assert group.add_group("a").get_metric_identifier("n") == "a.n"


def test_one_name_is_one_metric() -> None:
    group = MetricGroup()
    assert group.counter("n") is group.counter("n")
    with pytest.raises(ConfigurationError, match="the metric 'n' is a counter already and cannot become a"):
        group.meter("n")
    group.gauge("g", lambda: 1)
    group.gauge("g", lambda: 2)
    assert group.values()["g"] == 2.0
    with pytest.raises(InvalidNameError, match=r"'a\.b' cannot name a metric"):
        group.counter("a.b")


def test_sums_over_subtasks() -> None:
    assert summed([]) == {}
    assert summed([{"n": 1.0, "d:min": 3.0, "d:max": 3.0}, {}, {"n": 2.0, "d:min": 1.0, "d:max": 2.0}]) == {
        "d:max": 3.0, "d:min": 1.0, "n": 3.0,
    }  # fmt: skip


def test_functions_count_over_all_subtasks_and_anew_in_every_batch() -> None:
    class Counts(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            group = runtime_context.get_metrics_group()
            self.rows = group.counter("rows")
            self.size = group.add_group("of").distribution("values")

        def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
            self.rows.inc()
            self.size.update(value)
            return []

    harness = KeyedHarness(Counts(), key_by=lambda v: v, parallelism=4)
    harness.process(range(10))
    expected = {
        "of.values:count": 10.0,
        "of.values:sum": 45.0,
        "of.values:min": 0.0,
        "of.values:max": 9.0,
        "rows": 10.0,
    }
    assert harness.metrics == expected
    harness.process([5])
    assert harness.metrics["rows"] == 1.0
