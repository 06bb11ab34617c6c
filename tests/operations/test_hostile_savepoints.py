"""Savepoints from an untrusted origin: no file outside of them is read or written, and none of their sinks is used."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.savepoint_manifest import SavepointFile, SavepointManifest, parse_manifest
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import ConfigurationError, MissingFilesError, StatelakeError
from state_engine.databases.target import SqlTarget
from state_engine.operations.savepoints import MANIFEST, checksums
from state_engine.storage.delta.kernel import DeltaKernel
from tests.operations.test_savepoints import moved
from tests.support.tiny import Site

pytestmark = pytest.mark.spark

Change = Callable[[CheckpointRow], CheckpointRow]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Site:
    """A job with a savepoint in ``sp``, which tests do not change."""
    site = Site(tmp_path_factory.mktemp("taken"), spark).put({"k": ["a", "b"], "v": [1, 10]})
    site.engine().run(site.job())
    site.engine().savepoints("tiny").create("safe", site.directory / "sp")
    return site


@pytest.fixture
def savepoint(taken: Site, tmp_path: Path) -> Path:
    """A copy of the savepoint that may be changed."""
    shutil.copytree(taken.directory / "sp", tmp_path / "sp")
    return tmp_path / "sp"


def crafted(
    savepoint: Path, change: Change = lambda row: row, files: list[SavepointFile] | None = None
) -> None:
    """Write the manifest anew, with a digest that fits."""
    manifest = parse_manifest((savepoint / MANIFEST).read_text(), where="")
    listed = (
        list(checksums(f"file://{savepoint}", [f.path for f in manifest.files])) if files is None else files
    )
    changed = SavepointManifest(
        manifest.name, manifest.job, manifest.created_at, change(manifest.checkpoint), listed
    )
    (savepoint / MANIFEST).write_text(changed.to_text())


def base_file(row: CheckpointRow) -> DataFile:
    return row.operators[0].base_files[0]


def with_base_file(path: str) -> Change:
    """The first file of keyed state is another one."""

    def change(row: CheckpointRow) -> CheckpointRow:
        operator = row.operators[0]
        files = [replace(operator.base_files[0], path=path), *operator.base_files[1:]]
        return replace(row, operators=[replace(operator, base_files=files), *row.operators[1:]])

    return change


def with_operator_state(path: str) -> Change:
    def change(row: CheckpointRow) -> CheckpointRow:
        return replace(row, operator_state_files=[replace(row.operator_state_files[0], path=path)])

    return change


def with_base_id(base_id: str) -> Change:
    def change(row: CheckpointRow) -> CheckpointRow:
        operator = row.operators[0]
        bases = [replace(base, base_id=base_id) for base in operator.bases]
        return replace(row, operators=[replace(operator, bases=bases)])

    return change


def with_uid(uid: str) -> Change:
    return lambda row: replace(row, operators=[replace(row.operators[0], uid=uid)])


CHANGES = {
    "base, above": with_base_file("../../../../../../outside.parquet"),
    "base, absolute": with_base_file("/etc/passwd"),
    "base, the log": with_base_file("_delta_log/00000000000000000001.json"),
    "base, not listed": with_base_file("base_id=0/key_group=0/x.parquet"),
    "operator state, above": with_operator_state("write_id=0/../../outside.parquet"),
    "operator state, absolute": with_operator_state("/etc/passwd"),
    "operator state, the log": with_operator_state("_delta_log/00000000000000000001.json"),
    "base id, above": with_base_id("../../.."),
    "base id, empty": with_base_id(""),
    "uid, above": with_uid("../../../outside"),
}


def is_refused(taken: Site, savepoint: Path, root: Path, match: str, *, by: type[StatelakeError]) -> None:
    engine = StateEngine(root, taken.spark)
    with pytest.raises(by, match=match):
        engine.savepoints("tiny").verify(savepoint)
    with pytest.raises(by, match=match):
        engine.restore(moved(taken, uid="sums"), savepoint=savepoint, allow_non_restored_state=True)
    assert not (root / "other").exists()


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_row_that_names_other_files_is_refused(
    taken: Site, savepoint: Path, tmp_path: Path, change: Change
) -> None:
    outside = tmp_path / "outside.parquet"
    outside.write_text("mine")
    crafted(savepoint, change)
    is_refused(
        taken,
        savepoint,
        tmp_path / "root",
        "savepoint 'safe' of job 'tiny' was not written",
        by=MissingFilesError,
    )
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    "path", ["../outside.parquet", "/etc/passwd", "operators/../../outside.parquet", "a//b"]
)
def test_a_manifest_that_lists_files_elsewhere_is_refused(taken: Site, savepoint: Path, path: str) -> None:
    text = json.loads((savepoint / MANIFEST).read_text())
    text["files"][0]["path"] = path
    text.pop("digest")
    from state_engine.core.checkpoints.savepoint_manifest import _digest

    (savepoint / MANIFEST).write_text(json.dumps({"digest": _digest(text), **text}))
    is_refused(
        taken, savepoint, savepoint.parent / "root", "is not a path inside a savepoint", by=ConfigurationError
    )


def test_no_links_are_followed(taken: Site, savepoint: Path, tmp_path: Path) -> None:
    file = next((savepoint / "operators").rglob("*.parquet"))
    outside = tmp_path / "outside.parquet"
    shutil.move(file, outside)
    file.symlink_to(outside)
    is_refused(taken, savepoint, tmp_path / "root", f"{file.name} is a link", by=MissingFilesError)
    file.unlink()
    shutil.move(outside, file)
    shutil.move(savepoint / "operators", tmp_path / "operators")
    (savepoint / "operators").symlink_to(tmp_path / "operators")
    is_refused(taken, savepoint, tmp_path / "root", "operators is a link", by=MissingFilesError)


def test_sinks_of_a_savepoint_are_not_reached(
    taken: Site, savepoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    with socket.socket() as attacker:
        attacker.bind(("127.0.0.1", 0))
        attacker.listen()
        attacker.setblocking(False)
        url = f"postgresql+psycopg://me@127.0.0.1:{attacker.getsockname()[1]}/db"
        target = json.dumps(SqlTarget(url, "t", password_env="MY_SECRET").to_json())

        def change(row: CheckpointRow) -> CheckpointRow:
            letter = replace(base_file(row), path="../../../outside.parquet")
            sink = StagedSink("out", SinkKind.SQL, target, "id", "[]", [base_file(row)])
            return replace(row, sinks=[sink], dead_letters=[letter])

        crafted(savepoint, change)
        engine = StateEngine(tmp_path / "root", taken.spark)
        engine.restore(moved(taken), savepoint=savepoint)
        (row,) = engine.checkpoints("other")
        assert (row.sinks, row.dead_letters) == ([], [])
        assert engine.run(moved(taken)).batches == []
        with pytest.raises(BlockingIOError):
            attacker.accept()


def test_only_the_savepoint_itself_is_deleted(taken: Site, tmp_path: Path, spark: SparkSession) -> None:
    engine = taken.engine()
    engine.savepoints("tiny").create("one", tmp_path / "one")
    engine.savepoints("tiny").create("two", tmp_path / "two")
    (tmp_path / "one" / "notes.txt").write_text("mine")
    engine.savepoints("tiny").delete("one")  # by name, file by file
    assert os.listdir(tmp_path / "one") == ["notes.txt"]

    shutil.rmtree(tmp_path / "two")
    shutil.copytree(taken.directory / "sp", tmp_path / "two")  # another one, at its place
    with pytest.raises(ConfigurationError, match=r"nothing was deleted: .*now it holds savepoint 'safe'"):
        engine.savepoints("tiny").delete("two")
    engine.savepoints("tiny").verify(tmp_path / "two")
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"nothing was deleted: .*holds no savepoint that can be"):
        engine.savepoints("tiny").delete("two")
    assert "two" in engine.savepoints("tiny").list()
    engine.savepoints("tiny").delete("two", keep_files=True)
    assert "two" not in engine.savepoints("tiny").list()
    assert (tmp_path / "two" / "notes.txt").read_text() == "mine"


def test_of_two_savepoints_made_into_one_directory_one_stands(
    taken: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.operations import savepoints

    place, write_text = tmp_path / "both", savepoints.write_text

    def late(kernel: DeltaKernel, uri: str, text: str) -> None:
        """The second one starts before the first one has its manifest."""
        monkeypatch.setattr(savepoints, "write_text", write_text)
        with monkeypatch.context() as patch:  # it looked before the first one wrote anything
            patch.setattr(savepoints, "is_empty", lambda _: True)
            taken.engine().savepoints("tiny").create("winner", place)
        write_text(kernel, uri, text)

    monkeypatch.setattr(savepoints, "write_text", late)
    with pytest.raises(ConfigurationError, match="was made by somebody else meanwhile"):
        taken.engine().savepoints("tiny").create("loser", place)
    assert set(taken.engine().savepoints("tiny").list()) == {"safe", "winner"}
    assert taken.engine().savepoints("tiny").verify(place).name == "winner"
    listed = {f.path for f in parse_manifest((place / MANIFEST).read_text(), where="").files}
    there = {str(f.relative_to(place)) for f in place.rglob("*") if f.is_file()}
    assert there == {*listed, MANIFEST}
    taken.engine().savepoints("tiny").delete("winner")
    assert not place.exists()
