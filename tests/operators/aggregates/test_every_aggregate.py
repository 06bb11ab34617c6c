"""All aggregates on keyed streams and in windows, against their definitions: orders, cuts, restores, kinds of rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest

from state_engine import (
    Cumulating,
    OutputTag,
    RowKind,
    Session,
    Sliding,
    Tumbling,
)
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates
from state_engine.operators.aggregates.plan import AggregatePlan, plan
from state_engine.operators.windows.aligned_windows import AlignedWindows
from state_engine.operators.windows.session_windows import SessionWindows
from state_engine.operators.windows.window_results import (
    Emit,
    RowsWithBounds,
    WindowAccumulators,
    WindowSettings,
)
from state_engine.testing import KeyedHarness
from tests.operators.aggregates.readings import ALL, RETRACTABLE, ROWS, Reading, expected, plain, reading
from tests.operators.any_cut import Ran, at_any_cut
from tests.operators.windows import models
from tests.operators.windows.test_windows import SEEDS

INSERT, BEFORE, AFTER, DELETE = RowKind
GONE = (BEFORE, DELETE)
LATE = OutputTag("late", ROWS)
BOUND = 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Change = tuple[RowKind, Reading]


def planned(asked: dict[str, Aggregate], *, retract: bool = False, merge: bool = False) -> AggregatePlan:
    columns = to_type(ROWS, parameter="rows")
    assert isinstance(columns, StructType)
    return plan(asked, columns, retract=retract, merge=merge)


def options(
    changing: bool, parallelism: int = 1, backend: Any = None, *, bound: int = BOUND
) -> dict[str, Any]:
    by: dict[str, Any] = {"key_by": lambda row: row.k, "timestamp_of": lambda row: row.at}
    given = {"parallelism": parallelism, "backend": backend, "changing": changing}
    return {**by, **given, "max_out_of_orderness_ms": bound}


def stream(rng: random.Random, count: int = 25) -> list[Reading]:
    """Rows up to and exactly the bound behind, some of one time, some far behind, before 1970, too."""
    newest, rows = rng.choice([-20, 0, 1_000_000]), []
    for _ in range(count):
        newest += rng.choice([0, 0, 1, 2, 5, 12])
        rows.append(reading(rng, newest - rng.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])))
    return rows


def history(rng: random.Random, count: int = 40) -> list[Change]:
    """Inserts, updates and deletes; an update may move a row to another key and time."""
    table: list[Reading] = []
    changes: list[Change] = []
    newest = 0
    for _ in range(count):
        newest += rng.choice([0, 0, 1, 2, 5])
        choice = rng.random()
        if not table or choice < 0.5:
            table.append(reading(rng, newest - rng.choice([0, 1, BOUND, 9])))
            changes.append((INSERT, table[-1]))
            continue
        old = table.pop(rng.randrange(len(table)))
        changes.append((BEFORE if choice < 0.75 else DELETE, old))
        if choice < 0.75:
            table.append(reading(rng, rng.choice([old.at, newest])))
            changes.append((AFTER, table[-1]))
    return changes


def left(changes: list[Change]) -> list[Reading]:
    rows: list[Reading] = []
    for kind, row in changes:
        if kind in GONE:
            rows.pop(next(at for at, one in enumerate(rows) if repr(one) == repr(row)))
        else:
            rows.append(row)
    return rows


def shown(output: Any) -> tuple[Any, ...]:
    return tuple(plain(part) for part in output)


# -- keyed streams -------------------------------------------------------------------------------------------------


@SEEDS
def test_each_result_of_a_keyed_stream_is_that_of_the_rows_so_far(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        rows = stream(rng)
        ran = at_any_cut(lambda: KeyedAggregates(planned(ALL)), rows, rng, partial(options, False))
        assert len(ran.outputs) == len(rows)
        for key in "ab":
            mine = [row for row in rows if row.k == key]
            results = [shown(output) for output in ran.outputs if output[0] == key]
            assert results == [(key, *of(ALL, mine[: at + 1])) for at in range(len(mine))], f"seed {seed}"


@SEEDS
def test_changes_of_a_keyed_stream_are_a_table_of_the_rows_left(seeds: range) -> None:
    def made() -> KeyedAggregates:
        return KeyedAggregates(planned(RETRACTABLE, retract=True), emits_changes=True)

    for seed in seeds:
        rng = random.Random(seed)
        changes = history(rng)

        def checked(ran: Ran, came: int, changes: list[Change] = changes, rng: random.Random = rng) -> None:
            rows, table = left(changes[:came]), dict[Any, Any]()
            apply(table, ran.outputs, width=1)
            keys = {row.k for row in rows}
            assert table == {(k,): of(RETRACTABLE, [r for r in rows if r.k == k]) for k in keys}
            fresh = KeyedHarness(made(), **options(True))
            fresh.process([(INSERT, row) for row in rng.sample(rows, len(rows))])
            assert states(ran.run) == states(fresh)

        at_any_cut(made, changes, rng, partial(options, True), behind=checked)


def states(run: KeyedHarness) -> dict[tuple[str, str], str]:
    """All that is stored, without the order of a list that the function of a user keeps."""
    kept = {}
    for name, entries in run.snapshot().keyed.entries.items():
        for key, stored in entries.items():
            if name == "aggregates":
                stored = (*stored[:-1], (sorted(stored[-1][0]),))
            kept[name, str(key)] = plain_state(stored)
    return kept


def plain_state(stored: Any) -> str:
    if isinstance(stored, dict):
        return repr(sorted((repr(key), repr(value)) for key, value in stored.items()))
    return repr(plain(stored))


def apply(table: dict[Any, Any], outputs: list[Any], *, width: int, final: bool = False) -> None:
    """Take outputs into a table by their first columns; what is taken back was there, and what is new was not."""
    for output in outputs:
        kind, row = (INSERT, output) if final else output
        row = shown(row)
        if kind in GONE:
            assert table.pop(row[:width]) == row[width:]
        else:
            assert row[:width] not in table
            table[row[:width]] = row[width:]


def of(asked: dict[str, Aggregate], rows: list[Reading]) -> tuple[Any, ...]:
    return tuple(map(plain, expected(asked, rows)))


# -- windows -------------------------------------------------------------------------------------------------------


def sized(windows: Callable[[int], Any]) -> Callable[..., models.Windowed]:
    return lambda rows, **by: models.aligned(rows, windows, **by)


ASSIGNERS: dict[str, tuple[Any, Callable[..., models.Windowed]]] = {
    "tumbling": (Tumbling(5), sized(models.tumbling(5))),
    "sliding": (Sliding(6, every=2), sized(models.sliding(6, 2))),
    "uneven": (Sliding(5, every=2), sized(models.sliding(5, 2))),
    "cumulating": (Cumulating(9, every=3), sized(models.cumulating(9, 3))),
    "session": (Session(4), lambda rows, **by: models.sessions(rows, lambda row: 4, **by)),
}
NIGHTS = [
    ("America/Los_Angeles", 4, 1, datetime(2021, 3, 14, 10, tzinfo=UTC)),
    ("Europe/Rome", 1, 0.25, datetime(2023, 10, 29, 1, tzinfo=UTC)),
    ("America/Sao_Paulo", 6, 3, datetime(2018, 11, 4, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", 1, 0.25, datetime(2024, 4, 6, 15, tzinfo=UTC)),
]
"""Zones, the hours of windows and of their parts, and when the clock is changed."""
OF_CLOCK: dict[str, tuple[Any, Callable[..., Any]]] = {
    "sliding_clock": (Sliding, models.sliding_of_clock),
    "cumulating_clock": (Cumulating, models.cumulating_of_clock),
}
QUARTER_MS = 15 * 60_000


def computed(row: Reading) -> int:
    return abs(row.v or 0) + 1


class Cell(NamedTuple):
    """Windows, what they are, and streams for them.

    Attributes:
        unit_ms: what streams count in.
        origin_ms: their time 0.
        stays: names of states that keep something after draining.
    """

    windows: Any
    model: Callable[..., models.Windowed]
    unit_ms: int = 1
    origin_ms: int = 0
    stays: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, seed: int) -> Cell:
        if name == "offset":
            return cls(Tumbling(7, offset=3), sized(models.tumbling(7, 3)))
        if name == "computed":  # any gap could reach the last session that is closed
            model = lambda rows, **by: models.sessions(rows, computed, **by)  # noqa: E731
            return cls(Session(computed), model, stays=frozenset({"closed"}))
        if name.endswith("clock"):
            return cls.of_clock(name, *NIGHTS[seed % len(NIGHTS)])
        return cls(*ASSIGNERS[name])

    @classmethod
    def of_clock(cls, name: str, zone: str, hours: int, part: float, change: datetime) -> Cell:
        at_ms, size, every = (change - EPOCH) // timedelta(milliseconds=1), hours * 60, int(part * 60)
        if name == "clock":
            windows = Tumbling(timedelta(minutes=size), time_zone=zone)
            return cls(windows, sized(models.of_clock(zone, size)), QUARTER_MS, at_ms)
        make, model = OF_CLOCK[name]
        windows = make(timedelta(minutes=size), every=timedelta(minutes=every), time_zone=zone)
        return cls(windows, sized(model(zone, size, every)), QUARTER_MS, at_ms)

    def rows(self, rng: random.Random) -> list[Reading]:
        rows = stream(rng)
        origin = rows[len(rows) // 2].at if self.origin_ms else 0
        return [row._replace(at=self.origin_ms + (row.at - origin) * self.unit_ms) for row in rows]


def operator(
    windows: Any, asked: dict[str, Aggregate], *, emit: Emit, lateness: int, retract: bool = False
) -> Any:
    late_to = None if retract and emit == "final" else LATE
    made = planned(asked, retract=retract, merge=not isinstance(windows, Tumbling))
    contents, settings = WindowAccumulators(made, takes_back=retract), WindowSettings(lateness, late_to, emit)
    make = SessionWindows if isinstance(windows, Session) else AlignedWindows
    return make(windows, contents, RowsWithBounds(), settings)


def windowed(
    windows: Any, asked: dict[str, Aggregate], rows: list[Any], rng: random.Random, *,
    emit: Emit, lateness: int, changing: bool = False, bound: int = BOUND,
) -> Any:  # fmt: skip
    """The table of results, the late rows, and the names of states in which something is left after draining."""
    make = partial(operator, windows, asked, emit=emit, lateness=lateness, retract=changing)
    by = partial(options, changing, bound=bound)
    ran = at_any_cut(make, rows, rng, by, late=LATE)
    table: dict[Any, Any] = {}
    apply(table, ran.outputs, width=3, final=emit == "final")
    return table, ran.late, ran.left


def keyed_by_instants(asked: dict[str, Aggregate], windows: dict[Any, list[Reading]]) -> dict[Any, Any]:
    """The results of windows with rows."""
    return {
        (k, EPOCH + timedelta(milliseconds=start), EPOCH + timedelta(milliseconds=end)): of(asked, rows)
        for (k, start, end), rows in windows.items()
        if rows
    }


EVERY_EMISSION = pytest.mark.parametrize(
    "emit", ["changes", *(pytest.param(one, marks=pytest.mark.more) for one in ("final", "running"))]
)


def third_of_all(seed: int) -> dict[str, Aggregate]:
    """All aggregates for the first streams; then a third of them for each stream in turn, for that is faster."""
    return ALL if seed < 4 else dict(list(ALL.items())[seed % 3 :: 3])


@SEEDS
@EVERY_EMISSION
@pytest.mark.parametrize(
    "name",
    [
        *ASSIGNERS,
        *(pytest.param(one, marks=pytest.mark.more) for one in ("offset", "computed", "clock", *OF_CLOCK)),
    ],
)
def test_each_aggregate_of_each_window_is_that_of_its_rows(name: str, emit: Emit, seeds: range) -> None:
    """Each assigner, emission and aggregate: of all emissions together each aggregate has a thousand streams.

    Over columns ``test_column_windows`` has as many.
    """
    for seed in seeds:
        rng, cell = random.Random(seed), Cell.of(name, seed)
        lateness = cell.unit_ms * rng.choice([3, 20] if emit == "changes" else [0, 3, 20])
        rows, bound = cell.rows(rng), cell.unit_ms * BOUND
        right = cell.model(rows, bound=bound, lateness=lateness)
        asked = third_of_all(seed)
        table, late, kept = windowed(
            cell.windows, asked, rows, rng, emit=emit, lateness=lateness, bound=bound
        )
        assert table == keyed_by_instants(asked, right.rows), f"seed {seed}"
        assert [shown(row) for row in late] == [shown(row) for row in right.late], f"seed {seed}"
        assert kept <= cell.stays, f"seed {seed}: after draining, {kept} are left"


@SEEDS
@EVERY_EMISSION
@pytest.mark.parametrize("name", [name for name in ASSIGNERS if name != "session"])
def test_windows_of_a_stream_that_changes_are_those_of_the_rows_left(
    name: str, emit: Emit, seeds: range
) -> None:
    windows, model = ASSIGNERS[name]
    for seed in seeds:
        rng = random.Random(seed)
        changes, lateness = history(rng), rng.choice([3, 1000])
        table, late, kept = windowed(
            windows, RETRACTABLE, changes, rng, emit=emit, lateness=lateness, changing=True
        )
        right = of_changes(changes, model, lateness)
        assert table == keyed_by_instants(RETRACTABLE, right.rows), f"seed {seed}"
        if emit != "final":
            assert [(row.get_row_kind(), shown(row)) for row in late] == [
                (k, shown(row)) for k, row in right.late
            ], f"seed {seed}"
        assert not kept, f"seed {seed}: after draining, {kept} are left"


class Marked(NamedTuple):
    """A row with its kind, as the model of windows takes it."""

    k: str
    at: int
    change: Change


def of_changes(
    changes: list[Change], model: Callable[..., models.Windowed], lateness: int
) -> models.Windowed:
    """The rows that the changes of each window leave."""
    marked = [Marked(row.k, row.at, (kind, row)) for kind, row in changes]
    every = model(marked, bound=BOUND, lateness=lateness)
    rows = {window: left([one.change for one in given]) for window, given in every.rows.items()}
    return models.Windowed(rows, [one.change for one in every.late])
