"""``TopN`` shows the greatest rows of each key, by rank; with all rows kept, also after some were taken back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.state.map_state import MapState
from state_engine.core.types.row import Row
from state_engine.operators.top_n import ROWS, TOP, TopN
from tests.operators.histories import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    after,
    cuts,
    keyed_by_id,
    of_kind,
    shown,
    stored,
)

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


@settings(max_examples=200)
@given(_rows(st.just(INSERT)), st.integers(1, 4), cuts)
def test_the_greatest_rows_are_shown(rows: list[Row], n: int, sizes: list[int]) -> None:
    harness = after(TopN(COLUMNS, n, by=["points", "level"], key=["id"]), rows, sizes)
    assert stored(harness, TOP) == greatest(rows, n)


@settings(max_examples=200)
@given(_rows(st.sampled_from([INSERT, INSERT, UPDATE_AFTER, UPDATE_BEFORE, DELETE])), st.integers(1, 4), cuts)
def test_rows_that_are_taken_back_make_room(rows: list[Row], n: int, sizes: list[int]) -> None:
    harness = after(TopN(COLUMNS, n, by=["points", "level"], key=["id"], keep_all=True), rows, sizes)
    assert stored(harness, TOP) == greatest(rows, n)
    assert set(stored(harness, ROWS)) == set(greatest(rows, n))  # nothing stays of a key without rows


def score(points: float | None, name: str) -> Row:
    return Row(id=1, points=points, name=name)


def test_of_equal_rows_the_first_has_the_better_rank() -> None:
    top = TopN("id bigint, points double, name string", 2, by="points", key=["id"])
    harness = after(top, [score(1.0, "ada"), score(1.0, "eva"), score(1.0, "kim")])
    assert [row.name for row in harness.state(TOP)[1].values()] == ["ada", "eva"]


def test_one_row_is_taken_back_of_those_that_are_equal() -> None:
    top = TopN("id bigint, points double, name string", 2, by="points", key=["id"], keep_all=True)
    rows = [score(1.0, name) for name in ("ada", "eva", "eva", "kim")]
    gone = of_kind(DELETE, **score(1.0, "eva").as_dict())
    shown_names = [row.name for row in after(top, [*rows, gone]).state(TOP)[1].values()]
    assert shown_names == ["ada", "eva"]
    shown_names = [row.name for row in after(top, [*rows, gone, gone]).state(TOP)[1].values()]
    assert shown_names == ["ada", "kim"]


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


def test_a_row_that_cannot_be_compared_is_refused() -> None:
    harness = keyed_by_id(TopN("id bigint, points double, name string", 3, by="points", key=["id"]))
    with pytest.raises(ValueTypeError, match="the by column 'points' is null"):
        harness.process([score(None, "ada")])
    with pytest.raises(InvalidKeyError, match="NaN"):
        harness.process([score(NAN, "ada")])


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
