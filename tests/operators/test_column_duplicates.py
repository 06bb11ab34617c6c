"""Duplicates and last rows over columns: what they give per element, batch by batch, on the same state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from state_engine import EmbeddedRocksDBStateBackend, RowKind, StateTtlConfig
from state_engine.core.errors import StatelakeError
from state_engine.core.functions.vectorized_functions import PerElement, vectorized_form
from state_engine.operators.column_duplicates import kept_within
from state_engine.operators.deduplication import NewestRow
from state_engine.operators.idle_keys import ForgetsIdleKeys, IdleTime
from state_engine.operators.last_rows import LastRow
from state_engine.testing import KeyedHarness
from tests.operators.mixed import Mixed, check_equal, state_of, streams, text_of
from tests.operators.test_deduplication import BOUND, COLUMNS, LATE, first, options, stream

INSERT, BEFORE, AFTER, DELETE = RowKind
NAN = float("nan")
pytestmark = pytest.mark.internal_errors


def harness(parallelism: int, backend: Any = None, *, columns: str = COLUMNS, **more: Any) -> dict[str, Any]:
    types = {"key_type": str, "input_type": columns, "output_type": columns}
    return {**options(parallelism, backend, max_out_of_orderness_ms=BOUND, **more), **types}


def check(
    make: Any, rows: Sequence[Any], seed: int, by: Any = harness, *, fits: bool = True, **more: Any
) -> None:
    """Every other seed goes over columns wherever these can compute the batch; always, if it ``fits``."""
    rng, share = random.Random(seed), 0.5 if seed % 2 else 1.0
    backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
    runs = check_equal(make, rows, rng, by, share=share, backend=backend, **more).runs
    assert not runs["elements"] or share < 1 or not fits


@streams(340)
@pytest.mark.parametrize("lateness", [0, 3, 20])
def test_first_rows_within_a_distance(lateness: int, seeds: range) -> None:
    for seed in seeds:
        within = random.Random(seed).choice([1, 2, 5, 13, 10**6])
        check(partial(first, within, lateness), stream(seed), seed, late=LATE)


@streams(1000)
def test_first_rows_of_keys(seeds: range) -> None:
    for seed in seeds:
        check(lambda: first(None), stream(seed), seed)


VALUES = "k string, v bigint, at bigint, x double, s string, d decimal(9,2)"


class Valued(NamedTuple):
    """A row with few different values: -0.0 and NaN, and nulls."""

    k: str
    v: int
    at: int
    x: float | None
    s: str | None
    d: Decimal | None


def valued(seed: int) -> list[Valued]:
    """Rows of ``stream``, of which many are equal in what decides between them, and some in all."""
    rng, rows = random.Random(seed), list[Valued]()
    few = seed % 2
    for event in stream(seed):
        v, at = (rng.choice([1, 2]), rng.choice([5, 6])) if few else (event.v // 3, event.at)
        x = rng.choice([0.0, -0.0] if few else [0.0, NAN, 1.5, None])
        s = rng.choice(["a", "ab"] if few else ["", "a", "ab", "é", "z"])
        rows.append(Valued(event.k, v, at, x, s, rng.choice([None, Decimal("1.50")])))
    return rows


ORDERS: dict[str, dict[str, Any]] = {
    "event time": {"by_time": True},
    "total order": {},
    "number": {"sequence": "v"},
    "several": {"sequence": ["s", "at"]},
}


@streams(130)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("key", [["k"], []], ids=["key of columns", "key of a function"])
def test_changes_of_last_rows(key: list[str], order: str, seeds: range) -> None:
    for seed in seeds:
        by = partial(harness, columns=VALUES)
        make = partial(NewestRow, VALUES, key=key, **ORDERS[order])
        check(make, valued(seed), seed, by, kinds=True)


def test_a_row_without_a_place_goes_per_element() -> None:
    rows = [row._replace(s=None) for row in valued(1)[:1]]
    make = partial(NewestRow, VALUES, key=["k"], sequence="s")
    over_columns = vectorized_form(make())
    assert over_columns is not None
    for function in (make(), over_columns):
        with pytest.raises(StatelakeError) as error:
            KeyedHarness(function, **harness(1, columns=VALUES)).process(rows)
        last = error.value
    assert isinstance(last.__cause__, PerElement)


def changes(seed: int) -> list[Any]:
    """A feed of changes: some take back rows that are not there, and updates are cut in halves."""
    rng, table, feed = random.Random(seed), dict[str, Valued](), list[Any]()
    for row in valued(seed):
        old = table.get(row.k)
        if old is None or rng.random() < 0.1:
            feed.append((INSERT, row))
        elif rng.random() < 0.2:
            feed.append((DELETE, old))
            del table[row.k]
            continue
        elif rng.random() < 0.2:
            feed.append((BEFORE, rng.choice([row, old])))
        else:
            feed += [(BEFORE, old), (AFTER, row)]
        table[row.k] = row
    return feed


@streams(170)
@pytest.mark.parametrize("sequence", [None, "v", ["s", "at"]])
@pytest.mark.parametrize("changing", [False, True], ids=["inserts", "changes"])
def test_state_of_last_rows(changing: bool, sequence: Any, seeds: range) -> None:
    for seed in seeds:
        by = partial(harness, columns=VALUES, changing=changing)
        rows: Any = changes(seed) if changing else valued(seed)
        fits = not changing or sequence is None
        check(partial(LastRow, VALUES, key=["k"], sequence=sequence), rows, seed, by, fits=fits)


def test_inserts_behind_deletions_by_a_sequence_go_per_element() -> None:
    feed = [(kind, row) for kind in (INSERT, DELETE, INSERT) for row in valued(3)[:2]]
    make = partial(LastRow, VALUES, key=["k"], sequence="v")
    for cut in range(len(feed)):
        elements, mixed = KeyedHarness(make(), **harness(1, columns=VALUES, changing=True)), None
        elements.process(feed[:cut])
        mixed = Mixed(make, random.Random(1), partial(harness, columns=VALUES, changing=True))
        mixed.process(feed[:cut])
        inserts = valued(5)[:4]
        assert text_of(mixed.process([(INSERT, row) for row in inserts])) == "[]"
        elements.process([(INSERT, row) for row in inserts])
        assert text_of(mixed.state) == text_of(state_of(elements))


NO_FORM = {
    "keys are forgotten": lambda: ForgetsIdleKeys(first(None), IdleTime(10, by_event_time=True)),
    "rows expire": lambda: LastRow(COLUMNS, key=["k"], ttl=StateTtlConfig.new_builder("1 h").build()),
    "a sequence of changes": lambda: LastRow(COLUMNS, key=["k"], sequence="v", of_changes=True),
    "lists": lambda: LastRow("k string, v array<bigint>", key=["k"]),
    "numbers with NaN": lambda: LastRow("k string, x double", key=["k"], sequence="x"),
    "rows that change": lambda: NewestRow(COLUMNS, key=["k"], changing=True),
    "changes of lists": lambda: NewestRow("k string, v array<bigint>", key=["k"]),
}


@pytest.mark.parametrize("make", NO_FORM.values(), ids=NO_FORM)
def test_what_has_no_form_over_columns(make: Any) -> None:
    assert vectorized_form(make()) is None


def test_rows_exactly_the_distance_apart_are_no_duplicates() -> None:
    keys, nothing = np.zeros(4, np.int64), np.zeros(0, np.int64)
    for times, kept in (
        ([10, 0, 3, 20], [True, True, False, True]),
        ([3, 13, 10, 0], [True, True, False, False]),
        ([0, 10, 9, 1], [True, True, False, False]),
    ):
        assert kept_within(keys, np.array(times), nothing, nothing, 10).tolist() == kept
