"""When a job is strained: lag, growth beside its own history, and skew, each just below and just above its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.monitoring.source_lag import SourceLag
from state_engine.monitoring.strains import WINDOW, HealthLimits, growth_of, strains
from state_engine.telemetry.measurements import StateSize, state_size
from tests.core.checkpoints.rows import changes, checkpoint, operator

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STATES = [StateSchema("total", "value", "bigint"), StateSchema(TIMERS, "map", "bigint")]


def history(entries: Sequence[int], *, rows_in: int = 100) -> list[CheckpointRow]:
    """A micro-batch each, with so many entries after it; and a compaction between any two."""
    path: list[CheckpointRow] = []
    for number in entries:
        names = [one.column_name for one in STATES]
        held = replace(operator(), states=STATES, entries={names[0]: number, names[1]: number**2})
        for kind in ("checkpoint", "compaction"):
            i = len(path) + 1
            row = checkpoint(i, i - 1 or None, kind=kind, operators=[held], rows_in=rows_in, created_at=BEGIN)
            path.append(row)
    return path


def judged(
    path: list[CheckpointRow],
    behind: dict[str, SourceLag] | None = None,
    *,
    partitions: int | None = None,
    after: timedelta = timedelta(days=1),
    limits: HealthLimits | None = None,
) -> list[str]:
    sizes = [state_size(path, one) for one in path[-1].operators] if path else []
    now_ms = int((BEGIN + after).timestamp() * 1000)
    limits = limits or HealthLimits()
    return strains(path, sizes, behind or {}, partitions_waiting=partitions, now_ms=now_ms, limits=limits)


def steady(count: int, step: int) -> list[int]:
    return [step * n for n in range(1, count + 1)]


def test_a_state_that_grows_as_ever_is_fine_and_one_that_outgrows_its_history_is_not() -> None:
    usual = steady(60, 10)
    assert judged(history([*usual, *(usual[-1] + 10 * n for n in range(1, 11))])) == []
    assert judged(history([*usual, *(usual[-1] + 29 * n for n in range(1, 11))])) == []
    [text] = judged(history([*usual, *(usual[-1] + 31 * n for n in range(1, 11))]))
    assert "state 'total' of operator 'counter' grew by 310 entries in 10 micro-batches" in text
    assert "0.31 a row of input, and 0.1 are usual" in text
    assert (
        judged(history([*usual, *(usual[-1] + 31 * n for n in range(1, 11))]), limits=HealthLimits(growth=4))
        == []
    )


def test_one_unusual_time_in_the_past_is_not_what_is_usual() -> None:
    grown = steady(30, 10) + [300 + 100 * n for n in range(1, 11)]
    grown += [grown[-1] + 10 * n for n in range(1, 31)]
    assert judged(history([*grown, *(grown[-1] + 50 * n for n in range(1, 11))])) != []


def test_more_input_may_bring_more_entries() -> None:
    usual = steady(60, 10)
    path = history([*usual, *(usual[-1] + 40 * n for n in range(1, 11))])
    more = [replace(row, rows_in=400) if row.checkpoint_id > 120 else row for row in path]
    assert judged(path) != []
    assert judged(more) == []


def test_a_state_that_was_full_may_breathe_and_not_swell() -> None:
    full = [1000 + (n % 3) for n in range(60)]
    assert judged(history([*full, *(1000 + 9 * n for n in range(1, 11))])) == []
    assert len(judged(history([*full, *(1000 + 11 * n for n in range(1, 11))]))) == 1


@pytest.mark.parametrize("count", [1, WINDOW * 5, WINDOW * 5 + 1])
def test_a_short_history_judges_nothing(count: int) -> None:
    path = history([*[5] * (count - 1), 1000])
    assert (growth_of(path, "counter", STATES[0].column_name) is None) is (count <= WINDOW * 5)
    assert bool(judged(path)) is (count > WINDOW * 5)


def test_states_that_are_not_counted_are_not_judged() -> None:
    path = history([*steady(60, 1), *(10_000 * n for n in range(1, 11))])
    unknown = [replace(row, operators=[replace(row.operators[0], entries={})]) for row in path]
    assert judged(unknown) == []


def test_lag_is_no_older_than_the_job() -> None:
    path, old = history([1]), {"a": SourceLag(files=3, seconds=90 * 86_400.0)}
    assert judged(path, old, after=timedelta(minutes=59)) == []
    [text] = judged(path, old, after=timedelta(minutes=61))
    assert "source 'a' has data that waits for 1:01:00" in text
    assert judged(path, {"a": SourceLag(seconds=3599.0), "b": SourceLag()}) == []
    assert judged(path, {"a": SourceLag(seconds=3601.0)}, limits=HealthLimits(lag=timedelta(hours=2))) == []


def test_partitions_that_wait() -> None:
    assert judged(history([1]), partitions=3) == []
    assert judged(history([1]), partitions=4) == [
        "4 time partitions are over and not run: run the job more often"
    ]


def size(skew: float | None, rows: int) -> StateSize:
    return StateSize("sums", {}, None, 0, 0, 1, 0, rows, skew)


@pytest.mark.parametrize(
    ("skew", "rows", "strained"),
    [(3.1, 100_000, True), (3.0, 100_000, False), (3.1, 99_999, False), (None, 10**6, False)],
)
def test_skew_counts_where_there_are_rows(skew: float | None, rows: int, strained: bool) -> None:
    path = history([1])
    texts = strains(path, [size(skew, rows)], {}, partitions_waiting=None, now_ms=0, limits=HealthLimits())
    assert bool(texts) is strained
    assert all("operator 'sums'" in text for text in texts)


def test_skew_is_that_of_stored_rows() -> None:
    held = operator(changes(0, (0, 31), rows=200_000), changes(1, (32, 127), rows=9), parallelism=4)
    path = [checkpoint(1, operators=[held], created_at=BEGIN)]
    [text] = judged(path)
    assert "holds 4.0 times the mean of 200,009 stored rows" in text


def test_a_job_that_never_ran_is_not_strained() -> None:
    assert judged([], {"a": SourceLag(seconds=1e9)}) == []


@pytest.mark.parametrize(
    "limits", [{"lag": timedelta(0)}, {"growth": 0}, {"skew": -1}, {"skew": float("nan")}]
)
def test_limits_are_above_zero(limits: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0"):
        HealthLimits(**limits)  # type: ignore[arg-type]
