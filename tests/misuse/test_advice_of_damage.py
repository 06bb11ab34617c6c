"""The advice of errors that damage causes, followed: a file is removed, cut or altered, and then the call works.

Each entry of ``ADVICE`` damages a whole place, makes a call that is refused, names the words of the message that say
what to do, does that, and makes the call again, or what takes its place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import DeltaSink, DeltaSource, StateEngine, StatefulJob
from state_engine.cli.main import app
from state_engine.core.errors import StatelakeError
from state_engine.errors import SinkError, SourceError
from state_engine.testing import subtasks_in_process
from tests.misuse.damaged_place import DamagedPlace

pytestmark = pytest.mark.spark


class Advice(NamedTuple):
    """Damage, a call that it refuses, what the message says to do, and that, followed by a call that works."""

    damage: Callable[[DamagedPlace], object]
    call: Callable[[DamagedPlace], object]
    message: str
    followed: Callable[[DamagedPlace], object]


def run(p: DamagedPlace) -> Any:
    with p.engine() as engine:
        return engine.run(p.job())


def replay(p: DamagedPlace, **options: Any) -> Any:
    with p.engine() as engine:
        return engine.replay(p.job(), branch=f"again_{len(options)}", **options)


def restore(p: DamagedPlace, **options: Any) -> Any:
    with p.engine() as engine:
        return engine.restore(p.job(), **options)


def verify(p: DamagedPlace) -> Any:
    with p.engine() as engine:
        return engine.savepoints(p.job()).verify("kept")


def letters(p: DamagedPlace) -> Any:
    with p.engine() as engine:
        return engine.list_dead_letters(p.job())


def repaired(p: DamagedPlace) -> Any:
    done = CliRunner().invoke(app, ["doctor", "--repair"], env={"STATELAKE__ROOT": str(p.at / "root")})
    assert done.exit_code == 0, done.output


def back(p: DamagedPlace, pattern: str) -> Any:
    """Put files back from the backup."""
    for path in sorted(p.whole.glob(pattern)):
        target = p.at / path.relative_to(p.whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def cut(*paths: Path) -> Any:
    for path in paths:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def gone(*paths: Path) -> Any:
    assert paths
    for path in paths:
        path.unlink()


def newest(p: DamagedPlace) -> Path:
    return p.all("root/sums/checkpoints/checkpoint-*.parquet")[-1]


def into_another_root(p: DamagedPlace) -> Any:
    with StateEngine(p.at / "other", p.spark) as engine:
        engine.restore(
            p.job(files="files_2", rows="rows_2", base="base_2", shown="shown_2"), savepoint=p.at / "kept"
        )


def ignoring(p: DamagedPlace) -> Any:
    with p.engine() as engine:
        engine.run(p.job(on_change="ignore"))


def copied(p: DamagedPlace, sink: str) -> Any:
    """The same job in another root, with this sink only."""
    with StateEngine(p.at / "other", p.spark) as engine:
        names = {name: f"{name}_2" for name in ("files", "rows", "base", "shown")}
        engine.run(p.job(**names | ({sink: sink} if sink else {})))


def marker(p: DamagedPlace) -> Path:
    return p.at / "root" / "_statelake.json"


def altered(path: Path) -> Any:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"root_id": "0" * 32}))


LOG = "root/sums/{}/_delta_log/*.json"
ADVICE: dict[str, Advice] = {
    # -- the root
    "a marker that is cut": Advice(
        lambda p: cut(marker(p)), run, "_statelake.json is damaged .*statelake doctor --repair",
        lambda p: (repaired(p), run(p)),
    ),
    "a marker of somebody else": Advice(
        lambda p: marker(p).write_text('{"name": "mine"}'), run,
        "was not written by this engine: statelake doctor --repair", lambda p: (repaired(p), run(p)),
    ),
    "a marker with another id": Advice(
        lambda p: altered(marker(p)), run, "was altered: .*statelake doctor --repair",
        lambda p: (repaired(p), run(p)),
    ),
    "a marker that is gone": Advice(
        lambda p: gone(marker(p)), run, "marker _statelake.json is gone.*Put the marker back from a backup",
        lambda p: (back(p, "root/_statelake.json"), run(p)),
    ),
    "an old row of checkpoints that is gone": Advice(
        lambda p: gone(p.all("root/sums/checkpoints/checkpoint-*.parquet")[0]), run,
        "rows of checkpoints: .* is gone: .*put the file back from a backup of the root, or restore a savepoint into",
        lambda p: (into_another_root(p), back(p, "root/sums/checkpoints/checkpoint-*.parquet"), run(p)),
    ),
    "the newest row, which nothing shows": Advice(
        lambda p: gone(newest(p)), run, "is gone: .*doctor --repair` leaves the newest one out",
        lambda p: (repaired(p), run(p)),
    ),
    "a log of checkpoints that is cut": Advice(
        lambda p: cut(p.all(LOG.format("checkpoints"))[0]), run, "_delta_log.*put .* back from a backup",
        lambda p: (back(p, LOG.format("checkpoints")), run(p)),
    ),
    # -- state
    "changes of state that are gone": Advice(
        lambda p: gone(*p.all("root/sums/operators/sums/changelog/*/*.parquet")), run,
        "is listed by a checkpoint and does not exist: .*Restore an older checkpoint, or a savepoint into another root",
        into_another_root,
    ),
    "the newest changes of state that are gone": Advice(
        lambda p: gone(p.all("root/sums/operators/sums/changelog/*/*.parquet")[-1]), run,
        "Restore an older checkpoint, or a savepoint into another root",
        lambda p: (restore(p, checkpoint_id=1), run(p)),
    ),
    "operator state that is cut": Advice(
        lambda p: cut(*p.all("root/sums/operator_state/*/*.sums.parquet")), run,
        "is damaged: .*Put the file back from a backup, or restore .*or a savepoint into another root",
        lambda p: (into_another_root(p), back(p, "root/sums/operator_state/*/*.parquet"), run(p)),
    ),
    "positions that are gone": Advice(
        lambda p: gone(*p.all("root/sums/operator_state/*/part-*-0.parquet")), run,
        "source positions of a micro-batch, is gone",
        lambda p: (back(p, "root/sums/operator_state/*/*.parquet"), run(p)),
    ),
    "dead letters that are gone": Advice(
        lambda p: gone(*p.all("root/sums/dead_letters/*/*.parquet")), letters,
        "dead letters: .* is gone: .*Put the file back from a backup",
        lambda p: (back(p, "root/sums/dead_letters/*/*.parquet"), letters(p)),
    ),
    # -- input
    "no directory of input": Advice(
        lambda p: shutil.rmtree(p.at / "in"), run, "does not exist: check the path, or make the directory first",
        lambda p: (p.arrive(3, 3), run(p)),
    ),
    "input that is gone before a replay": Advice(
        lambda p: gone(p.at / "in" / "0.json"), replay, "put the old file back, or replay from a checkpoint after it",
        lambda p: (replay(p, from_checkpoint=1), back(p, "in/0.json"), replay(p, from_checkpoint=0, to_checkpoint=1)),
    ),
    "input that changed": Advice(
        lambda p: cut(p.at / "in" / "1.json"), run, "Put the old file back .*or set on_change='ignore'", ignoring,
    ),
    # -- savepoints
    "a file of a savepoint that is gone": Advice(
        lambda p: gone(*p.all("kept/operators/*/*/*/*.parquet")), verify,
        "savepoint 'kept' .*is missing. Copy it again, or take another savepoint",
        lambda p: (back(p, "kept/operators/*/*/*/*.parquet"), verify(p)),
    ),
    "a manifest that is cut": Advice(
        lambda p: cut(p.at / "kept" / "savepoint.json"), verify, "Copy the savepoint again, or take another one",
        lambda p: (back(p, "kept/savepoint.json"), verify(p)),
    ),
    # -- sinks
    "a directory that lost its name": Advice(
        lambda p: gone(p.at / "files" / "_statelake_sink.json"), run,
        "was deleted or re-created.*Put the old directory back",
        lambda p: (back(p, "files/_statelake_sink.json"), run(p)),
    ),
    "a directory whose name is cut": Advice(
        lambda p: cut(p.at / "files" / "_statelake_sink.json"), run, "if it stays so, put the file back from a backup",
        lambda p: (back(p, "files/_statelake_sink.json"), run(p)),
    ),
    "a directory of another root": Advice(
        lambda p: None, lambda p: copied(p, "files"), "is the sink of .*give each its own directory",
        lambda p: copied(p, ""),
    ),
    "a table of another root": Advice(
        lambda p: None, lambda p: copied(p, "rows"), "by the same job of another root.*Give each root its own table",
        lambda p: copied(p, ""),
    ),
    "a log of a table that is gone": Advice(
        lambda p: gone(p.all("rows/_delta_log/*.json")[0]), run, "put it back from a backup",
        lambda p: (back(p, "rows/_delta_log/*.json"), run(p)),
    ),
    "a database that is gone": Advice(
        lambda p: gone(p.at / "rows.db"), run, "is gone, or was recreated.*Put the old one back",
        lambda p: (back(p, "rows.db"), run(p)),
    ),
    "a database that is cut": Advice(
        lambda p: cut(p.at / "rows.db"), run, "cannot be used: .*Repair that and run again; nothing is lost",
        lambda p: (back(p, "rows.db"), run(p)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[DamagedPlace]:
    with subtasks_in_process(spark):
        yield DamagedPlace(tmp_path_factory.mktemp("damage"), spark)


@pytest.mark.parametrize("what", ADVICE)
def test_the_advice_of_an_error_about_damage_helps(place: DamagedPlace, what: str) -> None:
    advice = ADVICE[what]
    place.put_back()
    advice.damage(place)
    with pytest.raises(StatelakeError, match=f"(?s){advice.message}"):
        advice.call(place)
    advice.followed(place)


# -- columns of Delta tables that change under a job ------------------------------------------------------------------

READERS = "'delta.minReaderVersion'='2', 'delta.minWriterVersion'='5'"
BY_NAME = f"TBLPROPERTIES ('delta.columnMapping.mode'='name', {READERS})"


class Table:
    """A Delta table of two columns and a row, and a job that reads it."""

    def __init__(self, directory: Path, spark: SparkSession, properties: str = "") -> None:
        self.spark, self.out = spark, str(directory / "out")
        self.path = str(directory / "table")
        self.sql(
            "CREATE TABLE {} (k string, v bigint) USING delta " + properties, "INSERT INTO {} VALUES ('a', 1)"
        )
        self.engine = StateEngine(directory / "root", spark)

    def sql(self, *texts: str) -> None:
        for text in texts:
            self.spark.sql(text.format(f"delta.`{self.path}`"))

    def copied(self, *columns: str) -> StatefulJob:
        job = StatefulJob("copy")
        rows = job.source("rows", DeltaSource(self.path))
        rows = rows.transform(lambda frame: frame.select(*columns)) if columns else rows
        rows.sink("out", DeltaSink(self.out))
        return job

    def counted(self, column: str, **options: Any) -> StatefulJob:
        job = StatefulJob("count")
        rows = job.source("rows", DeltaSource(self.path, **options))
        sums = rows.key_by("k").map_with_state(
            lambda row, before: ((row.k, (before or 0) + row[column]), (before or 0) + row[column]),
            int,
            "k string, total bigint",
        )
        sums.uid("sums").sink("out", DeltaSink(self.out))
        return job


def test_what_is_said_of_a_renamed_column_helps(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(tmp_path, spark, BY_NAME)
    table.engine.run(table.counted("v"))
    table.sql("ALTER TABLE {} RENAME COLUMN v TO w", "INSERT INTO {} VALUES ('b', 2)")
    with pytest.raises(
        SourceError, match=r"Change the code to the columns of today first\. Ways out: on_change='restart'"
    ) as refused:
        table.engine.run(table.counted("v"))
    assert "skip" not in str(refused.value), "which passes over commits that take rows away"
    assert table.engine.run(table.counted("w", on_change="restart")).rows_in == 2


def test_what_is_said_of_a_further_column_before_a_sink_helps(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(tmp_path, spark)
    table.engine.run(table.copied())
    table.sql("ALTER TABLE {} ADD COLUMN w string", "INSERT INTO {} VALUES ('b', 2, 'x')")
    with pytest.raises(
        SinkError, match=r"transform\(lambda rows: rows\.select\('k', 'v'\)\); or add columns to the table"
    ):
        table.engine.run(table.copied())
    assert table.engine.run(table.copied("k", "v")).rows_in == 1
    spark.sql(f"ALTER TABLE delta.`{table.out}` ADD COLUMN w string")
    table.sql("INSERT INTO {} VALUES ('c', 3, 'y')")
    table.engine.run(table.copied())
    rows = spark.read.format("delta").load(table.out).collect()
    assert sorted(tuple(row) for row in rows) == [("a", 1, None), ("b", 2, None), ("c", 3, "y")]
