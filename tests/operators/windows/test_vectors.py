"""Examples from the tests of Flink, Kafka Streams and hazelcast-jet, step by step, with a restore between any two.

``b@500`` is a row of key b at 500 ms, ``b:3@500`` one of the value 3. ``W 999`` sets the watermark, and ``drain`` ends
the input. Behind ``→`` stands what comes out there: key, aggregate and window, ``late`` for rows that no window takes.
"""

from __future__ import annotations

import random
import re
from functools import partial
from typing import Any, Literal

import pytest

from state_engine import OutputTag, Row, sum_
from state_engine.core.errors import ValueTypeError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.windows.aligned_windows import AlignedWindows
from state_engine.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from state_engine.operators.windows.session_windows import SessionWindows
from state_engine.operators.windows.window_results import (
    Emit,
    RowsWithBounds,
    WindowAccumulators,
    WindowSettings,
)
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import CUTS, EVERYWHERE, together
from tests.operators.mixed import Mixed, forms_of
from tests.operators.windows.test_windows import ms

COLUMNS = "k string, v bigint, at bigint"
LATE = OutputTag("late", COLUMNS)
G = 300_000
R1 = "b@3999 b@3000 a@20 a@0 a@999 b@1998 b@1999 b@1000"
S1 = "1000 W 1999 2000 W 4998 4500 8500 W 7400 7000 W 11501"
VECTORS: dict[str, tuple[Any, Emit | Literal["firings"], int, str]] = {
    "tumbling, a batch of PyFlink's": (
        Tumbling(5), "final", 0, "1 2 3 4 5 8 9 15 drain → k 4 [0,5), k 3 [5,10), k 1 [15,20)",
    ),
    "tumbling fires": (
        Tumbling(3000), "final", 0,
        f"{R1} W 999 W 1999 W 2999 → a 3 [0,3000), b 3 [0,3000) W 3999 W 4999 W 5999 → b 2 [3000,6000) W 7999",
    ),
    "sliding fires": (
        Sliding(3000, every=1000), "final", 0,
        f"{R1} W 999 → a 3 [-2000,1000) W 1999 → a 3 [-1000,2000), b 3 [-1000,2000) W 2999 → a 3 [0,3000), "
        "b 3 [0,3000) W 3999 → b 5 [1000,4000) W 4999 → b 2 [2000,5000) W 5999 → b 2 [3000,6000)",
    ),
    "late for some windows": (
        Sliding(3000, every=1000), "final", 0,
        "b@1000 W 1999 → b 1 [-1000,2000) b@2000 W 3000 → b 2 [0,3000) a@3001 b@2400 b@2400 a@3001 b@3900 "
        "W 6000 → b 5 [1000,4000), a 2 [1000,4000), b 4 [2000,5000), a 2 [2000,5000), b 1 [3000,6000), a 2 [3000,6000) "
        "a@3001 → late a@3001 W 25000",
    ),
    "late rows in slices": (
        Sliding(3000, every=1000), "final", 0,
        f"{R1} W 999 → a 3 [-2000,1000) W 1999 → a 3 [-1000,2000), b 3 [-1000,2000) W 2999 → a 3 [0,3000), "
        "b 3 [0,3000) W 3999 → b 5 [1000,4000) b@3500 W 4999 → b 3 [2000,5000) a@2999 → late a@2999 "
        "W 5999 → b 3 [3000,6000)",
    ),
    "lateness, changes": (
        Tumbling(2000), "changes", 500,
        "b@500 W 1500 b@1300 W 2300 → +I b 2 [0,2000) b@1997 → -U b 2 [0,2000), +U b 3 [0,2000) W 6000 "
        "b@1998 → late b@1998",
    ),
    "lateness, final": (
        Tumbling(2000), "final", 500, "b@500 W 1500 b@1300 W 2300 b@1997 W 6000 → b 3 [0,2000) b@1998 → late b@1998",
    ),
    "clean-up": (Tumbling(2000), "changes", 1, "b@1000 W 1999 → +I b 1 [0,2000) W 2000 b@1500 → late b@1500"),
    "cumulating, late": (
        Cumulating(3000, every=1000), "final", 0,
        "b@2999 b@2999 a@20 a@0 a@999 b@1998 b@1999 b@1000 W 999 → a 3 [0,1000) W 1999 → a 3 [0,2000), b 3 [0,2000) "
        "b@1000 W 2999 → a 3 [0,3000), b 6 [0,3000) b@3000 W 3999 → b 1 [3000,4000) a:2@3500 W 4999 → b 1 [3000,5000), "
        "a 2 [3000,5000) a@2999 → late a@2999 W 5999 → b 1 [3000,6000), a 2 [3000,6000)",
    ),
    "cumulating, changes": (
        Cumulating(3000, every=1000), "changes", 500,
        "b@500 W 1500 → +I b 1 [0,1000) b@1300 W 2300 → +I b 2 [0,2000) b@1997 → -U b 2 [0,2000), +U b 3 [0,2000) "
        "W 6000 → +I b 3 [0,3000) b@1998 → late b@1998",
    ),
    "sessions": (
        Session(3000), "final", 0,
        "b:1@0 b:2@1000 b:3@2500 a:1@10 a:2@1000 a:3@2500 b:4@5501 b:5@6000 b:5@6000 b:6@6050 "
        "W 12000 → b 6 [0,5500), a 6 [10,5500), b 20 [5501,9050) b:10@15000 b:20@15000 W 17999 "
        "W 18000 → b 30 [15000,18000)",
    ),
    "a late row joins open sessions": (Session(3000), "final", 0, f"{S1} → k 5 [1000,11500)"),
    "sessions, little lateness": (
        Session(3000), "changes", 10,
        f"{S1} → +I k 5 [1000,11500) 11600 W 14600 → +I k 1 [11600,14600) 10000 → late k@10000 "
        "14500 → -D k 1 [11600,14600) W 20000 → +I k 2 [11600,17500) W 100000",
    ),
    "sessions that were shown are joined": (
        Session(3000), "changes", 10_000,
        f"{S1} → +I k 5 [1000,11500) 11600 W 14600 → +I k 1 [11600,14600) "
        "10000 → -D k 5 [1000,11500), -D k 1 [11600,14600), +I k 7 [1000,14600) 14500 → -D k 7 [1000,14600) "
        "W 20000 → +I k 8 [1000,17500) W 100000",
    ),
    "sessions of PyFlink": (Session(5), "final", 0, "1 2 3 4 8 9 15 drain → k 6 [1,14), k 1 [15,20)"),
    "gaps of the rows": (
        Session(lambda row: row.v), "final", 0,
        "k:1@1 k:2@2 k:3@3 k:4@4 k:9@9 k:9@9 k:15@15 drain → k 10 [1,8), k 33 [9,30)",
    ),
    "gaps of the rows, one by one": (
        Session(lambda row: row.v), "final", 0,
        "k:4@0 k:4@0 k:2@3 k:2@4 k:3@1 k:3@11 k:3@10 k:3@12 drain → k 15 [0,6), k 9 [10,15)",
    ),
    "gaps of the rows that touch": (
        Session(lambda row: row.v), "final", 0,
        "k:3@0 k:3@5 k:3@10 k:2@8 k:2@3 j:1@1 j:3@0 drain → k 13 [0,13), j 4 [0,3)",
    ),
    "a row that reaches back to a closed session": (
        Session(4), "final", 0, "24 W 28 → k 1 [24,28) W 32 31 28 → late k@28 drain → k 1 [31,35)",
    ),
    "a late row inside of an open session": (
        Session(4), "final", 0, "20 24 28 W 31 22 19 → late k@19 drain → k 4 [20,32)",
    ),
    "a session comes late": (Session(2), "final", 0, "1 W -10 13 W 2 3 drain → k 2 [1,5), k 1 [13,15)"),
    "a session comes in time": (Session(2), "final", 0, "1 W -10 3 W -8 13 W 2 drain → k 2 [1,5), k 1 [13,15)"),
    "sessions of Spark": (
        Session(10_000), "final", 0,
        "hello@40000 world@40000 spark@40000 streaming@40000 W 9999 world@41000 hello@41000 structured@41000 "
        "streaming@41000 W 10999 spark@25000 streaming@25000 spark@0 → late spark@0 streaming@0 → late streaming@0 "
        "spark@30000 streaming@30000 hello@60000 apache@60000 spark@60000 W 29999 structured@90000 streaming@90000 "
        "W 60000 → spark 3 [25000,50000), streaming 4 [25000,51000), hello 2 [40000,51000), world 2 [40000,51000), "
        "structured 1 [41000,51000)",
    ),
    "lateness, as in Flink": (
        Tumbling(2000), "firings", 500,
        "b@500 W 1500 b@1300 W 2300 → b 2 [0,2000) b@1997 → b 3 [0,2000) W 6000 b@1998 → late b@1998",
    ),
    "sliding, as in Flink": (
        Sliding(3000, every=1000), "firings", 1500,
        "b@1000 W 1999 → b 1 [-1000,2000) W 3000 → b 1 [0,3000) b@1500 → b 2 [-1000,2000), b 2 [0,3000) "
        "W 3999 → b 2 [1000,4000) b@1700 → b 3 [0,3000), b 3 [1000,4000) W 9000",
    ),
    "sessions that fired are joined, as in Flink": (
        Session(3000), "firings", 10_000,
        f"{S1} → k 5 [1000,11500) 11600 W 14600 → k 1 [11600,14600) 10000 → k 7 [1000,14600) 14500 "
        "W 20000 → k 8 [1000,17500) W 100000",
    ),
    "sessions, running": (
        Session(G), "running", 0,
        f"k@0 → +I k 1 [0,{G}) k@5 → -D k 1 [0,{G}), +I k 2 [0,{G + 5}) j@0 → +I j 1 [0,{G}) "
        f"j@{G + 1} → +I j 1 [{G + 1},{2 * G + 1}) "
        f"j@{G // 2} → -D j 1 [0,{G}), -D j 1 [{G + 1},{2 * G + 1}), +I j 3 [0,{2 * G + 1})",
    ),
}  # fmt: skip


def function_of(windows: Any, emit: Emit | Literal["firings"], lateness: int) -> Any:
    columns = to_type(COLUMNS, parameter="rows")
    assert isinstance(columns, StructType)
    made = plan({"n": sum_("v")}, columns)
    if emit == "firings":
        settings = WindowSettings(lateness, LATE, firings=True)
    else:
        settings = WindowSettings(lateness, LATE, emit)
    contents, emitter = WindowAccumulators(made), RowsWithBounds()
    return (SessionWindows if isinstance(windows, Session) else AlignedWindows)(
        windows, contents, emitter, settings
    )


def steps_of(text: str) -> list[tuple[str, list[str]]]:
    """Each step, and what comes out of it."""
    results = r"(?:[+-][IUD] )?\w+ -?\d+ \[-?\d+,-?\d+\)|late \w+@\d+"
    step = rf"(W -?\d+|drain|(?:\w+(?::\d+)?@)?\d+)(?: → ((?:{results})(?:, (?:{results}))*))?(?: |$)"
    assert re.fullmatch(f"(?:{step})+", text), text
    return [(match[1], re.findall(results, match[2] or "")) for match in re.finditer(step, text)]


def row_of(step: str) -> Row:
    match = re.fullmatch(r"(?:(\w+?)(?::(\d+))?@)?(\d+)", step)
    assert match is not None
    return Row(k=match[1] or "k", v=int(match[2] or 1), at=int(match[3]))


OPTIONS: dict[str, Any] = {"key_by": lambda row: row.k, "timestamp_of": lambda row: row.at}
TYPES: dict[str, Any] = {
    "key_type": str,
    "input_type": COLUMNS,
    "output_type": "key string, window_start timestamp, window_end timestamp, n bigint",
}


def shown(output: Row, *, kinds: bool) -> str:
    k, start, end, n = tuple(output)
    prefix = f"{output.get_row_kind()} " if kinds else ""
    return f"{prefix}{k} {n} [{ms(start)},{ms(end)})"


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@forms_of({name: partial(function_of, *of) for name, (*of, _) in VECTORS.items()})
def test_examples_hold_with_a_restore_between_every_two_batches(
    name: str, columns: float, size: int, parallelism: int, backend: Any
) -> None:
    windows, emit, lateness, text = VECTORS[name]
    by = {**OPTIONS, **TYPES, "parallelism": parallelism, "backend": backend}
    make = partial(function_of, windows, emit, lateness)
    run = Mixed(make, random.Random(0), lambda _: by, late=LATE, columns=columns)
    for steps in together(steps_of(text), size):
        (step, _), *_ = steps
        if step.startswith("W "):
            outputs = run.process([], watermark=int(step[2:]))
        elif step == "drain":
            outputs = run.process([], drain=True)
        else:
            outputs = run.process([row_of(step) for step, _ in steps])
        came = [shown(one, kinds=emit in ("changes", "running")) for one in outputs]
        came += [f"late {row.k}@{row.at}" for row in run.late]
        run.late = []
        assert sorted(came) == sorted(result for _, results in steps for result in results), steps
    assert run.runs["columns" if columns else "elements"]


def test_results_have_the_last_millisecond_of_their_window_as_event_time() -> None:
    run = KeyedHarness(function_of(Tumbling(3000), "final", 100), **OPTIONS)
    run.process([row_of("a@20")])
    run.set_watermark(3099)
    assert len(run.process([])) == 1
    assert run.output_timestamps == [2999]


@pytest.mark.parametrize("windows", [Tumbling(1000), Session(1000)])
def test_a_row_of_a_window_that_no_timestamp_ends_is_refused_and_no_other(windows: Any) -> None:
    last, before = row_of("b@253402300799999"), row_of("b@253402300798000")
    with pytest.raises(ValueTypeError, match="reaches out of the years 1 to 9999: filter such rows"):
        KeyedHarness(function_of(windows, "final", 0), **OPTIONS).process([last])
    run = KeyedHarness(function_of(windows, "final", 0), on_error="dead_letter", **OPTIONS)
    assert run.process([last, before]) == []
    assert [refusal.index for refusal in run.refused] == [0]
    assert [n for *_, n in run.drain()] == [1]
