"""``FileSource`` without Spark: which files and rows a slice holds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine import FileSource
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.runtime.sources.base import Element, Slice
from state_engine.runtime.sources.file_ranges import FileRange, cut
from tests.runtime.sources.runs import write_ids

NO_SPARK: Any = None


def plan(source: FileSource, elements: Sequence[Element] = ()) -> Slice | None:
    return source.plan(NO_SPARK, list(elements))


def ranges(part: Slice | None) -> list[tuple[str, int, int | None]]:
    assert part is not None
    return [(Path(r.uri).name, r.start, r.end) for r in part.detail.ranges]


def test_files_in_path_order_of_nested_directories_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.parquet", "a/2.parquet", "a/10.parquet", "_tmp/x.parquet", ".h/x.parquet", "a/_x.parquet",
                 "a/.x.parquet.crc"):  # fmt: skip
        write_ids(tmp_path / name, 0, 1)
    part = plan(FileSource(str(tmp_path), schema="id bigint"))
    assert part is not None
    assert part.labels == [f"file://{tmp_path}/{n}" for n in ("a/10.parquet", "a/2.parquet", "b.parquet")]


def test_pattern_and_single_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.txt", "c.csv"):
        (tmp_path / name).write_text("1\n")
    source = FileSource(str(tmp_path), schema="id int", format="csv", pattern="*.csv")
    assert [r[0] for r in ranges(plan(source))] == ["a.csv", "c.csv"]
    alone = FileSource(str(tmp_path / "b.txt"), schema="id int", format="csv")
    assert ranges(plan(alone)) == [("b.txt", 0, None)]


def test_only_new_files_are_planned_and_positions_are_contiguous(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint", max_files_per_batch=2)
    elements: list[Element] = []
    summaries = [source.empty_position()]
    for name in ("c", "b", "a"):
        write_ids(tmp_path / f"{name}.parquet", 0, 1)
        part = plan(source, elements)
        assert ranges(part) == [(f"{name}.parquet", 0, None)]
        assert part is not None
        assert part.position_from == summaries[-1]
        summaries.append(part.position_to)
        elements = json.loads(json.dumps([*elements, *part.elements]))
        assert plan(source, elements) is None
    assert len(set(summaries)) == 4


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    bounds=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_row_ranges_have_no_gap_and_no_repeat(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], bounds: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("ranges")
    for i, size in enumerate(sizes):
        write_ids(directory / f"{i}.parquet", 0, size)
    elements: list[Element] = []
    read: dict[str, list[tuple[int, int]]] = {}
    order: list[str] = []
    for turn in range(sum(sizes) + len(sizes) + 1):
        limit = bounds[turn % len(bounds)]
        part = plan(FileSource(str(directory), schema="id bigint", max_rows_per_batch=limit), elements)
        if part is None:
            break
        rows = 0
        for name, start, end in ranges(part):
            stop = sizes[int(name[0])] if end is None else end
            read.setdefault(name, []).append((start, stop))
            order.append(name)
            rows += stop - start
        assert rows <= limit
        elements += part.elements
    assert order == sorted(order)
    assert {n: found[0][0] for n, found in read.items()} == {f"{i}.parquet": 0 for i in range(len(sizes))}
    for name, found in read.items():
        assert found[-1][1] == sizes[int(name[0])]
        assert all(before[1] == after[0] for before, after in pairwise(found))


def test_cut_ends_a_file_that_fits_exactly(tmp_path: Path) -> None:
    write_ids(tmp_path / "a.parquet", 0, 5)
    uri = f"file://{tmp_path}/a.parquet"
    assert cut([FileRange(uri, 1, 1, 0, None)], 5) == [FileRange(uri, 1, 1, 0, None)]
    assert cut([FileRange(uri, 1, 1, 0, None)], 4) == [FileRange(uri, 1, 1, 0, 4)]
    assert cut([FileRange(uri, 1, 1, 4, None)], 4) == [FileRange(uri, 1, 1, 4, None)]


def test_consumed_file_that_changed(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint")
    write_ids(tmp_path / "a.parquet", 0, 3)
    part = plan(source)
    assert part is not None
    write_ids(tmp_path / "a.parquet", 0, 4)
    write_ids(tmp_path / "b.parquet", 0, 4)
    with pytest.raises(
        SourceError, match=r"a\.parquet changed or vanished after it was consumed.*on_change='ignore'"
    ):
        plan(source, part.elements)
    ignoring = FileSource(str(tmp_path), schema="id bigint", on_change="ignore")
    assert ranges(plan(ignoring, part.elements)) == [("b.parquet", 0, None)]


def test_same_size_and_other_time_is_a_change(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint")
    write_ids(tmp_path / "a.parquet", 0, 3)
    part = plan(source)
    assert part is not None
    os.utime(tmp_path / "a.parquet", (1, 1))
    with pytest.raises(SourceError, match="changed"):
        plan(source, part.elements)


def test_change_between_plan_and_commit(tmp_path: Path) -> None:
    for kind in ("rewritten", "deleted"):
        source = FileSource(str(tmp_path / kind), schema="id bigint")
        file = tmp_path / kind / "a.parquet"
        write_ids(file, 0, 3)
        part = plan(source)
        assert part is not None
        source.confirm(part)
        if kind == "rewritten":
            write_ids(file, 0, 4)
        else:
            file.unlink()
        with pytest.raises(SourceError, match="while it was being read"):
            source.confirm(part)


def test_vanished_files(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint", max_rows_per_batch=4)
    write_ids(tmp_path / "a.parquet", 0, 3)
    write_ids(tmp_path / "b.parquet", 3, 3)
    part = plan(source)
    assert ranges(part) == [("a.parquet", 0, None), ("b.parquet", 0, 1)]
    assert part is not None
    (tmp_path / "a.parquet").unlink()
    assert ranges(plan(source, part.elements)) == [("b.parquet", 1, None)], "what was read whole may go"
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(SourceError, match=r"b\.parquet changed or vanished before it was read to its end"):
        plan(source, part.elements)


def test_schema_of_the_first_file_stays(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path))
    write_ids(tmp_path / "b.parquet", 0, 1)
    part = plan(source)
    assert part is not None
    assert part.detail.schema.simpleString() == "struct<id:bigint>"
    write_ids(tmp_path / "a.parquet", 0, 1, extra=["x"])
    after = plan(source, part.elements)
    assert after is not None
    assert after.detail.schema.simpleString() == "struct<id:bigint>"


@pytest.mark.parametrize(
    "name", ["100%.parquet", "a[1].parquet", "a*.parquet", "a#b.parquet", "a\\b.parquet"]
)
def test_names_that_spark_reads_as_patterns_are_refused(tmp_path: Path, name: str) -> None:
    write_ids(tmp_path / name, 0, 1)
    with pytest.raises(SourceError, match="in names as patterns; rename the file"):
        plan(FileSource(str(tmp_path), schema="id bigint"))


def test_missing_directory_is_refused_and_an_empty_one_has_nothing_new(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        plan(FileSource(str(tmp_path / "none"), schema="id bigint"))
    (tmp_path / "empty").mkdir()
    assert plan(FileSource(str(tmp_path / "empty"), schema="id bigint")) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "orc"}, "cannot read format 'orc'"),
        ({"format": "csv"}, "needs a schema"),
        ({"format": "csv", "schema": "a int", "max_rows_per_batch": 5}, "needs Parquet"),
        ({"max_rows_per_batch": 0}, "at least 1"),
        ({"max_files_per_batch": 0}, "at least 1"),
    ],
)
def test_wrong_configuration(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileSource(str(tmp_path), **options)


def history(source: FileSource) -> list[list[Element]]:
    """What micro-batches append until there is nothing new."""
    batches: list[list[Element]] = []
    while (part := plan(source, [e for b in batches for e in b])) is not None:
        batches.append(part.elements)
    return batches


def recuts(source: FileSource, batches: Sequence[Sequence[Element]]) -> list[Slice]:
    """What was recorded, cut anew."""
    found: list[Slice] = []
    recorded = [e for b in batches for e in b]
    while (part := source.recut(NO_SPARK, [e for s in found for e in s.elements], recorded)) is not None:
        found.append(part)
    return found


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 9), st.data())
def test_a_recorded_slice_is_planned_again_and_may_be_cut_anew(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], bound: int, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("files")
    for i, size in enumerate(sizes):
        write_ids(directory / f"{i}.parquet", 0, size)
    source = FileSource(str(directory), max_rows_per_batch=bound)
    batches = history(source)
    write_ids(directory / "late.parquet", 0, 3)  # is no part of what was recorded
    for i, appended in enumerate(batches):
        before = [e for b in batches[:i] for e in b]
        again = source.replan(NO_SPARK, before, appended)
        assert again.elements == appended
        assert [r.element() for r in again.detail.ranges] == [e for e in appended if "#" not in e["split"]]
        assert again.detail.schema.simpleString() == "struct<id:bigint>"
        assert json.loads(again.position_from)["elements"] == len(before)

    end = data.draw(st.integers(1, len(batches)))
    other = FileSource(str(directory), max_rows_per_batch=data.draw(st.none() | st.integers(1, 9)))
    found = recuts(other, batches[:end])
    assert rows_in(found, sizes) == rows_in([source.replan(NO_SPARK, [], b) for b in batches[:end]], sizes)
    if other.max_rows_per_batch is not None:
        assert all(len(rows_in([part], sizes)) <= other.max_rows_per_batch for part in found)


def rows_in(parts: Sequence[Slice], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Every row of slices: file and number."""
    return [
        (name, row)
        for part in parts
        for name, start, end in ranges(part)
        for row in range(start, sizes[int(name[0])] if end is None else end)
    ]


def test_changed_and_vanished_files_cannot_be_replayed(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint", on_change="ignore")
    write_ids(tmp_path / "a.parquet", 0, 3)
    (appended,) = history(source)
    for spoil in (lambda: write_ids(tmp_path / "a.parquet", 0, 4), lambda: (tmp_path / "a.parquet").unlink()):
        spoil()
        for call in (source.replan, source.recut):
            with pytest.raises(SourceError, match=r"a\.parquet changed or vanished after it was consumed"):
                call(NO_SPARK, [], appended)
