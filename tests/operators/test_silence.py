"""Silent keys: examples, random streams against a loop, and what jobs make of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from state_engine import OutputTag, StatefulJob, Tumbling, count
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.lateness import TOO_LATE
from state_engine.operators.silence import Silence
from state_engine.state_tables.delta import DeltaStateTable
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut
from tests.operators.test_deduplication import Event, options
from tests.operators.windows.models import watermarks_before
from tests.operators.windows.test_windows import SEEDS

COLUMNS = "k string, v bigint, at bigint"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUND = 4
END = 2**63 - 1


def silence(after: int = 10, lateness: int = 0, **more: Any) -> Silence:
    rows = KeyedRows(COLUMNS, apart=(), operator="silent") if "take" in more else None
    return Silence(after, lateness_ms=lateness, rows=rows, **more)


def ms(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH) // timedelta(milliseconds=1)


def plain(outputs: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(ms(part) if isinstance(part, datetime) else part for part in row) for row in outputs]


@EVERYWHERE
@CUTS
def test_a_key_is_silent_behind_its_last_row_with_a_restore_between_every_two_steps(
    size: int, parallelism: int, backend: Any
) -> None:
    steps: list[tuple[list[int], int, list[Any]]] = [
        ([5, 15], 15, []), ([], 16, []), ([12], 24, []), ([], 25, [("a", 15, None, 1)]), ([], 99, []),
        ([120], 119, []), ([], 120, [("a", 15, 120, 1)]), ([130], 130, []), ([], 140, [("a", 130, None, 0)]),
    ]  # fmt: skip
    more: dict[str, Any] = {"parallelism": parallelism, "backend": backend}
    run = KeyedHarness(silence(back=True, take=["v"]), **options(**more))
    for times, watermark, expected in steps:
        rows, outputs = [Event("a", n, at) for n, at in enumerate(times)], list[Any]()
        for batch in [*(rows[at : at + size] for at in range(0, len(rows), size)), []]:
            if not batch:
                run.set_watermark(watermark)
            outputs += run.process(batch)
            run = KeyedHarness.restored(silence(back=True, take=["v"]), run.snapshot(), **options(**more))
        assert plain(outputs) == expected


def stream(seed: int, count: int = 40) -> list[Event]:
    rng = random.Random(seed)
    newest, rows = rng.choice([-20, 0, 1_000_000]), []
    for v in range(count):
        newest += rng.choice([0, 1, 2, 5, 9, 12])
        rows.append(Event(rng.choice("ab"), v, newest - rng.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])))
    return rows


def expected_of(rows: list[Event], after: int, lateness: int, forget: int | None) -> tuple[list[Any], int]:
    """The silences of the rows that are in time, by their event time, and how many are too late."""
    taken = [row for row, watermark in watermarks_before(rows, BOUND) if row.at + lateness > watermark]
    made: list[Any] = []
    for k in {row.k for row in taken}:
        of_key = sorted((row for row in taken if row.k == k), key=lambda row: row.at)
        for row, following in zip(of_key, [*of_key[1:], None], strict=True):
            at = END if following is None else following.at
            if at - row.at > after:
                made.append((k, row.at, None, row.v))
                if following is not None and (forget is None or at - row.at <= forget):
                    made.append((k, row.at, at, row.v))
    return made, len(rows) - len(taken)


@SEEDS
@pytest.mark.parametrize("forget", [None, 10, 17])
@pytest.mark.parametrize("lateness", [0, 3, 20])
def test_silences_are_those_between_the_rows_that_are_in_time(
    lateness: int, forget: int | None, seeds: range
) -> None:
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        after = rng.choice([1, 4, 10])
        make = partial(silence, after, lateness, back=True, take=["v"], forget_after_ms=forget)
        ran = at_any_cut(make, rows, rng, partial(options, max_out_of_orderness_ms=BOUND), sizes=(1, 3, 40))
        expected, too_late = expected_of(rows, after, lateness, forget)
        assert sorted(plain(ran.outputs), key=repr) == sorted(expected, key=repr), f"seed {seed}"
        assert ran.too_late == too_late, f"seed {seed}"
        assert ran.left == (set() if forget is not None else {"last_seen"}), f"seed {seed}"


def test_a_row_without_event_time_is_refused() -> None:
    run = KeyedHarness(silence(), key_by=lambda row: row.k, timestamp_of=lambda row: None)
    with pytest.raises(ValueTypeError, match="no event time, which its operator needs: filter such rows"):
        run.process([Event("a", 1, 1)])


# -- jobs --------------------------------------------------------------------------------------------------------------


def source_of(
    times: list[tuple[str, int]], *, timed: bool = True, changing: bool = False, **more: Any
) -> Any:
    rows: list[Any] = [(k, n, EPOCH + timedelta(minutes=at)) for n, (k, at) in enumerate(times)]
    event_time = {"event_time": "at"} if timed else {}
    return StatefulJob("sensors").from_collection(
        rows, "k string, v bigint, at timestamp", name="rows", changing=changing, max_rows_per_batch=2,
        **event_time, **more,
    )  # fmt: skip


def keyed_of(**more: Any) -> Any:
    return source_of([], **more).key_by("k")


def test_silent_sensors_of_a_job_are_in_time_behind_it_and_late_rows_count() -> None:
    rows = source_of([("a", 0), ("b", 1), ("b", 25), ("a", 2), ("a", 40), ("b", 30)])
    silent = rows.key_by("k").silent("10 min", lateness="15 min", back=True, take=["v"], uid="silent")
    silent.publish(DeltaStateTable("/sensors"))
    silent.sink("silent", CollectSink())
    silent.key_by("k").window(Tumbling("1 min")).aggregate(n=count(), uid="n").sink("n", CollectSink())
    with run_in_memory(rows._job) as run:
        run.run()
        run.process(drain=True)
        shown = [
            (row.k, *(at and (at - EPOCH).seconds // 60 for at in row[1:3]), row.v)
            for row in run.sink("silent")
        ]
        assert sorted(shown, key=repr) == [
            ("a", 0, 40, 0), ("a", 0, None, 0), ("a", 40, None, 4),
            ("b", 1, 25, 1), ("b", 1, None, 1), ("b", 30, None, 5),
        ]  # fmt: skip
        assert sum(row.n for row in run.sink("n")) == 6
        assert sorted((row.k, row.at // 60_000, row.until) for row in run.table("last_seen")) == [
            ("a", 40, None), ("b", 30, None),
        ]  # fmt: skip
        assert sum(row.metrics[f"silent.{TOO_LATE}"] for row in run.checkpoints()) == 1


LATE = OutputTag("late", "k string, v bigint, at timestamp")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no event time": (lambda: keyed_of(timed=False).silent("1 h"), r"silent\(…\) needs event time, and none of the"),
    "late rows that are gone": (
        lambda: keyed_of(late_to=LATE).silent("1 h", lateness="1 h"),
        r"source 'rows' diverts late rows before silent\(…\) could take them"),
    "no time": (lambda: keyed_of().silent(0), "after of silent must be longer than nothing, not 0 ms"),
    "a lateness below 0": (
        lambda: keyed_of().silent("1 h", lateness=timedelta(seconds=-1)), "lateness must be 0 or more"),
    "forgotten before": (
        lambda: keyed_of().silent("1 h", forget_after="1 min"), "make forget_after as long as after, or longer"),
    "an unknown column": (lambda: keyed_of().silent("1 h", take=["w"]), r"silent: there is no column \['w'\]"),
    "a column twice": (
        lambda: keyed_of().silent("1 h", take=["k"]), r"two columns would come out as \['k'\]: leave them"),
    "rows that change": (
        lambda: keyed_of(changing=True).silent("1 h"), "takes inserts only, and its stream holds updates and deletes"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_while_the_job_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
