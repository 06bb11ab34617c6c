"""``FileSource`` without Spark: which files and rows a slice holds."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine import FileSource
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources.base import Element, Slice
from state_engine.sources.delta_table import kept_newest
from state_engine.sources.file_ends import file_ends
from state_engine.sources.listing import Looks
from state_engine.sources.local_listing import InputFile
from state_engine.spark.placement import USUAL, Limits
from state_engine.storage.stores.files import open_location
from tests.sources.runs import write_ids

NO_SPARK: Any = None


def plan(source: FileSource, elements: Sequence[Element] = (), limits: Limits = USUAL) -> Slice | None:
    session: Any = SimpleNamespace(limits=limits)
    return source.plan(session, list(elements))


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
    assert {n: ranges_of_file[0][0] for n, ranges_of_file in read.items()} == {
        f"{i}.parquet": 0 for i in range(len(sizes))
    }
    for name, ranges_of_file in read.items():
        assert ranges_of_file[-1][1] == sizes[int(name[0])]
        assert all(before[1] == after[0] for before, after in pairwise(ranges_of_file))


def test_consumed_file_that_changed(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id bigint")
    write_ids(tmp_path / "a.parquet", 0, 3)
    part = plan(source)
    assert part is not None
    write_ids(tmp_path / "a.parquet", 0, 4)
    write_ids(tmp_path / "b.parquet", 0, 4)
    with pytest.raises(SourceError, match=r"a\.parquet changed or vanished after it was"):
        plan(source, part.elements)
    ignoring = FileSource(str(tmp_path), schema="id bigint", on_change="ignore")
    assert ranges(plan(ignoring, part.elements)) == [("b.parquet", 0, None)]


def test_a_file_that_was_put_back_is_the_same_and_one_of_its_size_is_not(tmp_path: Path) -> None:
    source, file = FileSource(str(tmp_path), schema="id bigint"), tmp_path / "a.parquet"
    write_ids(file, 0, 3)
    part = plan(source)
    assert part is not None
    content = file.read_bytes()
    file.unlink()
    assert plan(source, part.elements) is None
    file.write_bytes(content)
    os.utime(file, (1, 1))
    assert plan(source, part.elements) is None
    source.confirm(part)
    assert ranges(source.replan(NO_SPARK, [], part.elements)) == [("a.parquet", 0, None)]

    file.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    os.utime(file, (2, 2))
    with pytest.raises(SourceError, match="changed or vanished after it was consumed"):
        plan(source, part.elements)
    with pytest.raises(SourceError, match="changed or vanished while"):
        source.confirm(part)


def test_a_change_in_the_middle_of_a_long_file_is_seen_by_its_time_only(tmp_path: Path) -> None:
    """The digest is of the ends; what lies between is not read again."""
    source, file = FileSource(str(tmp_path), schema="id bigint", format="csv"), tmp_path / "a.csv"
    lines = b"1\n" * 200_000
    file.write_bytes(lines)
    part = plan(source)
    assert part is not None
    for place, same in ((65_535, False), (65_536, True), (len(lines) - 65_536, False)):
        file.write_bytes(lines[:place] + b"2" + lines[place + 1 :])
        os.utime(file, (place, place))
        assert part.detail.ranges[0].unchanged() is same


def test_what_an_older_version_consumed_is_the_same_by_size_and_time(tmp_path: Path) -> None:
    source, file = FileSource(str(tmp_path), schema="id bigint"), tmp_path / "a.parquet"
    write_ids(file, 0, 3)
    part = plan(source)
    assert part is not None
    del part.elements[0]["position"]["digest"]
    assert plan(source, part.elements) is None
    os.utime(file, (1, 1))
    with pytest.raises(SourceError, match="changed"):
        plan(source, part.elements)


def test_no_file_that_was_consumed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(str(tmp_path), schema="id bigint")
    write_ids(tmp_path / "a.parquet", 0, 3)
    part = plan(source)
    assert part is not None
    file_ends.cache_clear()
    write_ids(tmp_path / "b.parquet", 0, 3)
    opened: list[str] = []

    def look(uri: str) -> Any:
        opened.append(uri)
        return open_location(uri)

    monkeypatch.setattr("state_engine.sources.file_ends.open_location", look)
    assert ranges(plan(source, part.elements)) == [("b.parquet", 0, None)]
    assert opened == [f"file://{tmp_path}/b.parquet"]


def test_links_lead_to_every_real_file_once(tmp_path: Path) -> None:
    """Up, to itself, sideways, out and nowhere."""
    feed, outside = tmp_path / "feed", tmp_path / "outside"
    write_ids(feed / "day" / "a.parquet", 0, 3)
    write_ids(feed / "b.parquet", 0, 3)
    write_ids(feed / ".versions" / "1" / "d.parquet", 0, 3)
    write_ids(outside / "c.parquet", 0, 3)
    for name, target in {
        "day/up": feed, "day/root": Path("/"), "self": feed / "self", "latest": feed / "day",
        "out": outside, "out2": outside, "none": tmp_path / "none", "current": feed / ".versions/1",
        "a2.parquet": feed / "day/a.parquet",
    }.items():  # fmt: skip
        (feed / name).symlink_to(target)
    (outside / "back").symlink_to(feed)
    source = FileSource(str(feed), schema="id bigint")
    part = plan(source)
    assert part is not None
    names = ("b.parquet", "current/d.parquet", "day/a.parquet", "out/c.parquet")
    assert part.labels == [f"file://{feed}/{name}" for name in names]

    (feed / "a_first").symlink_to(outside)
    assert plan(source, part.elements) is None


@pytest.mark.parametrize(
    ("name", "read"),
    [("a.parquet._COPYING_", False), ("a.parquet.tmp", False), ("a.PART", False), ("a.tmp.parquet", True)],
)
def test_names_of_files_that_are_being_copied(tmp_path: Path, name: str, read: bool) -> None:
    write_ids(tmp_path / name, 0, 3)
    source = FileSource(str(tmp_path), schema="id bigint")
    assert (plan(source) is not None) is read
    assert source.waiting([]) == (
        [] if read else [f"file://{tmp_path}/{name} is being copied, as its name says"]
    )
    wanted = FileSource(str(tmp_path), schema="id bigint", pattern="*" + name[name.rindex(".") :])
    assert ranges(plan(wanted)) == [(name, 0, None)]
    assert ranges(plan(FileSource(str(tmp_path / name), schema="id bigint"))) == [(name, 0, None)]


@pytest.mark.parametrize("max_rows", [None, 10])
def test_a_file_that_is_not_whole_waits_and_holds_up_no_other(tmp_path: Path, max_rows: int | None) -> None:
    source = FileSource(str(tmp_path), schema="id bigint", max_files_per_batch=1, max_rows_per_batch=max_rows)
    write_ids(tmp_path / "a.parquet", 0, 3)
    content = (tmp_path / "a.parquet").read_bytes()
    for name, size in (("a", 0), ("b", 4), ("c", len(content) - 1)):
        (tmp_path / f"{name}.parquet").write_bytes(content[:size])
    assert plan(source) is None
    write_ids(tmp_path / "d.parquet", 0, 3)
    part = plan(source)
    assert ranges(part) == [("d.parquet", 0, None)]
    assert part is not None
    assert [text.rsplit("/", 1)[1] for text in source.waiting(part.elements)] == [
        "a.parquet is empty", "b.parquet has no Parquet footer yet", "c.parquet has no Parquet footer yet",
    ]  # fmt: skip
    assert source.consumed(NO_SPARK, "all") == part.elements[:1]
    (tmp_path / "a.parquet").write_bytes(content)
    assert ranges(plan(source, part.elements)) == [("a.parquet", 0, None)]


def test_an_empty_file_of_text_waits(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="id int", format="csv")
    (tmp_path / "a.csv").write_text("")
    assert plan(source) is None
    (tmp_path / "a.csv").write_text("1\n")
    assert ranges(plan(source)) == [("a.csv", 0, None)]


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


def rebatched_slices(source: FileSource, batches: Sequence[Sequence[Element]]) -> list[Slice]:
    slices: list[Slice] = []
    recorded = [e for b in batches for e in b]
    while (part := source.rebatch(NO_SPARK, [e for s in slices for e in s.elements], recorded)) is not None:
        slices.append(part)
    return slices


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
    slices = rebatched_slices(other, batches[:end])
    assert rows_in(slices, sizes) == rows_in([source.replan(NO_SPARK, [], b) for b in batches[:end]], sizes)
    if other.max_rows_per_batch is not None:
        assert all(len(rows_in([part], sizes)) <= other.max_rows_per_batch for part in slices)


def rows_in(parts: Sequence[Slice], sizes: Sequence[int]) -> list[tuple[str, int]]:
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
        for call in (source.replan, source.rebatch):
            with pytest.raises(SourceError, match=r"a\.parquet changed or vanished after it was consumed"):
                call(NO_SPARK, [], appended)


def test_without_a_bound_a_batch_holds_so_many_bytes_or_files(tmp_path: Path) -> None:
    for number in range(5):
        write_ids(tmp_path / f"{number}.parquet", number, 1)
    size = (tmp_path / "0.parquet").stat().st_size
    source = FileSource(str(tmp_path), schema="id bigint")
    for most_files, most_bytes, expected in [(9, 2 * size, 2), (9, 1, 1), (3, 9 * size, 3), (9, 9 * size, 5)]:
        part = plan(source, limits=Limits(batch_files=most_files, batch_bytes=most_bytes))
        assert part is not None
        assert (len(part.labels), part.more) == (expected, expected < 5)
    bounded = plan(FileSource(str(tmp_path), schema="id bigint", max_files_per_batch=4))
    assert bounded is not None
    assert len(bounded.labels) == 4


# -- what is known of a directory -------------------------------------------------------------------------------------


def files(directory: Path, looks: Looks) -> list[InputFile]:
    return looks.files(f"file://{directory}", "*", ())


def look(directory: Path, looks: Looks, consumed: Sequence[str] = ()) -> dict[str, int]:
    """The sizes of files that a look finds."""
    start = f"file://{directory}/"
    listed = looks.files(f"file://{directory}", "*", {start + name for name in consumed})
    return {one.uri.removeprefix(start): one.size for one in listed}


def put(file: Path, size: int = 1) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def test_a_file_that_another_runner_consumed_after_it_grew(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="text string", format="csv").for_run()
    put(tmp_path / "grows")
    source.plan(NO_SPARK, [])
    put(tmp_path / "grows", 5)
    consumed = source.for_run().consumed(NO_SPARK, "all")
    assert source.plan(NO_SPARK, consumed) is None
    put(tmp_path / "grows", 6)
    with pytest.raises(SourceError, match="after it was consumed"):
        source.plan(NO_SPARK, consumed)


def test_a_file_that_vanishes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b")
    scandir = os.scandir

    class Listed:
        """A listing, between which and the look at its files one of them goes."""

        def __init__(self, path: str) -> None:
            self.entries = list(scandir(path))
            (tmp_path / "b").unlink()

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Listed)
    assert look(tmp_path, Looks()) == {"a": 1}


def test_what_links_lead_to_may_change_without_their_directory(tmp_path: Path) -> None:
    feed, outside = tmp_path / "feed", tmp_path / "outside"
    put(outside / "1")
    put(feed / "file")
    (feed / "later").symlink_to(outside / "2")
    (feed / "linked").symlink_to(outside)
    run = Looks()
    assert look(feed, run) == {"file": 1, "linked/1": 1}
    put(outside / "2")
    assert look(feed, run) == {"file": 1, "later": 1, "linked/1": 1}  # the file is there under two names


def test_a_directory_behind_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    feed, before, after = tmp_path / "feed", tmp_path / "before", tmp_path / "after"
    put(before / "below/1")
    feed.mkdir()
    (feed / "linked").symlink_to(before)
    run = Looks()
    assert [one.real for one in files(feed, run)] == [f"{before}/below/1"]
    before.rename(after)
    (feed / "linked").unlink()
    (feed / "linked").symlink_to(after)
    assert [one.real for one in files(feed, run)] == [f"{after}/below/1"]


def test_what_waits_is_what_the_plan_at_that_position_saw(tmp_path: Path) -> None:
    start = f"file://{tmp_path}"
    consumed, others, run = {f"{start}/a": 1}, {f"{start}/b": 1}, Looks()
    put(tmp_path / "a")
    before = run.files(start, "*", consumed)
    put(tmp_path / "new")
    assert run.again(start, "*", consumed) is before
    assert len(run.again(start, "*", consumed)) == 2  # once only
    before = run.files(start, "*", consumed)
    put(tmp_path / "newer")
    assert len(run.again(start, "*", others)) == 3  # another position, later


def test_the_newest_values_are_kept() -> None:
    kept: OrderedDict[int, str] = OrderedDict()
    made: list[int] = []

    def value(key: int) -> str:
        def make() -> str:
            made.append(key)
            return str(key)

        return kept_newest(kept, key, make, most=2)

    assert [value(key) for key in (1, 2, 2, 3, 1)] == ["1", "2", "2", "3", "1"]
    assert made == [1, 2, 3, 1]
    assert list(kept) == [3, 1]


def test_threads_may_ask_at_once() -> None:
    """One lets go of what another one has just made."""
    kept: OrderedDict[int, int] = OrderedDict()

    def ask(first: int) -> bool:
        return all(kept_newest(kept, n, partial(int, n), most=1) == n for n in range(first, first + 4000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(ask, range(1, 40_000, 10_000)))
    finally:
        sys.setswitchinterval(before)
