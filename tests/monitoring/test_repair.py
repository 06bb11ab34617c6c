"""``statelake doctor --repair``: the id of a root is read from the tables of its jobs; nothing is published twice."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import DataStream, DeltaSink, FileSink, FileSource, SqlSink, StatefulJob
from state_engine.cli.main import app
from state_engine.cli.status import notes
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION
from state_engine.core.errors import RootError
from state_engine.monitoring import repairs
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from state_engine.operations.root_repair import Damage, check_transactions
from state_engine.storage.root import MARKER, open_root, read_marker, write_marker
from state_engine.storage.stores.files import normal_uri
from tests.support.directories import contents
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

ID, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"


def committed(
    root: Path, job: str, *ids: str, number: int = FORMAT_VERSION, properties: dict[str, str] | None = None
) -> None:
    """The log of a table of checkpoints, with one row under each root id, in order."""
    log = root / job / "checkpoints" / "_delta_log"
    log.mkdir(parents=True)
    said = {"statelake.job": job, "statelake.format": str(number)} | (properties or {})
    entries: list[dict[str, Any]] = [{"metaData": {"id": "t", "configuration": said}}]
    entries += [{"txn": {"appId": f"{root_id}/{job}", "version": i}} for i, root_id in enumerate(ids, 1)]
    for version, entry in enumerate(entries):
        (log / f"{version:020d}.json").write_text(json.dumps(entry))


def doctor(root: Path, *options: str) -> tuple[int, str]:
    """Exit code and text of ``statelake doctor`` on a root."""
    done = CliRunner().invoke(app, ["doctor", *options], env={"STATELAKE__ROOT": str(root)})
    return done.exit_code, " ".join(f"{done.output} {done.exception or ''}".split())


def test_a_lost_marker_is_written_anew_after_it_was_shown(tmp_path: Path) -> None:
    committed(tmp_path, "flights", ID, ID)
    committed(tmp_path, "totals", ID)
    committed(tmp_path, "never_committed")
    uri, before = normal_uri(tmp_path), contents(tmp_path)
    with pytest.raises(RootError, match="statelake doctor --repair"):
        open_root(uri, create=True)

    code, text = doctor(tmp_path, "--repair", "--dry-run")
    assert (code, contents(tmp_path)) == (1, before)
    assert f"would do: write a new marker, with the id {ID} and format {FORMAT_VERSION}" in text
    assert f"flights under {ID}, totals under {ID}" in text

    code, text = doctor(tmp_path, "--repair")
    assert code == 0
    assert f"done: {uri}/{MARKER} says {ID}" in text
    assert open_root(uri, create=False) == ID

    after = contents(tmp_path)
    assert doctor(tmp_path, "--repair") == (0, f"{uri}: nothing is damaged")
    assert contents(tmp_path) == after


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"root_id": "x", "form', "\0\0\0\0"])
def test_a_damaged_marker_is_kept_beside_the_new_one(tmp_path: Path, text: str) -> None:
    committed(tmp_path, "flights", ID)
    (tmp_path / MARKER).write_text(text)
    assert doctor(tmp_path, "--repair")[0] == 0
    assert open_root(normal_uri(tmp_path), create=False) == ID
    [aside] = tmp_path.glob(f"{MARKER}.*")
    assert aside.read_text() == text


def test_an_altered_id_is_noticed_by_the_tables_whatever_its_digest_says(tmp_path: Path) -> None:
    committed(tmp_path, "flights", ID, properties={"statelake.root": ID})
    uri = normal_uri(tmp_path)
    write_marker(uri, {"root_id": OTHER, "format": str(FORMAT_VERSION)})
    with pytest.raises(RootError, match=f"is of the root {ID}, and the root's marker says {OTHER}"):
        read_history(uri, "flights")
    assert doctor(tmp_path, "--repair")[0] == 0
    marker = read_marker(uri)
    assert marker is not None
    assert marker["root_id"] == ID


def test_a_root_of_an_older_format_keeps_it_and_is_not_upgraded_under_another_id(tmp_path: Path) -> None:
    committed(tmp_path, "flights", ID, number=6)
    uri = normal_uri(tmp_path)
    flipped = ID[:-1] + "e"
    (tmp_path / MARKER).write_text(json.dumps({"root_id": flipped, "format": "6"}))
    with pytest.raises(RootError, match=f"under the root id {ID}, and the marker .* says {flipped}"):
        check_transactions(uri, "flights", flipped)
    code, text = doctor(tmp_path, "--repair")
    assert code == 0
    assert "upgrade the root next: statelake upgrade" in text
    with pytest.raises(RootError, match="format 6 of an older Statelake"):
        open_root(uri, create=False)
    check_transactions(uri, "flights", ID)


def test_a_root_in_which_nothing_was_committed_gets_a_new_id(tmp_path: Path) -> None:
    committed(tmp_path, "flights")
    assert doctor(tmp_path, "--repair")[0] == 0
    root_id = open_root(normal_uri(tmp_path), create=False)
    assert root_id is not None
    committed(tmp_path, "named_by_its_table", properties={"statelake.root": ID})
    (tmp_path / MARKER).unlink()
    assert doctor(tmp_path, "--repair")[0] == 0
    assert open_root(normal_uri(tmp_path), create=False) == ID


def test_jobs_that_disagree_are_left_to_a_person(tmp_path: Path) -> None:
    committed(tmp_path, "flights", ID)
    committed(tmp_path, "totals", OTHER)
    before = contents(tmp_path)
    code, text = doctor(tmp_path, "--repair")
    assert (code, contents(tmp_path)) == (1, before)
    assert "to do: nothing can be repaired by itself" in text


def test_of_two_ids_of_one_job_the_newer_is_in_force(tmp_path: Path) -> None:
    """The newest rows, and the last publications of sinks, are of the second id."""
    committed(tmp_path, "flights", OTHER, OTHER, ID)
    assert doctor(tmp_path, "--repair")[0] == 0
    assert open_root(normal_uri(tmp_path), create=False) == ID


def test_an_unreadable_table_is_no_evidence(tmp_path: Path) -> None:
    committed(tmp_path, "cut", ID, ID)  # an entry before the newest: that one alone may be cut by a power cut
    (tmp_path / "cut" / "checkpoints" / "_delta_log" / f"{1:020d}.json").write_text('{"txn": {"app')
    code, text = doctor(tmp_path, "--repair")
    assert code == 1
    assert "cannot be read" in text
    committed(tmp_path, "whole", ID)
    code, text = doctor(tmp_path, "--repair")
    assert code == 1
    assert "Checkpoints of cut" in text
    assert (read_marker(normal_uri(tmp_path)) or {})["root_id"] == ID


def test_nothing_is_damaged_in_what_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for place in (tmp_path, tmp_path / "none"):
        assert doctor(place, "--repair")[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes"]


def test_finders_look_in_order_each_after_the_repairs_before_it() -> None:
    broken, steps = {"first", "second"}, list[str]()

    def finder(name: str, *, by_hand: bool = False) -> repairs.Finder:
        def find(_: str) -> list[Damage]:
            steps.append(f"look {name}")
            return [Damage(name, "broken", "mend it", None if by_hand else mend)] if name in broken else []

        def mend() -> str:
            broken.discard(name)
            return "mended"

        return find

    finders = finder("first"), finder("second", by_hand=True), finder("third")
    assert [d.name for d in repairs.damages("file:///r", finders)] == ["first"]
    steps.clear()
    left = repairs.repair("file:///r", on_done=steps.append, finders=finders)
    assert steps == ["look first", "mended", "look second"]
    assert [d.name for d in left] == ["second"]


@pytest.mark.spark
def test_a_root_without_its_id_publishes_nothing_again(tmp_path: Path, spark: SparkSession) -> None:
    """Each kind of sink records its publications by the root's id."""
    site, database = Site(tmp_path, spark).put(ROWS), tmp_path / "sink.db"

    def job() -> StatefulJob:
        tiny = StatefulJob("tiny", parallelism=2, max_parallelism=8)
        events = tiny.source("events", FileSource(str(site.feed)))
        out = events.key_by("k").process(Sum(), uid="sums", output_type=OUTPUT)
        out.sink("out", DeltaSink(str(site.sink)))
        out.sink("files", FileSink(str(tmp_path / "files")))
        out.sink("rows", SqlSink(f"sqlite:///{database}", "rows"))
        return tiny

    def shown() -> list[int]:
        with sqlite3.connect(database) as connection:
            [[in_database]] = connection.execute("select count(*) from rows")
        return [len(site.outputs()), len(list((tmp_path / "files").rglob("part-*.parquet"))), in_database]

    site.engine().run(job())
    root, before = tmp_path / "root", shown()
    assert before == [4, before[1], 4]
    marker = (root / MARKER).read_text()
    root_id = json.loads(marker)["root_id"]
    flipped = format(int(root_id[0], 16) ^ 1, "x") + root_id[1:]
    for damage in ("", marker.replace(root_id, flipped), json.dumps({"root_id": flipped, "format": "6"})):
        (root / MARKER).unlink()
        if damage:
            (root / MARKER).write_text(damage)
        with pytest.raises(RootError, match="statelake doctor --repair"):
            site.engine().run(job())
        assert shown() == before
        assert doctor(root, "--repair")[0] == 0
        assert site.engine().run(job()).batches == []
        assert shown() == before
    write_marker(normal_uri(root), {"root_id": flipped, "format": str(FORMAT_VERSION)})
    for use in (lambda: site.engine().run(job()), lambda: site.engine().checkpoints("tiny")):
        with pytest.raises(RootError, match="is of the root"):
            use()
    assert shown() == before


@pytest.mark.spark
def test_a_lost_row_that_a_sink_shows_is_put_back_and_another_is_left_out(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The command starts a session, and looks into a table that Spark writes."""
    site, parts = Site(tmp_path, spark).put({"k": ["a"], "v": [1]}), tmp_path / "parts"
    spark.sql(f"CREATE TABLE delta.`{parts}` ({OUTPUT}, _write_id string) USING delta PARTITIONED BY (k)")

    def job() -> StatefulJob:
        tiny = site.job()
        DataStream(tiny, tiny.sinks["out"].parent).sink("parts", DeltaSink(str(parts), lineage=True))
        return tiny

    def shown() -> list[Any]:
        rows = DeltaTable(str(parts)).to_pyarrow_table(columns=["k", "v", "total"]).to_pylist()
        return [site.outputs(), sorted(tuple(row.values()) for row in rows)]

    def newest() -> Path:
        return max((tmp_path / "root" / "tiny" / "checkpoints").glob("checkpoint-*.parquet"))

    site.engine().run(job())
    first = shown()
    site.put({"k": ["a", "b"], "v": [2, 5]}, "1").engine().run(job())
    both = shown()
    with site.engine() as engine:
        engine.restore("tiny", checkpoint_id=1)
    backup = newest().read_bytes()
    os.truncate(newest(), 0)

    code, text = doctor(tmp_path / "root", "--repair", "--dry-run")
    assert (code, shown()) == (1, first)
    assert "would do: leave out checkpoint 3" in text
    code, text = doctor(tmp_path / "root", "--repair")
    assert (code, shown()) == (1, first)
    assert "show checkpoint 3" in text
    newest().write_bytes(backup)
    site.engine().run(job())
    assert shown() == both

    with site.engine() as engine:
        engine.compact("tiny")
    os.truncate(newest(), 0)
    code, text = doctor(tmp_path / "root", "--repair")
    assert code == 0, text
    assert "checkpoint 5 is left out" in text
    assert site.engine().run(job()).batches == []
    assert shown() == both
    with site.engine() as engine:
        assert [row.checkpoint_id for row in engine.checkpoints("tiny")] == [1, 2, 3, 4, 6]


def status(site: Site) -> JobStatus:
    history = read_history(str(site.directory / "root"), "tiny")
    return status_of_history(
        "tiny", history, job=None, now_ms=time.time_ns() // 1_000_000, stuck_after=timedelta(days=1)
    )


def test_files_that_are_gone_or_cut_are_named_with_the_way_back(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    with site.engine() as engine:
        for number in range(3):
            engine.run(site.put(ROWS, str(number)).job())
        changelog = [row.operators[0].changelog for row in engine.checkpoints("tiny")]
    assert (status(site).state, status(site).restorable_id, notes(status(site))) == ("ok", 3, [])

    table = tmp_path / "root" / "tiny" / "operators" / "sums" / "changelog"
    newest = table / changelog[2][0].path
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    cut = status(site)
    assert (cut.state, cut.exit_code, cut.restorable_id) == ("damaged", 1, 2)
    assert [name.endswith(changelog[2][0].path) for name in cut.missing_files] == [True]
    assert any("statelake restore tiny 2" in text for text in notes(cut))

    newest.write_bytes(whole)
    (table / changelog[0][0].path).unlink()
    gone = status(site)
    assert (gone.state, gone.restorable_id) == ("damaged", None)
    assert any("restore a savepoint" in text for text in notes(gone))
