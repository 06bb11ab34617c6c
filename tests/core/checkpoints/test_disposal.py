"""The decision of the collector about one file: every reason to keep it, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from state_engine.core.checkpoints.file_disposal import Disposal, Place, StoredFile, disposals
from state_engine.core.checkpoints.write_ids import owner_mark, write_id_at

OLD = "0196f3c0a1b27c3d8e4f5a6b7c8d9e0f"
OWNER = owner_mark("1/job/out")
BEFORE_MS = 1_000_000
STAYED, YOUNG = StoredFile(10, BEFORE_MS - 1), StoredFile(10, BEFORE_MS)
OWN, SINK = f"write_id={OLD}/part-00000-{OLD}-0.parquet", f"part-00000-{OLD}-{OWNER}-0.parquet"
TABLE = Place("operators/sums/changelog", {OWN: STAYED}, ours=True)
THEIRS = Place("file:///sink", {SINK: STAYED}, owners=frozenset([OWNER]))


def judged(place: Place, *, listed: str = "", needed: str = "") -> list[tuple[str, str]]:
    """Reason and step of each decision."""
    planned = disposals(
        place, listed=listed.split(), needed=set(needed.split()), written_before_ms=BEFORE_MS
    )  # fmt: skip
    return [(one.why, one.step) for one in planned]


ORPHAN = f"orphan of attempt {OLD}"


@pytest.mark.parametrize("began_ms", [0, BEFORE_MS - 1, BEFORE_MS, 2**40])
def test_the_age_is_that_of_the_file_whatever_its_writer_took_the_time_for(began_ms: int) -> None:
    write_id = write_id_at(began_ms, 7)
    name = f"write_id={write_id}/part-00000-{write_id}-0.parquet"
    place = replace(TABLE, files={name: STAYED})
    assert judged(place) == [(f"orphan of attempt {write_id}", "delete")]
    assert judged(replace(place, files={name: YOUNG})) == []
    assert judged(replace(place, files={name: YOUNG}, active={name}), listed=name) == []


def test_files_of_own_tables_leave_the_log_first() -> None:
    active = replace(TABLE, active={OWN})
    assert judged(active, listed=OWN) == [("expired checkpoint", "remove")]
    assert judged(active) == [(ORPHAN, "remove")], "of an attempt that crashed between log and checkpoint"
    assert judged(replace(TABLE, removed_lately={OWN}), listed=OWN) == []
    assert judged(TABLE, listed=OWN) == [("removed earlier", "delete")]
    assert judged(TABLE) == [(ORPHAN, "delete")]


def test_a_file_that_only_the_log_knows_leaves_it() -> None:
    place = replace(TABLE, files={}, active={OWN})
    planned = disposals(place, listed=[OWN], needed=set(), written_before_ms=BEFORE_MS)
    assert planned == [Disposal(TABLE.table, OWN, 0, "expired checkpoint", "remove")]
    assert judged(replace(THEIRS, files={}, active={SINK}), listed=SINK) == []


@pytest.mark.parametrize("place", [TABLE, THEIRS, replace(TABLE, active={OWN})])
def test_what_is_needed_stays(place: Place) -> None:
    assert judged(place, listed=f"{OWN} {SINK}", needed=f"{OWN} {SINK}") == []
    assert judged(place) != []


def test_what_a_sink_or_a_table_of_rows_lists_stays() -> None:
    assert judged(THEIRS, listed=SINK) == [("expired checkpoint", "delete")]
    assert judged(THEIRS) == [(ORPHAN, "delete")]
    assert judged(replace(THEIRS, active={SINK}), listed=SINK) == []
    assert judged(replace(THEIRS, removed_lately={SINK}), listed=SINK) == []
    assert judged(replace(TABLE, ours=False, active={OWN})) == []


@pytest.mark.parametrize(
    "name",
    [
        f"part-00000-{OLD}-{owner_mark('1/other/out')}-0.parquet",
        f"part-00000-{OLD}-0.parquet",
        f"backup-{OLD}-{OWNER}-0.parquet",
        "part-00000-0196f3c0-a1b2-7c3d-8e4f-5a6b7c8d9e0f-c000.snappy.parquet",
        "readme.txt",
    ],
)
def test_in_a_sink_only_old_files_that_prove_to_be_ours_go(name: str) -> None:
    assert judged(replace(THEIRS, files={name: STAYED})) == []
    assert judged(replace(THEIRS, files={name: STAYED}), listed=name) == []


@pytest.mark.parametrize("name", ["by-hand.parquet", f"{OLD}/notes.txt"])
def test_files_without_an_attempt_stay(name: str) -> None:
    assert judged(replace(TABLE, files={name: STAYED})) == []
    assert judged(replace(TABLE, files={name: STAYED}, active={name}), listed=name) == []
