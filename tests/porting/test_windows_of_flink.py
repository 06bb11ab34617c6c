"""Published programs of Flink's with windows run here with changed imports, and two changed lines each.

Hourly tips of its training, the most viewed items, and counts of sessions, written for PyFlink in ``programs/``. Beside
each stands a plain program that gives the rows to expect.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from tests.porting.ported import PROGRAMS, names_of, ported, program
from tests.support.pipelines import MemoryPipeline

CUTS = [1, 7, None]
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 18_262 * DAY


def fares() -> list[tuple[int, int, float]]:
    """Driver, time and tip; up to a minute out of order."""
    rng, at, made = random.Random(3), START, []
    for _ in range(60):
        at += rng.choice([1, 5, 12, 40]) * MINUTE
        made.append((rng.randint(1, 4), at - rng.choice([0, 0, MINUTE]), rng.randint(0, 9) / 2))
    return made


def expected_tips() -> list[tuple[int, int, float]]:
    hours: dict[int, dict[int, float]] = {}
    for driver, at, tip in fares():
        drivers = hours.setdefault(at // HOUR, {})
        drivers[driver] = drivers.get(driver, 0.0) + tip
    best = {hour: max(tips, key=lambda driver: (tips[driver], -driver)) for hour, tips in hours.items()}
    return [((hour + 1) * HOUR, driver, hours[hour][driver]) for hour, driver in sorted(best.items())]


def behaviour() -> list[tuple[int, str, int]]:
    """Item, what somebody did and when, in order of time."""
    rng, at, made = random.Random(4), START, []
    for _ in range(70):
        at += rng.choice([0, 1, 2, 6]) * MINUTE
        made.append((rng.randint(1, 5), rng.choice(["pv", "pv", "pv", "buy"]), at))
    return made


def expected_items() -> list[tuple[int, int, int, int]]:
    views = [(item, at) for item, kind, at in behaviour() if kind == "pv"]
    expected = []
    for end in range(START, max(at for _, at in views) + HOUR + 1, 5 * MINUTE):
        seen = [item for item, at in views if end - HOUR <= at < end]
        ranked = sorted(set(seen), key=lambda item: (-seen.count(item), item))[:3]
        expected += [(end, rank, item, seen.count(item)) for rank, item in enumerate(ranked, 1)]
    return expected


CLICKS = [
    ("ada", "home", 0), ("eva", "article", 1), ("ada", "article", 20), ("eva", "home", 46), ("ada", "home", 64),
    ("bob", "home", 100),  # the watermark is at 95: the visit of eva has ended at 76, that of ada at 94
    ("eva", "home", 76),  # late, within twenty minutes of the end: her visit goes on to 106, and has not ended
    ("bob", "home", 112), ("ada", "home", 10),  # ada's has ended, and takes it: it fires again
    ("bob", "home", 200),  # ends all of them
    ("ada", "home", 30),  # too late for all
]  # fmt: skip
VISITS = [
    ("ada", 0, 94, 3, 1), ("ada", 0, 94, 4, 2), ("bob", 100, 142, 2, 1), ("bob", 200, 230, 1, 2),
    ("eva", 1, 76, 2, 1), ("eva", 1, 106, 3, 2),
]  # fmt: skip
"""User, start and end in minutes, clicks, and how often visits of the user fired so far."""


def clicks() -> list[tuple[str, str, int]]:
    return [(user, page, START + at * MINUTE) for user, page, at in CLICKS]


def run_of(
    cut: int | None, elements: list[Any], kind: Any, build: Callable[[DataStream], dict[str, Any]]
) -> Any:
    def made(job: StatefulJob) -> dict[str, DataStream]:
        return build(job.from_collection(elements, kind, name="given", max_rows_per_batch=cut))

    with MemoryPipeline.of(made, parallelism=2) as pipeline:
        pipeline.run(drain=True)
        return pipeline.outputs()


@pytest.mark.parametrize("cut", CUTS)
def test_hourly_tips(cut: int | None) -> None:
    names = names_of("hourly_tips")
    outputs = run_of(cut, fares(), names["FARE"], lambda given: {"tips": names["hourly_tips"](given)})
    assert [tuple(row) for row in outputs["tips"]] == expected_tips()


@pytest.mark.parametrize("cut", CUTS)
def test_hot_items(cut: int | None) -> None:
    names = names_of("hot_items")
    outputs = run_of(cut, behaviour(), names["BEHAVIOUR"], lambda given: {"hot": names["hot_items"](given)})
    assert sorted(tuple(row) for row in outputs["hot"]) == expected_items()


@pytest.mark.parametrize("cut", CUTS)
def test_session_counts(cut: int | None) -> None:
    names = names_of("session_counts")

    def build(given: DataStream) -> dict[str, Any]:
        visits = names["visits_of"](given)
        late = visits.get_side_output(names["TOO_LATE"])
        return {"visits": visits, "late": late, "days": names["days_of"](visits)}

    outputs = run_of(cut, clicks(), names["CLICK"], build)
    shown = [
        (user, (start - START) // MINUTE, (end - START) // MINUTE, clicks, fired)
        for user, start, end, clicks, fired in outputs["visits"]
    ]
    assert sorted(shown) == sorted(VISITS)
    assert [tuple(row) for row in outputs["late"]] == [("ada", "home", START + 30 * MINUTE)]
    assert [tuple(row) for row in outputs["days"]] == [(START, len(VISITS))]


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.txt")))
def test_at_most_two_lines_change_besides_the_imports(name: str) -> None:
    before, after = program(name).splitlines(), ported(name).splitlines()
    header = next(at for at in count() if before[at].startswith(("class", "def")))
    assert len(before) == len(after)
    changed = [line for line, other in zip(before[header:], after[header:], strict=True) if line != other]
    assert len(changed) == 2
    imported = [line for line in after[:header] if line.startswith("from")]
    assert imported
    assert all(line.startswith("from state_engine import") for line in imported)


def test_the_whole_program_runs_on_spark(spark: SparkSession) -> None:
    """Its ``main`` as well: ``execute_and_collect`` runs the job to its end."""
    assert [tuple(row) for row in names_of("hourly_tips")["main"](fares())] == expected_tips()
