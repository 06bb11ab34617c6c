"""``SnapshotFormat``: what changed between full copies of a table, and the copies that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    FileSource,
    SnapshotFormat,
    StateEngine,
    StatefulJob,
    TimePartitions,
)
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.row import RowKind
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Element
from state_engine.sources.changes.snapshots import _DATE, SnapshotSource, _as_time, snapshots_of
from state_engine.sources.stream_columns import ROW_KIND

pytestmark = pytest.mark.spark

COLUMNS = "id bigint, city string, weight double"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
Rows = dict[int, tuple[str | None, float | None]]
DUMPS: list[Rows] = [
    {1: ("Turin", 1.5), 2: ("Rome", float("nan")), 3: (None, None)},
    {1: ("Bari", 1.5), 2: ("Rome", float("nan")), 4: ("Pisa", 2.0)},
    {1: ("Bari", 1.5), 3: ("Rome", None), 4: (None, 2.0)},
]


def dump(path: Path, rows: Rows | Sequence[tuple[Any, ...]]) -> Path:
    """A file of JSON, or a directory with two of them."""
    given = [(key, *row) for key, row in rows.items()] if isinstance(rows, dict) else list(rows)
    values = [["NaN" if value != value else value for value in row] for row in given]
    lines = [json.dumps(dict(zip(("id", "city", "weight"), row, strict=True))) for row in values]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix:
        path.write_text("\n".join(lines))
        return path
    path.mkdir(exist_ok=True)
    for at in range(2):
        (path / f"part-{at}.json").write_text("\n".join(lines[at::2]))
    return path


def source(path: Path, *, files: dict[str, Any] | None = None, **given: Any) -> SnapshotSource:
    made = FileSource(str(path), **{"schema": COLUMNS, "format": "json", **(files or {})})
    return snapshots_of("customers", made, SnapshotFormat(**{"key": ["id"], "at": "day", **given}))


def read(spark: SparkSession, made: SnapshotSource, part: Any) -> list[tuple[Any, ...]]:
    """Kind, day, and columns of the changes, in their order."""
    rows = made.read(spark, part, keep_refused=False).rows.collect()  # type: ignore[union-attr]
    rows.sort(key=lambda row: (row[FILE_COLUMN], row[ROW_COLUMN], row[ROW_KIND]))
    shown = [(str(RowKind(row[ROW_KIND])), row.day.day, row.id, row.city, row.weight) for row in rows]
    return [(*row[:-1], "NaN" if row[-1] != row[-1] else row[-1]) for row in shown]


def next_of(spark: SparkSession, made: SnapshotSource, elements: list[Element]) -> list[tuple[Any, ...]]:
    """The changes of the next snapshot; the position goes on."""
    part = made.plan(spark, elements)
    assert part is not None
    changes = read(spark, made, part)
    made.confirm(part)
    elements += part.elements
    return changes


CHANGES: list[list[tuple[Any, ...]]] = [
    [("+I", 1, 1, "Turin", 1.5), ("+I", 1, 2, "Rome", "NaN"), ("+I", 1, 3, None, None)],
    [
        ("-U", 2, 1, "Turin", 1.5),
        ("-D", 2, 3, None, None),
        ("+U", 2, 1, "Bari", 1.5),
        ("+I", 2, 4, "Pisa", 2.0),
    ],
    [
        ("-D", 3, 2, "Rome", "NaN"),
        ("-U", 3, 4, "Pisa", 2.0),
        ("+I", 3, 3, "Rome", None),
        ("+U", 3, 4, None, 2.0),
    ],
]


def test_a_name_has_one_time() -> None:
    def times(name: str) -> list[datetime | None]:
        return [_as_time(match) for match in _DATE.finditer(name)]

    day = datetime(2026, 1, 3, tzinfo=UTC)
    for name in ("day=2026-01-03", "a-20260103.csv", "2026-01-03-part 7", "v2_2026-01-03_full"):
        assert times(name) == [day]
    for name in ("2026-01-03T06:30", "20260103_0630.csv", "2026-01-03 063000Z"):
        assert times(name) == [day + timedelta(hours=6, minutes=30)]
    for name in ("2026-01-02-2026-01-03", "20260102_20260103", "2026-01-02_2026-01-03"):
        assert len(times(name)) == 2
    assert times("2026-13-03") == [None]
    assert times("202601031") == times("part-0") == []


@pytest.mark.parametrize(
    "name",
    [
        "customers-{}.json",
        *(pytest.param(name, marks=pytest.mark.more) for name in ("day={}", "dump {}T0000")),
    ],
)
def test_each_snapshot_gives_what_changed_since_the_one_before(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    for day, rows in zip(DAYS, DUMPS, strict=True):
        dump(tmp_path / name.format(day), rows)
    elements: list[Element] = []
    made = source(tmp_path)
    for expected in CHANGES:
        assert sorted(next_of(spark, made, elements), key=repr) == sorted(expected, key=repr)
    assert made.plan(spark, elements) is None


@pytest.mark.more
def test_what_goes_comes_before_what_comes_and_a_replay_gives_the_same(
    tmp_path: Path, spark: SparkSession
) -> None:
    for day, rows in zip(DAYS, DUMPS, strict=True):
        dump(tmp_path / f"{day}.json", rows)
    made, elements, ends = source(tmp_path), list[Element](), [0]
    for expected in CHANGES:
        changes = next_of(spark, made, elements)
        assert changes == expected
        ends.append(len(elements))
    dump(tmp_path / "2026-01-04.json", {})  # does not take part in what was recorded
    for at, expected in enumerate(CHANGES):
        before, recorded = elements[: ends[at]], elements[ends[at] : ends[at + 1]]
        assert read(spark, made, made.replan(spark, before, recorded)) == expected
        part = made.rebatch(spark, before, elements[ends[at] :])
        assert part is not None
        assert read(spark, made, part) == expected
        assert part.elements == recorded
        assert part.more is (at < 2)
    assert made.rebatch(spark, elements, elements[ends[1] :]) is None


@pytest.mark.more
def test_a_column_of_the_partition_is_not_compared(tmp_path: Path, spark: SparkSession) -> None:
    for day, rows in zip(DAYS, DUMPS, strict=True):
        dump(tmp_path / f"day={day}", rows)
    made = source(tmp_path, files={"schema": f"{COLUMNS}, day date"})
    elements: list[Element] = []
    for expected in CHANGES:
        assert sorted(next_of(spark, made, elements), key=repr) == sorted(expected, key=repr)


# -- what is refused ---------------------------------------------------------------------------------------------------

WHOLE: Rows = dict.fromkeys(range(4), ("Rome", 1.0))


@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.more), 1])
def test_a_snapshot_that_lacks_too_much_is_refused_unless_it_is_allowed(
    tmp_path: Path, spark: SparkSession, left: int
) -> None:
    dump(tmp_path / "2026-01-01.json", WHOLE)
    elements: list[Element] = []
    next_of(spark, source(tmp_path), elements)
    rows = [f'{{"id": {n}, "city": "Rome", "weight": 1.0}}' for n in range(left)]
    (tmp_path / "2026-01-02.json").write_text("\n".join([*rows, "\n"]))
    lacks = rf"snapshot '2026-01-02.json': it lacks {4 - left} of the 4 rows .* a larger max_deleted"
    with pytest.raises(SourceError, match=lacks):
        next_of(spark, source(tmp_path), list(elements))
    taken = source(tmp_path, max_deleted=1.0)
    assert [row[0] for row in next_of(spark, taken, elements)] == ["-D"] * (4 - left)


@pytest.mark.more
def test_half_of_the_rows_may_go(tmp_path: Path, spark: SparkSession) -> None:
    dump(tmp_path / "2026-01-01.json", WHOLE)
    dump(tmp_path / "2026-01-02.json", {0: WHOLE[0], 1: WHOLE[1]})
    elements: list[Element] = []
    next_of(spark, source(tmp_path), elements)
    assert [row[:3] for row in next_of(spark, source(tmp_path), elements)] == [("-D", 2, 2), ("-D", 2, 3)]


def test_keys_are_there_and_once(tmp_path: Path, spark: SparkSession) -> None:
    file = dump(tmp_path / "2026-01-01.json", [(1, "Rome", 1.0), (2, "Rome", 1.0), (1, "Bari", 1.0)])
    with pytest.raises(SourceError, match=rf"{file}: 2 rows have the key {{'id': 1}}.*repair the snapshot"):
        next_of(spark, source(tmp_path), [])
    file.write_text('{"id": 1}\n{"city": "Rome"}')
    with pytest.raises(SourceError, match=rf"{file}, row 1: the key column 'id' is null"):
        next_of(spark, source(tmp_path), [])


def test_a_row_that_cannot_be_read_is_no_deleted_one(tmp_path: Path, spark: SparkSession) -> None:
    dump(tmp_path / "2026-01-01.json", WHOLE).write_text('{"id": "x"}')
    with pytest.raises(
        SourceError, match=r"2026-01-01\.json, row 0: .*not a number.*its key would be deleted"
    ):
        next_of(spark, source(tmp_path), [])


def _late(path: Path) -> None:
    dump(path / "2026-01-01 part.json", {})


def _earlier(path: Path) -> None:
    dump(path / "2025-12-31.json", WHOLE)


def _replaced(path: Path) -> None:
    dump(path / "2026-01-01" / "part-0.json", {1: ("Bari", 7.25)})


def _vanished(path: Path) -> None:
    (path / "2026-01-01" / "part-0.json").unlink()
    dump(path / "2026-01-02", WHOLE)


def _added(path: Path) -> None:
    dump(path / "2026-01-01" / "part-7.json", {9: ("Rome", 1.0)})


def _undated(path: Path) -> None:
    dump(path / "readme.json", WHOLE)


def _two_dates(path: Path) -> None:
    dump(path / "2026-01-02_2026-01-03.json", WHOLE)


def _twice(path: Path) -> None:
    dump(path / "a-2026-01-02.json", WHOLE)
    dump(path / "b-20260102.json", WHOLE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _earlier,
            r"2025-12-31.json came after the snapshot '2026-01-01' was read.*Give a correction a later time",
        ),
        (_added, r"part-7.json came after the snapshot '2026-01-01' was read, and belongs to '2026-01-01'"),
        (
            _late,
            r"the snapshots '2026-01-01' and '2026-01-01 part.json' have one time|came after the snapshot",
        ),
        (_replaced, r"part-0.json changed or vanished after it was consumed.*Put the old file back"),
        (
            _vanished,
            r"part-0.json changed or vanished, and the snapshot '2026-01-02' is compared with '2026-01-01'",
        ),
        (_undated, r"the name of the snapshot 'readme.json' has no date .*or leave others out with pattern="),
        (_two_dates, "has several dates"),
        (
            _twice,
            r"the snapshots '.-20.*' and '.-20.*' have one time, .*: remove one, or give it a time of day",
        ),
    ],
)
def test_files_that_would_change_committed_changes_are_refused(
    tmp_path: Path, spark: SparkSession, change: Callable[[Path], None], message: str
) -> None:
    dump(tmp_path / "2026-01-01", WHOLE)
    elements: list[Element] = []
    next_of(spark, source(tmp_path), elements)
    change(tmp_path)
    with pytest.raises(SourceError, match=message):
        source(tmp_path).plan(spark, elements)


def test_late_files_are_passed_over_where_that_is_asked_for(tmp_path: Path, spark: SparkSession) -> None:
    dump(tmp_path / "2026-01-02.json", WHOLE)
    elements: list[Element] = []
    next_of(spark, source(tmp_path), elements)
    _earlier(tmp_path)
    assert source(tmp_path, files={"on_change": "ignore"}).plan(spark, elements) is None


def test_a_snapshot_waits_until_it_is_whole_and_later_ones_wait_with_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    dump(tmp_path / "2026-01-01", WHOLE)
    dump(tmp_path / "2026-01-02", WHOLE)
    (tmp_path / "2026-01-02" / "_SUCCESS").touch()
    marked = source(tmp_path, complete="_SUCCESS")
    assert marked.plan(spark, []) is None
    assert marked.waiting([]) == [f"file://{tmp_path}/2026-01-01 has no _SUCCESS yet"]
    (tmp_path / "2026-01-01" / "part-9.json").touch()
    assert source(tmp_path).plan(spark, []) is None
    assert [one.split("/")[-1] for one in source(tmp_path).waiting([])] == ["part-9.json is empty"]
    (tmp_path / "2026-01-01" / "part-9.json").unlink()
    (tmp_path / "2026-01-01" / "_SUCCESS").touch()
    part = marked.plan(spark, [])
    assert part is not None
    assert len(part.elements) == 2


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no key": (lambda p: source(p, key=[]), "key is empty: name the columns"),
    "a key that is the time": (lambda p: source(p, key=["day"]), "'day' is part of the key"),
    "no share": (lambda p: source(p, max_deleted=2.0), "max_deleted is a share between 0 and 1"),
    "a key that is not there": (lambda p: source(p, key=["k"]), "there is no key column 'k'; a snapshot has"),
    "a map": (
        lambda p: source(p, files={"format": "parquet", "schema": "id bigint, m array<map<string, int>>"}),
        "the column 'm' has a map, and maps cannot be compared"),
    "a bound of rows": (
        lambda p: source(p, files={"max_files_per_batch": 1}), "a snapshot is a micro-batch: leave"),
    "files aside": (
        lambda p: source(p, files={"on_bad_file": "dead_letter"}), "would delete its rows: leave on_bad_file out"),
    "no files": (
        lambda p: snapshots_of("t", DeltaSource(str(p)), SnapshotFormat(key=["id"])),
        r"this is a DeltaSource: use a FileSource; a Delta table says itself what changed"),
    "time partitions": (
        lambda p: StatefulJob("job", partitions=TimePartitions("day", start="2026-01-01")).source(
            "dumps", FileSource(str(p), schema=COLUMNS), format=SnapshotFormat(key=["id"])),
        "leave partitions out of the job"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused_while_the_job_is_built(
    tmp_path: Path, build: Callable[[Path], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(tmp_path)


# -- a table of versions -----------------------------------------------------------------------------------------------

Version = tuple[int, int, int | None, str | None]


def job_of(path: Path, dumps: str | None = None) -> StatefulJob:
    job = StatefulJob("customers", parallelism=2)
    files = FileSource(dumps or str(path / "dumps"), schema=COLUMNS, format="json")
    changes = job.source("dumps", files, format=SnapshotFormat(key=["id"], at="day"), event_time="day")
    versions = changes.key_by("id").scd2(valid_from="day", uid="versions", lateness="1 day")
    versions.publish(DeltaStateTable(str(path / "versions")))
    changes.sink("now", DeltaSink(str(path / "now"), key=["id"]))
    return job


def shown(path: Path) -> tuple[set[Version], dict[int, str | None]]:
    """Versions as key, first and last day, and city; and the rows of today."""
    versions = pl.read_delta(str(path / "versions")).rows(named=True)
    made = {
        (row["id"], row["valid_from"].day, row["valid_to"] and row["valid_to"].day, row["city"])
        for row in versions
    }
    return made, {row["id"]: row["city"] for row in pl.read_delta(str(path / "now")).rows(named=True)}


def expected_of(dumps: list[Rows]) -> tuple[set[Version], dict[int, str | None]]:
    """By a plain program: the days on which each key had each row."""
    made: set[Version] = set()
    for key in {key for rows in dumps for key in rows}:
        days = [repr(rows.get(key)) for rows in dumps]
        begins = [at for at, row in enumerate(days) if at == 0 or row != days[at - 1]]
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            if key in dumps[begin]:
                made.add((key, begin + 1, None if end is None else end + 1, dumps[begin][key][0]))
    return made, {key: row[0] for key, row in dumps[-1].items()}


@pytest.mark.more
def test_versions_of_daily_dumps_are_those_of_a_plain_program_through_cuts_restore_and_replay(
    tmp_path: Path, spark: SparkSession
) -> None:
    engine = StateEngine(tmp_path / "root", spark=spark)
    for at, rows in enumerate(DUMPS[:2]):
        dump(tmp_path / "dumps" / f"{DAYS[at]}.json", rows)
    engine.run(job_of(tmp_path), max_batches=1)
    assert shown(tmp_path) == expected_of(DUMPS[:1])
    engine.run(job_of(tmp_path))
    assert shown(tmp_path) == expected_of(DUMPS[:2])
    dump(tmp_path / "dumps" / f"{DAYS[2]}.json", DUMPS[2])
    engine.run(job_of(tmp_path))
    assert shown(tmp_path) == expected_of(DUMPS)
    for rebatch in (False, True):
        replayed = engine.replay(job_of(tmp_path), rebatch=rebatch)
        assert engine.compare("customers", replayed.branch).is_equal
    engine.restore("customers", checkpoint_id=1)
    assert shown(tmp_path) == expected_of(DUMPS[:1])
    engine.run(job_of(tmp_path))
    assert shown(tmp_path) == expected_of(DUMPS)
