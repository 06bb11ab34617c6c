"""``statelake metrics`` beside what really happened: rows of ``checkpoints``, files, and what the test put in."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.monitoring.job_history import read_history
from state_engine.telemetry import metrics as m
from state_engine.telemetry.metrics import JOB, Metric, prometheus_label
from tests.support.commands import in_a_new_process
from tests.telemetry.jobs_of_shops import DIRECTORY, shops
from tests.telemetry.test_prometheus import read

AT = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("shop", pa.string()), ("at", pa.timestamp("us", "UTC")), ("cents", pa.int64())])


def put(directory: Path, name: str, *sales: tuple[str, int, int]) -> Path:
    """Sales of a shop, at so many minutes, of so many cents."""
    (directory / "sales").mkdir(exist_ok=True)
    rows = [(shop, AT + timedelta(minutes=minutes), cents) for shop, minutes, cents in sales]
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    path = directory / "sales" / f"{name}.parquet"
    pq.write_table(pa.table(columns, schema=SCHEMA), path)
    return path


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Path:
    """Two micro-batches: the second has a late row and one that is refused."""
    with StateEngine(tmp_path / "root", spark) as engine:
        put(tmp_path, "a", ("x", 0, 10), ("y", 5, 20), ("x", 10, 30))
        engine.run(shops(tmp_path))
        put(tmp_path, "b", ("x", 1, 1), ("z", 20, 5), ("z", 21, -1), ("y", 90, 7))
        engine.run(shops(tmp_path))
    return tmp_path


def command(directory: Path, *arguments: str) -> str:
    """Output of ``statelake`` on a machine without Java."""
    code = (
        "import sys; from state_engine.cli.main import main\n"
        "try: main()\n"
        "finally: assert not {'opentelemetry', 'dagster'} & set(sys.modules), sys.modules.keys()"
    )
    places = {"STATELAKE__ROOT": str(directory / "root"), DIRECTORY: str(directory), "JAVA_HOME": ""}
    modules = json.dumps(["tests.telemetry.jobs_of_shops"])
    done = in_a_new_process(
        *arguments, cwd=directory, code=code, PATH="/nonexistent", STATELAKE__JOBS__MODULES=modules, **places
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def values(text: str, metric: Metric) -> dict[tuple[str, ...], float]:
    """Numbers of a metric, by its own labels."""
    names = [prometheus_label(name) for name in metric.attributes]
    numbers = {}
    for (name, labels), value in read(text).items():
        if name == metric.prometheus_name:
            given = dict(labels)
            assert given.pop(prometheus_label(JOB)) == "shops"
            assert given.keys() == set(names)
            numbers[tuple(given[one] for one in names)] = value
    return numbers


def test_bytes_of_states_are_those_of_their_columns(site: Path) -> None:
    history = read_history(str(site / "root"), "shops")
    assert history is not None
    files = [
        *Path(site / "root").rglob("changelog/**/*.parquet"),
        *Path(site / "root").rglob("base/**/*.parquet"),
    ]
    shares = {"total": 0.0, "days": 0.0, "_timers": 0.0}
    for file in files:
        parts = dict.fromkeys(shares, 0)
        group = pq.read_metadata(file).row_group(0)
        for place in range(group.num_columns):
            chunk = group.column(place)
            for name in shares:
                parts[name] += chunk.total_compressed_size * (
                    chunk.path_in_schema.split(".")[0] == f"v_{name}"
                )
        for name, size in parts.items():
            shares[name] += file.stat().st_size * size / sum(parts.values())
    text = command(site, "metrics", "--format", "prometheus")
    assert values(text, m.STATE_PART) == {
        ("totals", name): pytest.approx(shares[name], abs=1) for name in ("total", "days")
    }
    assert sum(shares.values()) == pytest.approx(values(text, m.STATE_SIZE)["totals",])
    min(files).unlink()
    assert values(command(site, "metrics", "--format", "prometheus"), m.STATE_PART) == {}


def test_the_text_for_prometheus_says_what_happened(site: Path) -> None:
    waiting = put(site, "c", ("y", 95, 1), ("y", 96, 1))
    at_s = waiting.stat().st_mtime - 500
    os.utime(waiting, (at_s, at_s))
    text = command(site, "metrics", "--format", "prometheus")
    history = read_history(str(site / "root"), "shops")
    assert history is not None
    rows = [row for row in history.path if row.kind.is_micro_batch]
    assert len(rows) == 2
    assert values(text, m.CHECKPOINTS) == {(): 2}
    assert values(text, m.ROWS_IN) == {("sales",): 7}
    assert values(text, m.ROWS_LATE) == {("sales",): 1}
    assert values(text, m.ROWS_REFUSED) == {(): 1}
    assert values(text, m.DEAD_LETTERS) == {(): 1}
    assert values(text, m.ROWS_OUT) == {("out",): 6, ("copy",): 6}
    assert values(text, m.FUNCTION)["totals.sold",] == 3
    assert values(text, m.FUNCTION)["totals.cents.of_a_sale:max",] == 7
    assert values(text, m.STATE_ENTRIES) == {("totals", "total"): 3, ("totals", "days"): 3}
    pending = values(text, m.TIMERS_PENDING)[("totals",)]
    assert pending == 1, "those of an hour before the watermark have fired"
    due_s = (AT + timedelta(minutes=150)).timestamp()
    assert values(text, m.TIMERS_NEXT) == {("totals", "event"): due_s}
    [watermark_s] = values(text, m.WATERMARK_TIME).values()
    assert watermark_s == (rows[-1].watermark_ms or 0) / 1000
    assert values(text, m.STEP_TIME) == pytest.approx(
        {(step,): sum(row.durations_ms[step] for row in rows) / 1000 for step in rows[0].durations_ms}
    )
    sizes = sum(f.bytes for row in rows for f in row.operators[0].changelog)
    assert values(text, m.STATE_SIZE) == {("totals",): sizes} == values(text, m.STATE_WRITTEN)
    assert 1 <= values(text, m.STATE_SKEW)[("totals",)] <= 2
    assert values(text, m.LAG_FILES) == {("sales",): 1}
    assert values(text, m.LAG_ROWS) == {("sales",): 2}
    assert values(text, m.LAG_SIZE) == {("sales",): waiting.stat().st_size}
    [since_s] = values(text, m.LAG_TIME).values()
    assert 500 <= since_s < 620
    assert {state for state, one in values(text, m.STATUS).items() if one} == {("ok",)}


def test_other_forms_and_status_say_the_same(site: Path) -> None:
    put(site, "c", ("y", 95, 1), ("y", 96, 1))
    lines = [json.loads(line) for line in command(site, "metrics", "shops", "--json").splitlines()]
    assert {"job": "shops", "metric": "statelake.lag.rows", "attributes": {"statelake.source": "sales"},
            "value": 2.0, "unit": "{row}", "kind": "gauge"} in lines  # fmt: skip
    assert "statelake.lag.rows" in command(site, "metrics")
    shown = json.loads(command(site, "status", "--json"))
    assert (shown["behind"]["sales"]["files"], shown["behind"]["sales"]["rows"]) == (1, 2)
    assert shown["watermark_age_s"] > 0
    [state] = shown["states"]
    assert (state["operator"], state["entries"]) == ("totals", {"total": 3, "days": 3})
    text = command(site, "status")
    assert "sales: yes (1 file, 2 rows, since 0:0" in text
    assert "totals.days: 3" in text


def test_a_job_that_never_ran_has_a_status_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    text = command(tmp_path, "metrics", "--format", "prometheus")
    assert {name for name, _ in read(text)} == {m.STATUS.prometheus_name}
    assert values(text, m.STATUS)[("never_ran",)] == 1
    assert command(tmp_path, "metrics", "--format", "prometheus", "--json") == ""
