"""Windows against models: random streams, cuts, restores, parallelisms and backends, for each way to emit."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from state_engine import OutputTag, RowKind, avg, count, max_, min_, sum_
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
from tests.operators.any_cut import at_any_cut
from tests.operators.windows import models
from tests.operators.windows.models import Event, Table, Windowed

LATE = OutputTag("late", "k string, v bigint, x double, at bigint")
AGGREGATES = {"n": count(), "s": sum_("v"), "m": avg("v"), "lo": min_("v"), "hi": max_("v"), "x": sum_("x")}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUND = 4
Model = Callable[..., Windowed]


def operator(
    windows: Any, *, emit: Emit = "final", lateness: int = 0, late_to: OutputTag | None = LATE
) -> Any:
    columns = to_type("k string, v bigint, x double, at bigint", parameter="rows")
    assert isinstance(columns, StructType)
    made = plan(AGGREGATES, columns, retract=False)
    settings = WindowSettings(lateness, late_to, emit)
    contents, emitter = WindowAccumulators(made), RowsWithBounds()
    return (SessionWindows if isinstance(windows, Session) else AlignedWindows)(
        windows, contents, emitter, settings
    )


def options(parallelism: int = 1, backend: Any = None, bound: int | None = BOUND) -> dict[str, Any]:
    return {
        "key_by": lambda row: row.k,
        "timestamp_of": lambda row: row.at,
        "max_out_of_orderness_ms": bound,
        "parallelism": parallelism,
        "backend": backend,
    }


def ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def apply(table: Table, outputs: list[Any], *, emit: Emit) -> None:
    """Take outputs into a table, and hold each to it: what is taken back was there, what is new was not."""
    for output in outputs:
        kind, (k, start, end, *values) = (RowKind.INSERT, output) if emit == "final" else output
        window, row = (k, ms(start), ms(end)), tuple(values)
        if kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE):
            assert table.pop(window) == row
        else:
            assert window not in table
            table[window] = row


def stream(seed: int, count: int = 30) -> list[Event]:
    """Displacements of up to and exactly the bound, some rows far behind, times before 1970, too."""
    rng = random.Random(seed)
    newest, rows = rng.choice([-20, 0, 1_000_000]), []
    for _ in range(count):
        newest += rng.choice([0, 0, 1, 2, 5, 12])
        behind = rng.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])
        rows.append(
            Event(rng.choice("ab"), rng.randint(-5, 5), rng.choice([0.1, 1e16, -1e16, 2.5]), newest - behind)
        )
    return rows


def computed(row: Event) -> int:
    return abs(row.v) + 1


ASSIGNERS: dict[str, tuple[Any, Model]] = {
    "tumbling": (Tumbling(5), lambda rows, **by: models.aligned(rows, models.tumbling(5), **by)),
    "offset": (Tumbling(7, offset=3), lambda rows, **by: models.aligned(rows, models.tumbling(7, 3), **by)),
    "sliding": (Sliding(6, every=2), lambda rows, **by: models.aligned(rows, models.sliding(6, 2), **by)),
    "uneven": (Sliding(5, every=2), lambda rows, **by: models.aligned(rows, models.sliding(5, 2), **by)),
    "cumulating": (
        Cumulating(9, every=3),
        lambda rows, **by: models.aligned(rows, models.cumulating(9, 3), **by),
    ),
    "session": (Session(4), lambda rows, **by: models.sessions(rows, lambda row: 4, **by)),
    "computed": (Session(computed), lambda rows, **by: models.sessions(rows, computed, **by)),
}
FEW, MORE = range(2), range(2, 18)
SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        pytest.param(range(1, 4), marks=pytest.mark.more),
        pytest.param(range(4, 1000), marks=pytest.mark.long),
    ],
    ids=["few", "more", "many"],
)
"""Of the tests of aggregates and of what windows are used for; windows themselves have more in the first two rings."""


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MORE, marks=pytest.mark.more)], ids=["few", "more"])
@pytest.mark.parametrize("lateness", [0, 3, 20])
@pytest.mark.parametrize("emit", ["final", "changes", "running"])
@pytest.mark.parametrize("name", ASSIGNERS)
def test_any_stream_gives_the_windows_of_the_model(
    name: str, emit: Emit, lateness: int, seeds: range
) -> None:
    if emit == "changes" and lateness == 0:
        pytest.skip("refused: nothing could change")
    windows, model = ASSIGNERS[name]
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        expected = model(rows, bound=BOUND, lateness=lateness)
        make = partial(operator, windows, emit=emit, lateness=lateness)
        ran, table = at_any_cut(make, rows, rng, options, late=LATE), Table()
        apply(table, ran.outputs, emit=emit)
        assert table == expected.table, f"seed {seed}"
        assert [tuple(row) for row in ran.late] == expected.late, f"seed {seed}"
        # nothing is left; but of sessions with computed gaps one number a key, for any gap could reach it
        assert ran.left <= ({"closed"} if name == "computed" else set()), f"seed {seed}"
