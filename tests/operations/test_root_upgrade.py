"""Upgrade of a root: an older format is refused, then upgraded, and its jobs go on with equal results."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, OperatorCheckpoint
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION
from state_engine.core.errors import RootError
from state_engine.storage.checkpoint_files import with_digests
from state_engine.storage.delta.kernel import Transaction
from state_engine.storage.layout import TABLE_PROPERTIES
from state_engine.storage.root import MARKER, write_marker
from state_engine.storage.stores.files import join, normal_uri, write_parquet
from tests.support.directories import contents
from tests.support.tiny import ROWS, Site

pytestmark = pytest.mark.spark

_NEW = {
    "behind_watermark", "floor_ms", "idle", "last_rows_ms", "operator_watermarks_ms", "expired", "first_timers",
    "asked_late", "kept_states", "second_key", "shape", "input_type", "declared", "expectations",
    "gates",
}  # fmt: skip
"""Fields of rows that the format before did not have."""
BEFORE = 6


def _without(kind: pa.DataType, dropped: set[str]) -> pa.DataType:
    """A type without some fields, at any depth."""
    if pa.types.is_list(kind):
        return pa.list_(_without(kind.value_type, dropped))
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([pa.field(f.name, _without(f.type, dropped)) for f in kind if f.name not in dropped])


def _stripped(value: Any, dropped: set[str]) -> Any:
    if isinstance(value, list):
        return [_stripped(v, dropped) for v in value]
    if isinstance(value, dict):
        return {k: _stripped(v, dropped) for k, v in value.items() if k not in dropped}
    return value


def _as_older(row: CheckpointRow) -> list[OperatorCheckpoint]:
    """As they are after an upgrade: without what 0.2.0 did not record."""
    return [
        replace(o, expired=[], first_timers=[], asked_late=[state.name for state in o.states])
        for o in row.operators
    ]


def make_older(site: Site) -> None:
    """Write the checkpoints of all jobs as 0.2.0 had them: its columns, its marks, its transactions."""
    root = site.directory / "root"
    marker = json.loads((root / MARKER).read_text())
    with site.engine() as engine:
        for table in root.glob("*/checkpoints"):
            rows = DeltaTable(str(table)).to_pyarrow_table()
            schema = pa.schema(list(_without(pa.struct(list(rows.schema)), _NEW)))
            job = table.parent.name
            shutil.rmtree(table)
            uri = normal_uri(table)
            properties = {"statelake.job": job, "statelake.format": str(BEFORE)}
            engine.kernel.create_table(uri, schema, properties=TABLE_PROPERTIES | properties)
            for row in sorted(rows.to_pylist(), key=lambda r: r["checkpoint_id"]):
                name = f"checkpoint-{row['checkpoint_id']:012d}-{row['write_id']}.parquet"
                stripped = with_digests(pa.Table.from_pylist([_stripped(row, _NEW)], schema=schema))
                file = DataFile(name, write_parquet(stripped, join(uri, name)).bytes, 1, 0)
                transaction = Transaction(f"{marker['root_id']}/{job}", row["checkpoint_id"])
                engine.kernel.append(uri, [file], transaction=transaction)
    write_marker(normal_uri(root), {"root_id": marker["root_id"], "format": str(BEFORE)})


@pytest.fixture
def ran(tmp_path: Path, spark: SparkSession) -> Site:
    """After two batches; more input waits."""
    site = Site(tmp_path, spark).put(ROWS)
    site.engine().run(site.job())
    site.put({"k": ["a"], "v": [10]}, "1").engine().run(site.job())
    return site.put({"k": ["b"], "v": [20]}, "2")


@pytest.mark.long
def test_an_older_root_is_refused_until_it_is_upgraded(ran: Site) -> None:
    root = ran.directory / "root"
    before = [(r.checkpoint_id, r.write_id, _as_older(r)) for r in ran.engine().checkpoints("tiny")]
    make_older(ran)
    for use in (lambda: ran.engine().run(ran.job()), lambda: ran.engine().checkpoints("tiny")):
        with pytest.raises(RootError, match=f"format {BEFORE} of an older Statelake.*statelake upgrade"):
            use()

    files = contents(root)
    planned = StateEngine.upgrade(root, ran.spark, dry_run=True)
    assert (planned.before, planned.after, planned.jobs, planned.rows) == (
        BEFORE, FORMAT_VERSION, ["tiny"], 2,
    )  # fmt: skip
    assert contents(root) == files

    done = StateEngine.upgrade(root, ran.spark)
    assert (done.jobs, done.rows, done.dry_run, len(done.steps)) == (
        ["tiny"], 2, False, FORMAT_VERSION - BEFORE,
    )  # fmt: skip
    after = ran.engine().checkpoints("tiny")
    assert [(r.checkpoint_id, r.write_id, r.operators) for r in after] == before
    ran.engine().run(ran.job())
    assert ran.state() == {"a": 14, "b": 22, "c": 4}
    assert len(ran.outputs()) == 6

    files = contents(root)
    again = StateEngine.upgrade(root, ran.spark)
    assert (again.before, again.after, again.jobs, again.steps) == (FORMAT_VERSION, FORMAT_VERSION, [], [])
    assert contents(root) == files


@pytest.mark.parametrize("broken", ["rows", "format", "marker"])
@pytest.mark.long
def test_an_upgrade_that_crashed_is_run_again(
    ran: Site, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ran.directory / "root"
    make_older(ran)

    def crash(*_: object, **__: object) -> None:
        raise OSError("out of power")

    place = {
        "rows": "state_engine.operations.root_upgrade.DeltaKernel.change",
        "format": "state_engine.operations.root_upgrade._Checkpoints._say_format",
        "marker": "state_engine.operations.root_upgrade.write_marker",
    }
    with monkeypatch.context() as inside:
        inside.setattr(place[broken], crash)
        with pytest.raises(OSError, match="out of power"):
            StateEngine.upgrade(root, ran.spark)
    with pytest.raises(RootError, match="statelake upgrade"):
        ran.engine().run(ran.job())

    StateEngine.upgrade(root, ran.spark)
    ran.engine().run(ran.job())
    assert ran.state() == {"a": 14, "b": 22, "c": 4}


def test_there_is_nothing_to_upgrade(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(RootError, match="there is no root at"):
        StateEngine.upgrade(tmp_path / "none", spark)
    (tmp_path / MARKER).write_text(json.dumps({"root_id": "x", "format": str(FORMAT_VERSION + 1)}))
    with pytest.raises(RootError, match="was written by a newer Statelake"):
        StateEngine.upgrade(tmp_path, spark)
    (tmp_path / MARKER).write_text(json.dumps({"root_id": "x", "format": "5"}))
    with pytest.raises(RootError, match="which this version cannot upgrade"):
        StateEngine.upgrade(tmp_path, spark)
