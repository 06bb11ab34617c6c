"""``Scd2`` holds the versions that all rows so far make, computed anew, whatever the order of arrival and the cut."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine import ChangeFormat, DeltaStateTable, FileSource, StatefulJob
from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.types.row import Row, RowKind
from state_engine.operators.scd2 import UNSHOWN, VERSIONS, Scd2
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.testing import run_in_memory
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

NAN = float("nan")
COLUMNS = "id bigint, since bigint, price double, tags array<string>"

_kinds = st.sampled_from([INSERT, INSERT, INSERT, UPDATE_AFTER, UPDATE_BEFORE, DELETE])
_rows = st.builds(
    of_kind,
    _kinds,
    id=st.integers(1, 2),
    since=st.integers(-2, 4),
    price=st.sampled_from([1.5, NAN]),
    tags=st.sampled_from([None, ["new"]]),
)
_options = st.fixed_dictionaries(
    {"tracked": st.sampled_from([None, ["price"], []]), "merge_equal": st.booleans()}
)


def recomputed(rows: list[Row], *, tracked: list[str] | None, merge_equal: bool) -> dict[int, Any]:
    """The versions of each key from all rows that came, in their order of arrival."""
    events: dict[int, dict[int, Row | None]] = {}
    for row in rows:
        of_key = events.setdefault(row.id, {})
        if row.get_row_kind() is UPDATE_BEFORE:
            of_key.setdefault(row.since, None)
        else:
            of_key[row.since] = None if row.get_row_kind() is DELETE else row
    versions = {
        id_: _versions(of_key, tracked or ["price", "tags"], merge_equal) for id_, of_key in events.items()
    }
    if tracked == []:
        versions = {id_: _versions(of_key, [], merge_equal) for id_, of_key in events.items()}
    return {id_: of_key for id_, of_key in versions.items() if of_key}


def _versions(events: dict[int, Row | None], tracked: list[str], merge_equal: bool) -> dict[int, Any]:
    starts: list[tuple[int, Row | None]] = []
    before: Row | None = None
    for since, row in sorted(events.items(), key=lambda event: event[0]):
        if not _is_equal(before, row, tracked) or not merge_equal:
            starts.append((since, row))
        before = row
    ends = [since for since, _ in starts[1:]] + [None]
    return {
        since: shown(Row(valid_to=end, is_current=end is None, price=row.price, tags=row.tags))
        for (since, row), end in zip(starts, ends, strict=True)
        if row is not None
    }


def _is_equal(before: Row | None, row: Row | None, tracked: list[str]) -> bool:
    if before is None or row is None:
        return False
    return [shown(before[name]) for name in tracked] == [shown(row[name]) for name in tracked]


@settings(max_examples=200)
@given(st.lists(_rows, max_size=16), cuts, _options, st.integers(0, 9))
def test_versions_are_those_that_all_rows_make(
    rows: list[Row], sizes: list[int], options: Any, on_disk: int
) -> None:
    backend = EmbeddedRocksDBStateBackend() if on_disk == 9 else None
    harness = after(Scd2(COLUMNS, key=["id"], valid_from="since", **options), rows, sizes, backend)
    assert stored(harness, VERSIONS) == recomputed(rows, **options)
    times = {(row.id, row.since) for row in rows}
    kept = [
        (id_, at) for state in (VERSIONS, UNSHOWN) for id_, of in stored(harness, state).items() for at in of
    ]
    assert sorted(kept) == sorted(times)  # each time once, in one of the two states


# -- with a sequence ---------------------------------------------------------------------------------------------------

_SEQUENCED = "id bigint, since bigint, lsn bigint, city string"


def _change(kind: RowKind, key: int, since: int, lsn: int) -> Row:
    """A row that its key, time and sequence give, so that it is the same wherever it arrives again."""
    return of_kind(kind, id=key, since=since, lsn=lsn, city=["Turin", "Rome"][(since + lsn) % 2])


_changes = st.builds(_change, _kinds, st.integers(1, 2), st.integers(0, 3), st.integers(1, 3))


def of_all(rows: list[Row]) -> dict[int, dict[int, tuple[int | None, str, int]]]:
    """The versions of all rows sorted by time and sequence: until when, which city, and the sequence of the row."""
    last: dict[int, dict[int, Row]] = {}
    for row in sorted(rows, key=_place):
        last.setdefault(row.id, {})[row.since] = row
    versions: dict[int, dict[int, tuple[int | None, str, int]]] = {}
    for key, events in last.items():
        begun: tuple[int, Row] | None = None
        for since, row in sorted(events.items()):
            there = row.get_row_kind() not in (DELETE, UPDATE_BEFORE)
            if begun is not None and there and begun[1].city == row.city:
                continue
            if begun is not None:
                versions[key][begun[0]] = (since, begun[1].city, begun[1].lsn)
            begun = (since, row) if there else None
            if begun is not None:
                versions.setdefault(key, {})[since] = (None, row.city, row.lsn)
    return versions


def _place(row: Row) -> tuple[int, bool, int, bool]:
    kind = row.get_row_kind()
    return row.since, kind is not UPDATE_BEFORE, row.lsn, kind not in (DELETE, UPDATE_BEFORE)


def _compact(versions: dict[Any, Any]) -> dict[int, dict[int, tuple[int | None, str, int]]]:
    return {
        key: {at: (v.valid_to, v.city, v.lsn) for at, v in of.items()} for key, of in versions.items() if of
    }


@settings(max_examples=200)
@given(st.lists(_changes, max_size=10).flatmap(lambda rows: st.permutations(rows * 2)), cuts)
def test_any_order_and_any_cut_give_one_history_and_what_comes_again_changes_nothing(
    rows: list[Row], sizes: list[int]
) -> None:
    harness = after(Scd2(_SEQUENCED, key=["id"], valid_from="since", sequence="lsn"), rows, sizes)
    versions = {} if not rows else harness.state(VERSIONS)
    assert _compact(versions) == of_all(rows)


@settings(max_examples=15, deadline=None)
@given(st.lists(_changes, min_size=1, max_size=8).flatmap(st.permutations), cuts)
def test_a_job_gives_the_same_history(rows: list[Row], sizes: list[int]) -> None:
    job = StatefulJob("homes", parallelism=2)
    feed = job.source(
        "feed",
        FileSource("/feed", schema=f"op string, {_SEQUENCED}", format="json"),
        format=ChangeFormat.columns(
            op="op", insert=["c"], update=["u"], update_before=["b"], delete=["d"], sequence="lsn"
        ),
    )
    versions = feed.key_by("id").scd2(valid_from="since", uid="homes")  # the feed gives its sequence
    versions.publish(DeltaStateTable("/homes"))
    ops = {INSERT: "c", UPDATE_AFTER: "u", UPDATE_BEFORE: "b", DELETE: "d"}
    with run_in_memory(job) as run:
        for batch in batches(rows, sizes):
            run.process({"feed": [(ops[row.get_row_kind()], *row) for row in batch]})
        shown_ = {
            (r["id"], r["valid_from"]): (r["valid_to"], r["city"], r["lsn"]) for r in run.table("versions")
        }
    assert shown_ == {(key, at): version for key, of in of_all(rows).items() for at, version in of.items()}


def test_a_row_of_a_known_time_and_sequence_changes_nothing_whatever_it_holds() -> None:
    rows = [of_kind(UPDATE_AFTER, id=1, since=10, lsn=3, city=city) for city in ("C", "D")]
    for sizes in ([1], [2]):
        harness = after(Scd2(_SEQUENCED, key=["id"], valid_from="since", sequence="lsn"), rows, sizes)
        assert _compact(harness.state(VERSIONS)) == {1: {10: (None, "C", 3)}}


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("id", r"the sequence \['id'\] is part of the key"),
        ("since", "the sequence is 'since', as valid_from is"),
        ("other", "there is no column"),
    ],
)
def test_a_sequence_that_orders_nothing_is_refused(sequence: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Scd2(_SEQUENCED, key=["id"], valid_from="since", sequence=sequence)


def test_a_row_without_a_sequence_is_refused() -> None:
    harness = keyed_by_id(Scd2(_SEQUENCED, key=["id"], valid_from="since", sequence="lsn"))
    with pytest.raises(ValueTypeError, match="the sequence column 'lsn' is null"):
        harness.process([Row(id=1, since=1, lsn=None, city="Turin")])


# -- what is written ---------------------------------------------------------------------------------------------------


def city(since: int, name: str | None, kind: RowKind = INSERT) -> Row:
    return of_kind(kind, id=1, since=since, city=name)


def test_a_correction_writes_its_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = keyed_by_id(Scd2("id bigint, since bigint, city string", key=["id"], valid_from="since"))
    harness.process([city(at * 10, f"city {at}") for at in range(50)])
    written: list[int] = []
    put = SortedMapState.put

    def counted(self: SortedMapState, key: int, value: Any) -> None:
        written.append(key)
        put(self, key, value)

    monkeypatch.setattr(SortedMapState, "put", counted)
    harness.process([city(205, "Bari")])
    assert sorted(written) == [200, 205]
    written.clear()
    harness.process([city(500, "Rome")])
    assert sorted(written) == [490, 500]
    written.clear()
    harness.process([city(510, "Rome")])
    assert written == [510]  # it is merged: no version changes


# -- what elements are -------------------------------------------------------------------------------------------------


def test_times_are_of_any_type_with_an_order() -> None:
    function = Scd2("id bigint, since timestamp, city string", key=["id"], valid_from="since")
    noon, evening = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 20, tzinfo=UTC)
    harness = after(function, [Row(id=1, since=evening, city="Rome"), Row(id=1, since=noon, city="Turin")])
    assert harness.state(VERSIONS)[1] == {
        noon: Row(valid_to=evening, is_current=False, city="Turin"),
        evening: Row(valid_to=None, is_current=True, city="Rome"),
    }


@pytest.mark.parametrize("kind", [INSERT, DELETE, UPDATE_BEFORE])
def test_a_row_without_a_time_is_refused(kind: RowKind) -> None:
    harness = keyed_by_id(Scd2("id bigint, since double, city string", key=["id"], valid_from="since"))
    with pytest.raises(ValueTypeError, match="the valid_from column 'since' is null"):
        harness.process([of_kind(kind, id=1, since=None, city="Rome")])
    with pytest.raises(InvalidKeyError, match="NaN"):
        harness.process([of_kind(kind, id=1, since=NAN, city="Rome")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row_type": int}, "Scd2 needs rows with named columns"),
        ({"valid_from": "when"}, r"Scd2: there is no column \['when'\]"),
        ({"valid_from": "tags"}, "the valid_from column 'tags' has the type .* no order"),
        ({"tracked": ["when"]}, r"there is no column \['when'\]"),
        ({"tracked": ["since"]}, r"\['since'\] of the key or of the time cannot be tracked"),
        ({"key": ["id", "tags", "valid_to"]}, "a row has no column besides"),
        ({}, r"Scd2 adds columns of these names: rename \['valid_to'\] of the rows"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    columns = "id bigint, since bigint, tags array<string>, valid_to bigint"
    wanted = {"row_type": columns, "key": ["id"], "valid_from": "since", **arguments}
    with pytest.raises(ConfigurationError, match=message):
        Scd2(wanted.pop("row_type"), **wanted)


def test_the_column_of_the_time_may_be_called_valid_from() -> None:
    function = Scd2("id bigint, valid_from bigint, city string", key=["id"], valid_from="valid_from")
    harness = after(function, [Row(id=1, valid_from=1, city="Rome")])
    assert harness.state(VERSIONS) == {1: {1: Row(valid_to=None, is_current=True, city="Rome")}}
