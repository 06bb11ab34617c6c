"""Windows beside those of Flink itself: equal, but for what sessions do otherwise on purpose.

The table of the guide about windows has the counts. ``make test-flink`` installs PyFlink in an environment of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from state_engine import (
    Cumulating,
    FileSource,
    OutputTag,
    ProcessWindowFunction,
    Session,
    Sliding,
    StatefulJob,
    Tumbling,
    count,
    sum_,
)
from state_engine.testing import CollectSink, run_in_memory
from tests.flink.flink_sessions import fired
from tests.flink.running import compared, instant, ms, printed_by, shown_in
from tests.operators.windows import models
from tests.operators.windows.models import Event
from tests.support.environments import REPOSITORY

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900)]

GUIDE = REPOSITORY / "docs" / "guides" / "windows.md"
BOUND, GAP = 5, 6
LATENESS = (0, 4)
ROW = "k string, v bigint, at timestamp"
WINDOWS: dict[str, Tumbling | Sliding | Cumulating | Session] = {
    "tumbling": Tumbling(7),
    "sliding": Sliding(12, every=4),
    "cumulating": Cumulating(12, every=4),
    "session": Session(GAP),
}
MODELS = {
    "tumbling": models.tumbling(7),
    "sliding": models.sliding(12, 4),
    "cumulating": models.cumulating(12, 4),
}
Results = dict[str, Counter[tuple[Any, ...]]]


def rows_by_chance(seed: int, number: int) -> list[Event]:
    """Rows up to and beyond the bound behind, many of them exactly so far.

    All are after 1970: Flink's tables emit no watermark before, so no row would be late there.
    """
    rng, newest, rows = random.Random(seed), 100, []
    for _ in range(number):
        newest += rng.choice([0, 1, 2, 5, 9])
        behind = rng.choice([0, 0, 1, BOUND, BOUND + 1, 15])
        rows.append(Event(rng.choice("abc"), rng.randint(-9, 9), 0.0, newest - behind))
    return rows


STREAM, TABLE = rows_by_chance(1, 600), rows_by_chance(2, 8_000)


def by_flink(api: str, rows: list[Event], directory: Path, *, lateness: int) -> Results:
    """By windows, what Flink emits."""
    file = directory / f"{api}.csv"
    file.write_text("".join(f"{row.k},{row.v},{row.at}\n" for row in rows))
    results: Results = {}
    for name, *result in printed_by("program.py", api, file, BOUND, lateness):
        results.setdefault(name, Counter())[tuple(result)] += 1
    return results


def ours(rows: list[Event], name: str, *, lateness: int) -> tuple[Counter[tuple[Any, ...]], Counter[Event]]:
    """Results and late rows of a job, whose micro-batches are cut by chance."""
    rng, late = random.Random(7), OutputTag("late", ROW)
    job = StatefulJob("windows", parallelism=2)
    source = FileSource("/nowhere", schema=ROW)
    stream = job.source("rows", source, event_time="at", max_out_of_orderness=f"{BOUND} ms")
    windows = stream.key_by("k").window(WINDOWS[name], lateness=lateness, late_to=late)
    results = windows.aggregate(n=count(), total=sum_("v"), uid="windows")
    results.sink("windows", CollectSink())
    results.get_side_output(late).sink("late", CollectSink())
    given = [(row.k, row.v, instant(row.at)) for row in rows]
    with run_in_memory(job) as run:
        while given:
            cut = rng.randint(1, 2_000)
            run.process({"rows": given[:cut]})
            given = given[cut:]
        run.process(drain=True)
        windowed = Counter((k, ms(s), ms(e), n, total) for k, s, e, n, total in run.sink("windows"))
        return windowed, Counter(Event(k, v, 0.0, ms(at)) for k, v, at in run.sink("late"))


def table_of(windowed: models.Windowed) -> Counter[tuple[Any, ...]]:
    return Counter((*window, len(rows), sum(row.v for row in rows)) for window, rows in windowed.rows.items())


@pytest.fixture(scope="module", params=LATENESS)
def streams(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Results]:
    lateness: int = request.param
    return lateness, by_flink("streams", STREAM, tmp_path_factory.mktemp("streams"), lateness=lateness)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = by_flink("sql", TABLE, tmp_path_factory.mktemp("sql"), lateness=0)
    return {
        name: Counter({(k, ms(s), ms(e), n, total): times for (k, s, e, n, total), times in of.items()})
        for name, of in results.items()
    }


@pytest.fixture(scope="module")
def counts() -> dict[tuple[str, str], tuple[int, int, int]]:
    """By API and windows: how many results are in both, and only in Flink's or only in ours."""
    return {}


class Sums(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        rows = list(elements)
        yield key, context.window().start, context.window().end, len(rows), sum(row.v for row in rows)


def firings_of_ours(rows: list[Event], name: str, *, lateness: int) -> Counter[tuple[Any, ...]]:
    """Each firing of the same program by the names of PyFlink."""
    job = StatefulJob("windows", parallelism=2)
    source = FileSource("/nowhere", schema=ROW)
    stream = job.source("rows", source, event_time="at", max_out_of_orderness=f"{BOUND} ms")
    windows = stream.key_by("k").window(WINDOWS[name]).allowed_lateness(lateness)
    fired = windows.process(Sums(), "k string, s bigint, e bigint, n bigint, total bigint", uid="windows")
    fired.sink("windows", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": [(row.k, row.v, instant(row.at)) for row in rows]})
        run.process(drain=True)
        return Counter(map(tuple, run.sink("windows")))


@pytest.mark.parametrize("name", ["tumbling", "sliding"])
def test_streams_of_flink_have_the_same_windows_and_late_rows(
    name: str, streams: tuple[int, Results], counts: dict[tuple[str, str], Any]
) -> None:
    lateness, results = streams
    late, firings = late_and_firings(results[name])
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for result in firings:  # each firing of a window has more rows than the one before
        last[result[:3]] = max(result, last.get(result[:3], result), key=lambda one: one[3])
    windowed, rows = ours(STREAM, name, lateness=lateness)
    assert (
        windowed
        == Counter(last.values())
        == table_of(models.aligned(STREAM, MODELS[name], bound=BOUND, lateness=lateness))
    )
    assert rows == late
    assert firings_of_ours(STREAM, name, lateness=lateness) == firings
    counts[f"DataStream, lateness {lateness} ms", name] = compared(Counter(last.values()), windowed)


def late_and_firings(results: Counter[tuple[Any, ...]]) -> tuple[Counter[Event], Counter[tuple[Any, ...]]]:
    late = Counter({Event(k, v, 0.0, at): n for (k, at, v, rows, _), n in results.items() if rows == -1})
    return late, Counter({result: n for result, n in results.items() if result[3] != -1})


def test_sessions_of_streams_differ_by_what_the_guide_says(
    streams: tuple[int, Results], counts: dict[tuple[str, str], Any]
) -> None:
    lateness, results = streams
    late, firings = late_and_firings(results["session"])
    theirs = fired(STREAM, GAP, bound=BOUND, lateness=lateness)
    assert firings == theirs.results
    assert late == theirs.late
    windowed, _ = ours(STREAM, "session", lateness=lateness)
    assert windowed == table_of(models.sessions(STREAM, lambda _: GAP, bound=BOUND, lateness=lateness))
    counts[f"DataStream, lateness {lateness} ms", "session"] = compared(firings, windowed)


@pytest.mark.parametrize("name", ["tumbling", "sliding", "cumulating"])
def test_sql_of_flink_has_the_same_windows(
    name: str, tables: Results, counts: dict[tuple[str, str], Any]
) -> None:
    windowed, _ = ours(TABLE, name, lateness=0)
    assert windowed == tables[name]
    counts["SQL", name] = compared(tables[name], windowed)


def test_sessions_of_sql_differ_by_what_the_guide_says(
    tables: Results, counts: dict[tuple[str, str], Any]
) -> None:
    theirs = fired(TABLE, GAP, bound=BOUND, lateness=0)
    assert tables["session"] == theirs.results
    windowed, _ = ours(TABLE, "session", lateness=0)
    assert windowed == table_of(models.sessions(TABLE, lambda _: GAP, bound=BOUND, lateness=0))
    counts["SQL", "session"] = compared(tables["session"], windowed)


def test_the_table_of_the_guide_has_these_counts(counts: dict[tuple[str, str], Any]) -> None:
    assert len(counts) == 2 * 3 + 4, "run the whole file"
    assert shown_in(GUIDE) == counts
