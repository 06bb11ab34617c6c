"""``TopN`` shows the greatest rows of each key, by rank; with all rows kept, also after some were taken back."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.map_state import MapState
from state_engine.core.types.row import Row, RowKind
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.top_n import ROWS, TOP, TopN
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import CUTS, EVERYWHERE
from tests.operators.histories import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    after,
    batches,
    cuts,
    keyed_by_id,
    of_kind,
    shown,
    stored,
)
from tests.operators.windows.test_windows import SEEDS

NAN = float("nan")
COLUMNS = "id bigint, points double, level bigint, weight double"


def _rows(kinds: Any) -> Any:
    row = st.builds(
        of_kind,
        kinds,
        id=st.integers(1, 2),
        points=st.sampled_from([-1.5, 2.5]),
        level=st.integers(-1, 0),
        weight=st.sampled_from([1.0, NAN]),
    )
    return st.lists(row, max_size=16)


def greatest(rows: list[Row], n: int) -> dict[int, dict[int, Any]]:
    """By key and rank; a row that is gone takes back one like it, if there is one."""
    left: dict[int, list[Any]] = {}
    for row in rows:
        of_key, columns = left.setdefault(row.id, []), shown(Row(**row.as_dict()))[1:]
        if row.get_row_kind() in (INSERT, UPDATE_AFTER):
            of_key.append(columns)
        elif columns in of_key:
            of_key.remove(columns)
    ranked = {id_: sorted(of_key, key=lambda c: (-c[0][1], -c[1][1]))[:n] for id_, of_key in left.items()}
    return {id_: dict(enumerate(of_key, 1)) for id_, of_key in ranked.items() if of_key}


@pytest.mark.parametrize("kinds", [[INSERT], [INSERT, INSERT, UPDATE_AFTER, UPDATE_BEFORE, DELETE]], ids=len)
@settings(max_examples=200)
@given(st.data(), st.integers(1, 4), cuts)
def test_the_greatest_rows_that_are_there_are_shown(
    kinds: list[RowKind], data: Any, n: int, sizes: Any
) -> None:
    rows, keep_all = data.draw(_rows(st.sampled_from(kinds))), len(kinds) > 1
    harness = after(TopN(COLUMNS, n, by=["points", "level"], key=["id"], keep_all=keep_all), rows, sizes)
    assert stored(harness, TOP) == greatest(rows, n)
    if keep_all:
        assert set(stored(harness, ROWS)) == set(greatest(rows, n))  # nothing stays of a key without rows


def score(points: float | None, name: str) -> Row:
    return Row(id=1, points=points, name=name)


def test_only_ranks_that_change_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = keyed_by_id(TopN("id bigint, points double, name string", 3, by="points", key=["id"]))
    harness.process([score(points, str(points)) for points in (9.0, 7.0, 5.0)])
    written: list[int] = []
    put = MapState.put

    def counted(self: MapState, key: int, value: Any) -> None:
        written.append(key)
        put(self, key, value)

    monkeypatch.setattr(MapState, "put", counted)
    harness.process([score(8.0, "eva"), score(1.0, "kim")])
    assert written == [2, 3]


NAMES = "id bigint, name string, score double"


def listed(
    top: TopN, rows: list[Row], *, size: int = 1, parallelism: int = 1, backend: Any = None
) -> list[list[str]]:
    """What each batch changes, as ``+I 1 12 #1`` of name, score and rank; with a restore between any two."""
    options: dict[str, Any] = {
        "key_by": lambda row: row.id,
        "backend": backend,
        "parallelism": parallelism,
        "changing": top.accepts_changes,
    }
    harness, changes = KeyedHarness(top, **options), []
    for at in range(0, len(rows), size):
        changes.append([spelled(*output) for output in harness.process(rows[at : at + size])])
        harness = KeyedHarness.restored(top, harness.snapshot(), **options)
    return changes


def spelled(kind: RowKind, row: tuple[Any, ...]) -> str:
    _, name, score, *rank = row
    shown = "null" if score is None else f"{score:g}"
    return f"{kind} {name}:{shown}" + "".join(f" #{one}" for one in rank)


def scores(*given: tuple[str, float | None] | tuple[str, float | None, RowKind]) -> list[Row]:
    rows = [(one[0], one[1], one[2] if len(one) == 3 else INSERT) for one in given]
    return [of_kind(kind, id=1, name=name, score=score) for name, score, kind in rows]


FIVE = scores(("1", 12), ("2", 19), ("3", 19), ("4", 11), ("5", 11))
VECTORS: dict[str, tuple[dict[str, Any], list[Row], list[list[str]]]] = {
    "by rank": (
        {"ascending": True}, FIVE,
        [["+I 1:12 #1"], ["+I 2:19 #2"], [], ["-U 1:12 #1", "+U 4:11 #1", "-U 2:19 #2", "+U 1:12 #2"],
         ["-U 1:12 #2", "+U 5:11 #2"]],
    ),
    "without rank": (
        {"ascending": True, "rank": False}, FIVE,
        [["+I 1:12"], ["+I 2:19"], [], ["-D 2:19", "+I 4:11"], ["-D 1:12", "+I 5:11"]],
    ),
    "without rank, a lesser one": (
        {"ascending": True, "rank": False}, scores(("1", 12), ("2", 19), ("4", 11), ("5", 10)),
        [["+I 1:12"], ["+I 2:19"], ["-D 2:19", "+I 4:11"], ["-D 1:12", "+I 5:10"]],
    ),
    "taken back": (
        {"ascending": True, "keep_all": True},
        scores(("1", 12), ("2", 19), ("4", 11), ("1", 12, UPDATE_BEFORE), ("5", 11)),
        [["+I 1:12 #1"], ["+I 2:19 #2"], ["-U 1:12 #1", "+U 4:11 #1", "-U 2:19 #2", "+U 1:12 #2"],
         ["-U 1:12 #2", "+U 2:19 #2"], ["-U 2:19 #2", "+U 5:11 #2"]],
    ),
    "left, then deleted": (  # FLINK-27418: it does not come back
        {"n": 1, "keep_all": True}, scores(("a", 5), ("b", 7), ("a", 5, DELETE), ("b", 7, DELETE)),
        [["+I a:5 #1"], ["-U a:5 #1", "+U b:7 #1"], [], ["-D b:7 #1"]],
    ),
    "nulls and NaN": (
        {}, scores(("1", None), ("2", 5), ("3", NAN), ("4", 3)),
        [["+I 1:null #1"], ["-U 1:null #1", "+U 2:5 #1", "+I 1:null #2"],
         ["-U 2:5 #1", "+U 3:nan #1", "-U 1:null #2", "+U 2:5 #2"], []],
    ),
    "nulls and NaN, ascending": (
        {"ascending": True}, scores(("1", None), ("2", 5), ("3", NAN), ("4", 3)),
        [["+I 1:null #1"], ["+I 2:5 #2"], [], ["-U 2:5 #2", "+U 4:3 #2"]],
    ),
}  # fmt: skip


@EVERYWHERE
@CUTS
@pytest.mark.parametrize("name", VECTORS)
def test_examples_with_a_restore_between_every_two_batches(
    name: str, size: int, parallelism: int, backend: Any
) -> None:
    """Those of Flink's ``TopNFunctionTestBase`` and ``RetractableTopNFunctionTest``, and Spark's order of nulls."""
    given, rows, expected = VECTORS[name]
    top = TopN(NAMES, **{"n": 2, "by": "score", "key": ["id"], **given})
    batches_of = expected if size == 1 else [[one for of_row in expected for one in of_row]]
    assert listed(top, rows, size=size, parallelism=parallelism, backend=backend) == batches_of


@pytest.mark.parametrize("keep_all", [False, True])
def test_rows_equal_to_the_last_one_are_kept_with_ties(keep_all: bool) -> None:
    top = TopN(NAMES, 2, by="score", key=["id"], ties=True, keep_all=keep_all)
    rows = scores(("a", 5), ("b", 3), ("c", 3), ("d", 5), ("e", 7))
    assert listed(top, rows) == [
        ["+I a:5 #1"],
        ["+I b:3 #2"],
        ["+I c:3 #2"],
        ["-U b:3 #2", "+U d:5 #1", "-D c:3 #2"],
        ["-U a:5 #1", "+U e:7 #1", "-U d:5 #1", "+U a:5 #2", "+I d:5 #2"],
    ]
    top = TopN(NAMES, 3, by="score", key=["id"], ties=True, keep_all=keep_all)
    assert listed(top, scores(("a", 5), ("a", 5), ("e", 7)))[-1] == [
        "-U a:5 #1",
        "+U e:7 #1",
        "-U a:5 #1",  # the same row in the same place, with another rank
        "+U a:5 #2",
        "+I a:5 #2",
    ]


def test_changes_are_accepted_only_where_all_rows_are_kept() -> None:
    assert not TopN(COLUMNS, 1, by="points").accepts_changes
    assert TopN(COLUMNS, 1, by="points", keep_all=True).accepts_changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "TopN keeps at least one row, not 0"),
        ({"by": []}, "TopN needs columns to compare"),
        ({"by": ["id"]}, r"not \['id'\] of the key"),
        ({"by": "score"}, r"TopN: there is no column \['score'\]"),
        ({"by": "tags"}, "the by column 'tags' has the type .* no order"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    wanted = {"n": 1, "by": "points", "key": ["id"], **arguments}
    with pytest.raises(ConfigurationError, match=message):
        TopN("id bigint, points double, tags array<string>", wanted.pop("n"), **wanted)


# -- the changes of random streams, by a model -------------------------------------------------------------------------


def value_of(score: float | None) -> tuple[int, float]:
    """Null is below every value, NaN above all."""
    return (0, 0.0) if score is None else (2, 0.0) if score != score else (1, score)


def list_of(rows: list[Row], n: int, *, ascending: bool, ties: bool) -> list[tuple[Any, ...]]:
    """Name, score and rank of the rows in the list, of all rows of a key by arrival."""
    values = sorted({value_of(row.score) for row in rows}, reverse=not ascending)
    ranked = [row for value in values for row in rows if value_of(row.score) == value]
    places = [value_of(row.score) for row in ranked]
    kept = [at for at in range(len(ranked)) if at < n or (ties and places[at] == places[n - 1])]
    return [
        (ranked[at].name, shown(ranked[at].score), places.index(places[at]) + 1 if ties else at + 1)
        for at in kept
    ]


def changes_of(seed: int, *, changing: bool) -> list[Row]:
    """Rows of two keys; some are deleted where they change, also ones in no list and some that never came."""
    rng, alive, made = random.Random(seed), list[Row](), list[Row]()
    for at in range(40):
        if changing and alive and rng.random() < 0.4:
            gone = alive.pop(rng.randrange(len(alive)))
            made.append(of_kind(rng.choice([DELETE, UPDATE_BEFORE]), **gone.as_dict()))
        elif changing and rng.random() < 0.05:
            made.append(of_kind(DELETE, id=1, name="nobody", score=3.0))
        else:
            score = rng.choice([None, NAN, 1.0, 2.0, 3.0, 4.0])
            alive.append(
                of_kind(INSERT, id=rng.choice([1, 2]), name=rng.choice("ab") + str(at // 8), score=score)
            )
            made.append(alive[-1])
    return made


@SEEDS
@pytest.mark.parametrize("rank", [True, False], ids=["ranks", "rows"])
@pytest.mark.parametrize("changing", [False, True], ids=["inserts", "changes"])
def test_the_changes_make_the_list_of_a_model(changing: bool, rank: bool, seeds: range) -> None:
    for seed in seeds:
        rng, rows = random.Random(seed), changes_of(seed, changing=changing)
        n, order = rng.choice([1, 2, 4]), {"ascending": rng.random() < 0.5, "ties": rng.random() < 0.5}
        top = TopN(NAMES, n, by="score", key=["id"], keep_all=changing, rank=rank, **order)
        given: dict[str, Any] = {"key_by": lambda row: row.id, "changing": changing}
        run, table = KeyedHarness(top, **given), list[tuple[Any, ...]]()
        left: dict[int, list[Row]] = {1: [], 2: []}
        for batch in batches(rows, [rng.choice([2, 7, 40])]):
            for kind, (key, name, points, *ranks) in run.process(batch):
                entry = (key, name, shown(points), *ranks)
                if kind in (DELETE, UPDATE_BEFORE):
                    table.remove(entry)
                else:
                    table.append(entry)
            for row in batch:
                names = [(shown(one.score), one.name) for one in left[row.id]]
                if row.get_row_kind() is INSERT:
                    left[row.id].append(row)
                elif (shown(row.score), row.name) in names:
                    del left[row.id][names.index((shown(row.score), row.name))]
            expected = [(key, *of) for key, of_key in left.items() for of in list_of(of_key, n, **order)]
            if not rank:
                expected = [of[:-1] for of in expected]
            assert sorted(table, key=repr) == sorted(expected, key=repr), f"seed {seed}"
            run = KeyedHarness.restored(top, run.snapshot(), **given, parallelism=rng.choice([1, 2, 7]))


def test_rows_that_were_checked_can_be_sent() -> None:
    row, rows = Row(id=1, points=2.5, level=0, weight=1.0), KeyedRows(COLUMNS, apart=["id"], operator="TopN")
    rows.normal(row)
    assert pickle.loads(pickle.dumps(rows)).normal(row) == row
