"""Operators beside those of Flink's SQL: equal for rows in time, and what late rows change stands in a guide.

``make test-flink`` installs PyFlink in an environment of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from state_engine import FileSource, Row, RowKind, StatefulJob, count, step, sum_
from state_engine.job.streams import DataStream, KeyedStream
from state_engine.testing import CollectSink, run_in_memory
from tests.flink import flink_spans
from tests.flink.running import compared, instant, ms, printed_by, shown_in
from tests.support.environments import REPOSITORY

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900)]

GUIDE = REPOSITORY / "docs" / "guides" / "which_operator.md"
BOUND = 5
ROW = "k string, v bigint, at timestamp"
STEPS = (step("a", where=lambda row: row.v < 0), step("b", where=lambda row: row.v > 3))
Events = list[tuple[str, int, int]]


def joined(left: KeyedStream, right: KeyedStream, *, how: str) -> DataStream:
    return left.join(right, within=(-9, 5), how=how, uid="one")


ALONE: dict[str, Callable[[KeyedStream], DataStream]] = {
    "over time": lambda rows: rows.over(n=count(last=20), total=sum_("v", last=20), uid="one"),
    "over rows": lambda rows: rows.over(n=count(last_rows=4), total=sum_("v", last_rows=4), uid="one"),
    "over all": lambda rows: rows.over(n=count(), total=sum_("v"), uid="one"),
    "first": lambda rows: rows.drop_duplicates(emit="final", uid="one"),
    "last": lambda rows: rows.drop_duplicates(keep="last", uid="one"),
    "top": lambda rows: rows.top_n(3, by="v", rank=False, uid="one"),
    "strict": lambda rows: rows.sequence(*STEPS, within=20, strict=True, uid="one"),
    "relaxed": lambda rows: rows.sequence(*STEPS, within=20, uid="one"),
}
JOINED: dict[str, Callable[[KeyedStream, KeyedStream], DataStream]] = {
    **{f"{how} join": partial(joined, how=how) for how in ("inner", "left", "right", "full")},
    "as of": lambda left, right: left.join_asof(right, uid="one"),
}


def rows_by_chance(seed: int, number: int, *, behind: tuple[int, ...]) -> Events:
    rng, newest, rows = random.Random(seed), 100, []
    for _ in range(number):
        newest += rng.choice([0, 1, 2, 5, 9])
        rows.append((rng.choice("abc"), rng.randint(-9, 9), newest - rng.choice(behind)))
    return rows


IN_TIME = (0, 0, 1, BOUND)
LEFT, RIGHT = (rows_by_chance(seed, 2_000, behind=IN_TIME) for seed in (1, 2))
LATE = rows_by_chance(3, 2_000, behind=(*IN_TIME, BOUND + 1, 15))


def by_flink(left: Events, right: Events, directory: Path, *queries: str) -> dict[str, Counter[Any]]:
    files = []
    for name, rows in (("l", left), ("r", right)):
        file = directory / f"{name}.csv"
        file.write_text("".join(f"{k},{v},{at}\n" for k, v, at in rows))
        files.append(file)
    results = printed_by("operators_program.py", *files, BOUND, *queries)
    return {query: Counter(map(tuple, rows)) for query, rows in results.items()}


def ours(
    made: Callable[..., DataStream], left: Events, right: Events | None = None
) -> Counter[tuple[Any, ...]]:
    """The table that results of a job lead to, whose micro-batches are cut by chance."""
    job, rng = StatefulJob("beside_flink", parallelism=2), random.Random(7)
    given = {"l": left} if right is None else {"l": left, "r": right}
    streams = [
        job.source(
            name, FileSource("/nowhere", schema=ROW), event_time="at", max_out_of_orderness=f"{BOUND} ms"
        ).key_by("k")
        for name in given
    ]
    made(*streams).sink("results", CollectSink())
    rest = {name: [(k, v, instant(at)) for k, v, at in rows] for name, rows in given.items()}
    with run_in_memory(job) as run:
        while any(rest.values()):
            cuts = {name: rng.randint(1, 700) for name in rest}
            run.process({name: rows[: cuts[name]] for name, rows in rest.items()})
            rest = {name: rows[cuts[name] :] for name, rows in rest.items()}
        run.process(drain=True)
        return table_of(run.sink("results"))


def table_of(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    table: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        kind = row.get_row_kind() if isinstance(row, Row) else RowKind.INSERT
        gone = kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE)
        table[tuple(ms(value) if isinstance(value, datetime) else value for value in row)] += (
            -1 if gone else 1
        )
    return +table


@pytest.fixture(scope="module")
def in_time(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[Any]]:
    return by_flink(LEFT, RIGHT, tmp_path_factory.mktemp("in_time"), *ALONE, *JOINED)


@pytest.fixture(scope="module")
def with_late(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[Any]]:
    return by_flink(LATE, RIGHT, tmp_path_factory.mktemp("late"), *ALONE)


@pytest.fixture(scope="module")
def counts() -> dict[tuple[str, str], tuple[int, int, int]]:
    return {}


@pytest.mark.parametrize("name", [*ALONE, *JOINED])
def test_results_are_those_of_flink_where_no_row_is_late(
    name: str, in_time: dict[str, Counter[Any]], counts: dict[tuple[str, str], Any]
) -> None:
    results = ours(ALONE[name], LEFT) if name in ALONE else ours(JOINED[name], LEFT, RIGHT)
    counts["in time", name] = compared(in_time[name], results)
    assert results == in_time[name]


@pytest.mark.parametrize("name", ALONE)
def test_late_rows_differ_as_the_guide_says(
    name: str, with_late: dict[str, Counter[Any]], counts: dict[tuple[str, str], Any]
) -> None:
    counts["some late", name] = compared(with_late[name], ours(ALONE[name], LATE))


def test_flinks_bounded_spans_take_rows_that_are_late_here(with_late: dict[str, Counter[Any]]) -> None:
    assert with_late["over time"] == flink_spans.fired(LATE, bound=BOUND, span=20)
    assert with_late["over rows"] == flink_spans.fired(LATE, bound=BOUND, rows=4)


def test_the_table_of_the_guide_has_these_counts(counts: dict[tuple[str, str], Any]) -> None:
    assert len(counts) == len(ALONE) * 2 + len(JOINED), "run the whole file"
    assert shown_in(GUIDE) == counts
