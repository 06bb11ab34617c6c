"""``KeyHarness``: one key of an operator of a job, from a state on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from state_engine import (
    FileSource,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Tumbling,
    ValueStateDescriptor,
    count,
)
from state_engine.errors import ConfigurationError, InvalidKeyError
from state_engine.testing import KeyElement, KeyHarness, Stamped
from tests.replay import written_project


class Lives(KeyedProcessFunction):
    """A sum that lives for a minute of processing time, and a timer for each row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        lived = ValueStateDescriptor("lived", int)
        lived.enable_time_to_live(StateTtlConfig.new_builder("1 min").build())
        self.lived = runtime_context.get_state(lived)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.lived.update((self.lived.value() or 0) + value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield (self.lived.value(),)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (-timestamp,)


def job_of(**options: Any) -> StatefulJob:
    job = StatefulJob("lives")
    schema = None if options.pop("undeclared", False) else "user string, n bigint, at timestamp"
    source = FileSource("/data/in", format="parquet", schema=schema)
    rows = job.source("rows", source, event_time="at", **options).key_by("user")
    lives = rows.process(Lives(), uid="lives", output_type="n bigint")
    rows.window(Tumbling("1 s")).aggregate(n=count(), uid="windows")
    lives.map(lambda row: row.n, output_type="bigint", uid="plain")
    return job


def element(n: int, at: int = 0, **options: Any) -> KeyElement:
    return KeyElement(Row(user="ann", n=n, at=None), timestamp=at, **options)


@pytest.mark.parametrize(
    ("given", "out"),
    [(5, 6), (Stamped(5, 1), 6), (Stamped(5, 0), 1), (Stamped(5, None), 6)],
    ids=["without a time", "alive", "expired", "never expires"],
)
def test_items_of_a_state_with_a_time_to_live_keep_the_time_of_their_last_access(
    given: Any, out: int
) -> None:
    harness = KeyHarness(job_of(), "lives", "ann", states={"lived": given})
    assert harness.process([element(1)], clock_ms=60_000) == [(out,)]
    assert harness.states() == {"lived": out}
    assert harness.process(clock_ms=120_000) == []
    assert harness.states() == {}  # it has expired


def test_timers_fire_by_the_watermarks_that_are_given() -> None:
    harness = KeyHarness(job_of(), "lives", "ann", timers=[(3, "event"), (500, "event")])
    assert harness.process([element(1, 100, watermark=50)], watermark_ms=0, end_watermark_ms=120) == [
        (-3,), (1,), (-110,),
    ]  # fmt: skip
    assert harness.timers() == [(500, "event")]
    assert harness.process(watermark_ms=120, end_watermark_ms=120, drain=True) == [(-500,)]


def test_late_elements_pass_by_the_function() -> None:
    harness = KeyHarness(job_of(), "lives", "ann")
    assert harness.process([element(1, 5, watermark=9, late=True)]) == []
    assert harness.states() == {}


def test_side_outputs_broadcast_state_and_two_inputs(tmp_path: Any) -> None:
    job = written_project.build(tmp_path)
    sums = KeyHarness(job, "sums", {"user": "ann"})
    assert sums.process([KeyElement(Row(user="ann", amount=25, at=None), timestamp=0)]) == [("ann", 25)]
    assert sums.side_output("large") == [("ann", 25)]
    assert sums.side_output("other") == []
    kind = "struct<key: string, value: bigint>"
    given = {"limits": ("broadcast", kind, ['{"key": "all", "value": 20}'])}
    judge = KeyHarness(job, "judge", "ann", subtask_states=given)
    payment = KeyElement(Row(user="ann", amount=25, at=None), timestamp=0)
    assert judge.process([payment]) == [("ann", 1)]
    assert judge.process([payment], broadcast=[KeyElement(Row(limit=30))]) == []
    assert judge.states() == {"alerts": 1, "limits": {"all": 30}}
    refunds = KeyHarness(job, "refunds", "ann", states={"left": 5})
    back = KeyElement(Row(user="ann", back=2, at=None), timestamp=0, input=2)
    assert refunds.process([back]) == [("ann", 3)]


def test_types_that_no_code_declares_are_given() -> None:
    job, columns = job_of(undeclared=True), "user string, n bigint, at timestamp"
    with pytest.raises(
        ConfigurationError, match="no code declares the columns of its key: give their types, such as"
    ):
        KeyHarness(job, "lives", "ann")
    with pytest.raises(
        ConfigurationError, match="no code declares the columns of its input 1: give their types"
    ):
        KeyHarness(job, "windows", "ann", key_type="user string")
    windows = KeyHarness(job, "windows", "ann", key_type="user string", input_types=[columns])
    (window,) = windows.process([element(1), element(2)], end_watermark_ms=2000)
    assert (window.user, window.n) == ("ann", 2)


def test_what_cannot_be_run_is_said() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"job 'lives' has no keyed operator 'plain'; those are \['lives', 'windows'\]",
    ):
        KeyHarness(job_of(), "plain", "ann")
    with pytest.raises(InvalidKeyError, match="None cannot be a key"):
        KeyHarness(job_of(), "lives", None)
    with pytest.raises(
        ConfigurationError, match="operator 'lives' has no form over columns: leave over_columns out"
    ):
        KeyHarness(job_of(), "lives", "ann").process([element(1)], over_columns=True)
