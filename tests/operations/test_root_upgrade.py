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
from state_engine.storage.delta.kernel import Transaction
from state_engine.storage.files import join, normal_uri, write_parquet
from state_engine.storage.layout import TABLE_PROPERTIES
from state_engine.storage.root import MARKER
from tests.support.directories import contents
from tests.support.tiny import ROWS, Site

pytestmark = pytest.mark.spark

_NEW_IN_3 = {"replaced_id", "retired", "pinned", "unpinned", "rescaled"}
_NEW_IN_5 = {"partition", "partition_start_ms", "partition_end_ms", "late_rows", "backfill"}
_NEW_IN_6 = {"directory", "drained", "footer", "digest"}
_NEW_IN_7 = {"behind_watermark", "floor_ms", "idle", "last_rows_ms", "operator_watermarks_ms"}


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
    """As rows of older versions have them: without checksums, and without counts of entries."""
    return [
        replace(o, changelog=[replace(f, footer=None) for f in o.changelog], entries={})
        for o in row.operators
    ]


def make_older(site: Site, version: int) -> None:
    """Write the checkpoints of all jobs as an older version had them: its columns, its marks, its transactions."""
    root = site.directory / "root"
    marker = json.loads((root / MARKER).read_text())
    dropped = _NEW_IN_7 | _NEW_IN_6 | _NEW_IN_5 | ({"stored_as"} if version < 4 else set())
    dropped |= _NEW_IN_3 | {"base_files", "withdrawn"} if version < 3 else set()
    with site.engine() as engine:
        for table in root.glob("*/checkpoints"):
            rows = DeltaTable(str(table)).to_pyarrow_table()
            schema = pa.schema(list(_without(pa.struct(list(rows.schema)), dropped)))
            job = table.parent.name
            shutil.rmtree(table)
            uri = normal_uri(table)
            properties = {"statelake.job": job, "statelake.format": str(version)}
            engine.kernel.create_table(uri, schema, properties=TABLE_PROPERTIES | properties)
            for row in sorted(rows.to_pylist(), key=lambda r: r["checkpoint_id"]):
                name = f"checkpoint-{row['checkpoint_id']:012d}-{row['write_id']}.parquet"
                stripped = pa.Table.from_pylist([_stripped(row, dropped)], schema=schema)
                file = DataFile(name, write_parquet(stripped, join(uri, name)).bytes, 1, 0)
                transaction = Transaction(f"{marker['root_id']}/{job}", row["checkpoint_id"])
                engine.kernel.append(uri, [file], transaction=transaction)
    (root / MARKER).write_text(json.dumps({"root_id": marker["root_id"], "format": str(version)}))


@pytest.fixture
def ran(tmp_path: Path, spark: SparkSession) -> Site:
    """After two batches; more input waits."""
    site = Site(tmp_path, spark).put(ROWS)
    site.engine().run(site.job())
    site.put({"k": ["a"], "v": [10]}, "1").engine().run(site.job())
    return site.put({"k": ["b"], "v": [20]}, "2")


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.long
def test_an_older_root_is_refused_until_it_is_upgraded(ran: Site, version: int) -> None:
    root = ran.directory / "root"
    before = [(r.checkpoint_id, r.write_id, _as_older(r)) for r in ran.engine().checkpoints("tiny")]
    make_older(ran, version)
    for use in (lambda: ran.engine().run(ran.job()), lambda: ran.engine().checkpoints("tiny")):
        with pytest.raises(RootError, match=f"format {version} of an older Statelake.*statelake upgrade"):
            use()

    files = contents(root)
    planned = StateEngine.upgrade(root, ran.spark, dry_run=True)
    assert (planned.before, planned.after, planned.jobs, planned.rows) == (
        version, FORMAT_VERSION, ["tiny"], 2,
    )  # fmt: skip
    assert contents(root) == files

    done = StateEngine.upgrade(root, ran.spark)
    assert (done.jobs, done.rows, done.dry_run, len(done.steps)) == (
        ["tiny"], 2, False, FORMAT_VERSION - version,
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
    make_older(ran, 2)

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
    (tmp_path / MARKER).write_text(json.dumps({"root_id": "x", "format": "1"}))
    with pytest.raises(RootError, match="which cannot be upgraded"):
        StateEngine.upgrade(tmp_path, spark)
