"""Every command prints text, JSON and CSV of a job with every type; programs can read each line, and nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from state_engine.cli import operations
from state_engine.cli.main import app
from tests.support.commands import every_command

JOBS = """
from state_engine.registry import RegisteredJob
from state_engine import DeltaSink, DeltaStateTable, FileSource, StatefulJob, TimePartitions, ValueStateDescriptor
from state_engine import KeyedProcessFunction

ALL = '''price decimal(38,10), day date, at timestamp, local timestamp_ntz, raw binary, ok boolean, small tinyint,
    big bigint, huge decimal(38,0), ratio double, note string, nothing string, nested struct<a:decimal(5,2),raw:binary>,
    tags array<date>, by_name map<string,binary>, by_number map<bigint,date>'''

class Newest(KeyedProcessFunction):
    def open(self, runtime_context):
        self.newest = runtime_context.get_state(ValueStateDescriptor("newest", ALL))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "int", default=0))

    def process_element(self, value, ctx):
        self.newest.update(value.all)
        self.seen.update(self.seen.value() + 1)
        if value.k == "a":
            ctx.timer_service().register_event_time_timer(9_000_000_000_000)
        yield value.k, value.price, value.k_day, value.k_ok, value.k_raw, value.all, CODE

def newest(job, rows, out):
    done = rows.key_by("k", "price", "k_day", "k_ok", "k_raw").process(Newest(), uid="UID",
        output_type=f"k string, price decimal(10,2), k_day date, k_ok boolean, k_raw binary, "
            f"`all` struct<{ALL}>, code int")
    done.publish_state("seen", DeltaStateTable(out + "_seen"))
    done.sink("out", DeltaSink(out))
    return RegisteredJob(job=job)

def jobs(settings):
    job = StatefulJob("sums", parallelism=2)
    rows = job.source("rows", FileSource("DIRECTORY/rows", max_files_per_batch=1))
    days = StatefulJob("days", parallelism=1, partitions=TimePartitions("at", start="2026-01-01", every="day"))
    by_day = days.source("events", FileSource("DIRECTORY/by_day_in"))
    return [newest(job, rows, "DIRECTORY/out"), newest(days, by_day, "DIRECTORY/by_day")]
"""
TEXT = 'two\nlines\r, "quoted"\u2028\x85end'
NESTED = pa.struct([("a", pa.decimal128(5, 2)), ("raw", pa.binary())])
ALL = pa.struct(
    [
        ("price", pa.decimal128(38, 10)), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")), ("raw", pa.binary()), ("ok", pa.bool_()), ("small", pa.int8()),
        ("big", pa.int64()), ("huge", pa.decimal128(38, 0)), ("ratio", pa.float64()), ("note", pa.string()),
        ("nothing", pa.string()), ("nested", NESTED), ("tags", pa.list_(pa.date32())),
        ("by_name", pa.map_(pa.string(), pa.binary())), ("by_number", pa.map_(pa.int64(), pa.date32())),
    ]
)  # fmt: skip
DAY = date(2026, 1, 1)
VALUE: dict[str, Any] = {
    "price": Decimal("0.1000000000"), "day": date(1, 1, 1), "at": datetime(2026, 1, 1, 10, tzinfo=UTC),
    "local": datetime(2026, 1, 1, 10), "raw": b"\x00\xff", "ok": True, "small": -128, "big": -(2**63),
    "huge": Decimal(10**37), "ratio": float("nan"), "note": TEXT, "nothing": None,
    "nested": {"a": Decimal("1.50"), "raw": b""}, "tags": [date(9999, 12, 31), None],
    "by_name": [("x", b"\xff")], "by_number": [(7, DAY)],
}  # fmt: skip
SHOWN: dict[str, Any] = {
    "price": "0.1000000000", "day": "0001-01-01", "at": "2026-01-01T10:00:00Z", "local": "2026-01-01T10:00:00",
    "raw": "AP8=", "ok": True, "small": -128, "big": -(2**63), "huge": "1" + "0" * 37, "ratio": "nan", "note": TEXT,
    "nothing": None, "nested": {"a": "1.50", "raw": ""}, "tags": ["9999-12-31", None],
}  # fmt: skip
"""The same for programs, but for the maps."""
KEY: dict[str, Any] = {"k": "a", "price": "1.10", "k_day": "2026-01-01", "k_ok": True, "k_raw": "AP8="}
LINES: tuple[str | list[str], ...] = (
    "jobs", "config show", "doctor --no-spark", "init project",
    "run sums --max-batches 1", "run sums", "run days --partition 2026-01-01", "partitions days",
    "backfill days --from 2026-01-01 --to 2026-01-01 --dry-run",
    "checkpoints sums", "status", "metrics", "plan", "apply sums --from 0", "sql sums --views",
    ["sql", "sums", "SELECT * FROM seen WHERE k_day = DATE'2026-01-01' AND price = 1.1 AND k_ok", "--limit", "5"],
    ["sql", "sums", "SELECT k, value FROM newest__newest"],
    ["sql", "sums", "SELECT k, value, upper(k) FROM newest__newest", "--spark", "--unrestricted"],
    ["explain", "sums", "--key", json.dumps(KEY)], ["debug", "sums", "--key", json.dumps(KEY)],
    "state diff sums 1 2", "dead-letters list sums",
    "dead-letters replay sums --dry-run",
    "publish-pending sums", "restore sums 1 --dry-run", "rescale sums --parallelism 3 --dry-run",
    "compact sums", "expire-checkpoints sums --dry-run", "vacuum sums --dry-run",
    ["state", "erase-keys", "sums", "--key", json.dumps(KEY), "--dry-run"],
    "change-key-type sums --operator newest --dry-run", "upgrade --dry-run",
    "savepoint create sums safe", "savepoint list sums", "savepoint verify root/sums/savepoints/safe",
    "savepoint delete sums safe", "verify-table sums seen", "rebuild-table sums seen --dry-run",
    "accept-table sums seen --dry-run", "register forms --job sums --dry-run", "setup",
    "branch create sums --branch again", "branch list sums",
    "branch compare sums again --rows 1", "branch promote sums again --dry-run", "branch drop sums again",
    "drop-operators sums --operator newest --dry-run",
)  # fmt: skip


def put_rows(place: Path) -> None:
    """Two files; the second has a row of another day, and one of the key of the first again."""
    place.mkdir()
    fields = [("k", pa.string()), ("price", pa.decimal128(10, 2)), ("k_day", pa.date32()), ("all", ALL)]
    fields += [("k_ok", pa.bool_()), ("k_raw", pa.binary())]
    schema = pa.schema([*fields, ("at", pa.timestamp("us", "UTC"))])
    row = {"k": "a", "price": Decimal("1.10"), "k_day": DAY, "all": VALUE, "at": VALUE["at"], "k_ok": True}
    row["k_raw"] = b"\x00\xff"
    null = dict.fromkeys(VALUE)
    for name, rows in (("0", [row]), ("1", [row, row | {"k": "b\n", "all": null}])):
        pq.write_table(pa.Table.from_pylist(rows, schema), place / f"{name}.parquet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    for place in ("rows", "by_day_in"):
        put_rows(tmp_path / place)
    write_jobs(tmp_path, {"CODE": "1"})
    spark.sql("CREATE SCHEMA IF NOT EXISTS forms")
    monkeypatch.setattr(
        operations, "check_lasting", lambda *_: None
    )  # a catalog of the session is enough here
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", "own_jobs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_jobs", raising=False)
    return tmp_path


def write_jobs(directory: Path, changed: dict[str, str]) -> None:
    """The module of the jobs, whose outputs have a number of the code, and whose operator has a name."""
    text = JOBS
    for name, value in ({"DIRECTORY": str(directory), "CODE": "1", "UID": "newest"} | changed).items():
        text = text.replace(name, value)
    (directory / "own_jobs.py").write_text(text)
    sys.modules.pop("own_jobs", None)


OTHER_CODE = {"branch create": {"CODE": "2"}, "drop-operators": {"UID": "other"}}
"""What a line changes in the code before it runs."""


def printed(line: str | list[str], *options: str) -> Result:
    words = line.split() if isinstance(line, str) else line
    done = CliRunner().invoke(app, [*words, *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    assert "Traceback" not in done.output, line
    return done


def name_of(line: str | list[str]) -> str:
    return " ".join(line.split() if isinstance(line, str) else line)


def shown_by(here: Path, *options: str) -> dict[str, Result]:
    """What all commands print, one after the other; the branch runs other code."""
    results = {}
    for line in LINES:
        for start, changed in OTHER_CODE.items():
            if name_of(line).startswith(start):
                write_jobs(here, changed)
        results[name_of(line)] = printed(line, *options)
    return results


def of(results: dict[str, Any], start: str) -> Any:
    [result] = [result for line, result in results.items() if line.startswith(start)]
    return result


EMPTY = ("dead-letters list", "dead-letters replay")


@pytest.mark.long
@pytest.mark.spark
def test_every_command_prints_an_object_a_line(here: Path) -> None:
    records = {
        line: [json.loads(text) for text in done.stdout.splitlines()]
        for line, done in shown_by(here, "--json").items()
    }
    for line, of_line in records.items():
        assert all(isinstance(one, dict) for one in of_line), line
        assert of_line or line.startswith(EMPTY), line
    assert of(records, "run sums --max-batches 1")[0]["caught_up"] is False
    assert of(records, "run days")[0]["batches"][0]["partition"] == "2026-01-01"
    assert of(records, "restore sums")[0]["checkpoint_id"] == 1
    assert of(records, "savepoint list")[0]["name"] == "safe"
    assert of(records, "branch list")[0]["branch"] == "again"
    assert [one["job"] for one in of(records, "status")] == ["sums", "days"]
    assert [(one["job"], one["verdict"]) for one in of(records, "plan")] == [
        ("sums", "same"),
        ("days", "same"),
    ]
    [compared] = of(records, "verify-table")
    assert (compared["name"], compared["rows"], compared["deleted"]) == ("seen", 0, 0)
    [left] = of(records, "drop-operators")
    assert left["operators"] == {"newest": {"newest": 2, "seen": 2}}

    maps = {"by_name": {"x": "/w=="}, "by_number": [[7, "2026-01-01"]]}
    for line in ("sql sums SELECT k, value FROM", "sql sums SELECT k, value, upper"):
        values = {one["k"]: one["value"] for one in of(records, line)}
        assert values == {"a": SHOWN | maps, "b\n": dict.fromkeys(VALUE)}
    pairs = {"by_name": [["x", "/w=="]], "by_number": [[7, "2026-01-01"]]}
    first, second = of(records, "explain")
    assert first["inputs"][0]["rows"][0]["all"] == SHOWN | pairs
    assert first["outputs"][0]["rows"][0]["all"] == SHOWN | pairs
    states = {one["state"]: one["after"] for one in first["states"]}
    assert states == {"newest": SHOWN | pairs, "seen": 1}
    assert [one["state"] for one in second["states"]] == ["seen"], "NaN is no change"
    explained = of(records, "explain")
    assert explained[0]["inputs"][0]["rows"][0] | KEY == explained[0]["inputs"][0]["rows"][0]
    changes = of(records, "state diff")
    assert all(one | KEY | {"k": one["k"]} == one for one in changes)
    [shown] = [one for one in of(records, "sql sums SELECT *") if one["k"] == "a"]
    assert shown | KEY == shown
    assert {(one["k"], one["state"]) for one in changes} == {
        ("a", "seen"),
        ("b\n", "newest"),
        ("b\n", "seen"),
    }
    [compared] = of(records, "branch compare")
    sides = {one["only_in"]: one["rows"] for one in compared["rows"]}
    assert {side: rows[0]["code"] for side, rows in sides.items()} == {"old": 1, "new": 2}
    assert next(r for r in sides["old"] if r["k"] == "a")["all"] == SHOWN | maps


@pytest.mark.long
@pytest.mark.spark
def test_every_command_prints_one_table_of_csv(here: Path) -> None:
    for line, done in shown_by(here, "--csv").items():
        header, *rows = csv.reader(io.StringIO(done.stdout, newline=""))
        assert len(set(header)) == len(header) > 0, line
        assert all(len(row) == len(header) for row in rows), line
        assert rows or line.startswith(EMPTY), line
        if line.startswith("sql sums SELECT k, value FROM"):
            cells = {row[0]: json.loads(row[1]) for row in rows}
            assert {name: cells["a"][name] for name in SHOWN} == SHOWN


@pytest.mark.long
@pytest.mark.spark
def test_every_command_prints_text(here: Path) -> None:
    results = shown_by(here)
    assert "0.1000000000" in of(results, "explain").stdout
    assert f"sums, newest: key {json.dumps(KEY)}" in of(results, "explain").stdout
    compared = of(results, "branch compare").output
    for side in ("old", "new"):
        heading = rf"^sink out: rows only in {side}, checkpoint \d+; _rows says how many more of each$"
        assert re.search(heading, compared, re.MULTILINE)
    assert "There are more than 1 row; a larger --rows shows more." in compared
    assert "--limit" not in compared


def test_no_command_is_forgotten_above() -> None:
    tried = {name_of(line) for line in LINES}
    assert [name for name in every_command() if not any(one.startswith(name) for one in tried)] == []
