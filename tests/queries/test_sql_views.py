"""SQL over the state of a job: views on demand, as of any checkpoint, with clear errors."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from state_engine import KeyedProcessFunction, RuntimeContext, StatefulJob, ValueStateDescriptor
from state_engine.cli.main import app
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.keys.key_groups import subtask_for_key_group
from state_engine.queries import state_reader
from state_engine.queries.spark_sql import quiet
from tests.microbatch.test_bad_input import raises
from tests.queries.test_open_state import BATCHES, opened
from tests.support.remembering import STATES, Memory, by_key, entries, model
from tests.support.tiny import ROWS, Site, Sum


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Memory:
    site = Memory(tmp_path_factory.mktemp("sql"), spark)
    for batch in BATCHES[:3]:
        site.run(batch)
    return site


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_states_are_views_with_their_columns(memory: Memory) -> None:
    def ask(text: str, **options: Any) -> list[tuple[Any, ...]]:
        return rows(memory.engine.sql("memory", text, **options))

    expected = model(BATCHES[:3])
    assert by_key(ask("SELECT k, key_value, value FROM last")) == expected["last"]
    assert by_key(ask("SELECT k, key_value, map_key, value FROM remembers__counts;")) == expected["counts"]
    assert ask("SELECT k, value.f0 FROM mean WHERE key_value = 1 ORDER BY k") == [("a", 3), ("c", 1)]
    assert ask("WITH x AS (SELECT value.* FROM ranked) SELECT count(*), max(f0) FROM x") == [(6, 9)]
    # as of an older checkpoint, and of a time
    assert by_key(ask("SELECT k, key_value, value FROM last", checkpoint_id=1)) == model(BATCHES[:1])["last"]
    second = memory.engine.checkpoints("memory")[1].created_at
    for as_of in (second, second.isoformat(), second + timedelta(microseconds=1)):
        assert ask("SELECT count(*) FROM total", as_of=as_of) == [(4,)]
    # expired and in the files
    assert ask("SELECT count(*) FROM last WHERE expires_at <= updated_at") == [(0,)]


def test_views_are_listed_with_the_columns_that_they_have(memory: Memory) -> None:
    views = {view.name: view for view in memory.engine.list_views("memory")}
    names = {*STATES, *(f"remembers__{s}" for s in STATES)}
    common = {
        "checkpoints", "sources", "sinks", "expectations", "gates", "states", "operator_state", "dead_letters",
        "key_groups",
    }  # fmt: skip
    assert set(views) == names | common
    assert views["counts"].columns[:4] == (
        ("k", "string"), ("key_value", "bigint"), ("map_key", "bigint"), ("value", "bigint")
    )  # fmt: skip
    for name in (*sorted(common), "all", "counts", "ranked", "_timers"):
        frame = memory.engine.sql("memory", f"SELECT * FROM {name}")
        plain = [(column, kind.replace("`", "").replace(" ", "")) for column, kind in views[name].columns]
        assert plain == [(c, k) for c, k in frame.dtypes], name


def test_only_what_a_query_names_is_made(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def tables() -> list[str]:
        return [row.tableName for row in memory.spark.sql("SHOW TABLES").collect()]

    checked, before = list[int](), tables()
    monkeypatch.setattr(state_reader, "check_files", lambda files: checked.append(len(files)))
    assert len(memory.engine.list_views("memory")) > 20
    memory.engine.sql("memory", "SELECT * FROM checkpoints")
    assert checked == []
    memory.engine.sql("memory", "SELECT * FROM last JOIN total USING (k)")
    assert len(checked) == 2
    assert tables() == before  # nothing is left in the user's session


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT * FROM nope", "there is no view nope; there are checkpoints, sources, .*remembers__last"),
        ("SELECT vlue FROM last", "`vlue` cannot be resolved. Did you mean .*`value`"),
        ("SELEC 1", "Syntax error at or near"),
        ("INSERT INTO last VALUES (1)", "only queries can be run"),
    ],
)
def test_errors_are_readable(
    memory: Memory, capfd: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    with pytest.raises(ConfigurationError, match=shown) as raised:
        memory.engine.sql("memory", text)
    message = str(raised.value)
    assert "\n" not in message
    assert "JVM" not in message
    assert "Project" not in message
    assert "org.apache" not in capfd.readouterr().err


REFLECT = "reflect('java.lang.System', 'getProperty', 'user.home')"
REACHING_OUT = {
    "reflect": f"SELECT {REFLECT}",
    "java_method": "SELECT java_method('java.lang.System', 'exit', 1) FROM total",
    "try_reflect": "SELECT try_reflect('java.lang.System', 'getProperty', 'user.home')",
    "qualified": "SELECT system.builtin.reflect('java.lang.System', 'getProperty', 'user.home')",
    "in WITH": f"WITH c AS (SELECT {REFLECT} AS x) SELECT * FROM c",
    "in a subquery": f"SELECT (SELECT max({REFLECT}) FROM total)",
    "in EXISTS": f"SELECT 1 FROM total WHERE EXISTS (SELECT {REFLECT} FROM last)",
    "in IN": f"SELECT 1 FROM total WHERE k IN (SELECT {REFLECT})",
    "in LATERAL": f"SELECT * FROM total, LATERAL (SELECT {REFLECT})",
    "in VALUES": f"SELECT * FROM VALUES ({REFLECT})",
    "in a lambda": f"SELECT transform(array(1), x -> {REFLECT})",
    "in a window": f"SELECT count(*) OVER (PARTITION BY {REFLECT}) FROM total",
    "in a filter": f"SELECT count(*) FILTER (WHERE {REFLECT} = 'a') FROM total",
    "in ORDER BY": f"SELECT 1 FROM total ORDER BY {REFLECT}",
    "in LATERAL VIEW": f"SELECT * FROM total LATERAL VIEW explode(array({REFLECT})) AS x",
    "in an argument": f"SELECT * FROM range(length({REFLECT}))",
    "in a pipe": f"FROM total |> SELECT {REFLECT}",
    "a name that is made": "SELECT IDENTIFIER('reflect')('java.lang.System', 'getProperty', 'user.home')",
    "a table that is made": "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "text": "SELECT * FROM text.`/etc/passwd`",
    "binaryFile": "TABLE binaryFile.`file:/etc/passwd`",
    "delta": "SELECT * FROM delta.`/tmp/x`",
    "in a WITH": "WITH c AS (SELECT * FROM csv.`/etc/passwd`) SELECT 1 FROM total, c",
    "changes of a table by its path": "SELECT * FROM table_changes_by_path('/tmp/x', 0)",
    "a program": "SELECT TRANSFORM (k) USING 'cat' FROM total",
    "a descriptor file": "SELECT from_protobuf(X'00', 'M', '/etc/passwd')",
    "no function": "SELECT mine(k) FROM total",
    "no table function": "SELECT * FROM read_files('/etc')",
}


def test_a_query_reaches_neither_java_nor_files_nor_programs(memory: Memory) -> None:
    for name, text in REACHING_OUT.items():
        with pytest.raises(ConfigurationError, match=r"the query (is not run|cannot be run)"):
            pytest.fail(f"{name}: {memory.engine.sql('memory', text).collect()}")
    home = memory.engine.sql("memory", f"SELECT {REFLECT}", unrestricted=True)
    assert rows(home) == [(str(Path.home()),)]
    lines = memory.engine.sql("memory", f"SELECT count(*) > 0 FROM text.`{__file__}`", unrestricted=True)
    assert rows(lines) == [(True,)]


def test_what_questions_need_is_there(memory: Memory) -> None:
    text = """
        WITH c AS (SELECT k, value, row_number() OVER (PARTITION BY k ORDER BY value) AS place FROM last)
        SELECT CAST(count(*) AS int) AS n, any_value(CASE WHEN c.k IS NULL THEN 0 ELSE 1 END),
               max(DATE '2026-01-01' + INTERVAL 1 DAY), collect_list(coalesce(place, 0)) IS NOT NULL
        FROM c JOIN range(1) JOIN total USING (k) LATERAL VIEW explode(array(1)) AS x
        WHERE c.k IN (SELECT k FROM total) AND c.k LIKE '%' AND place BETWEEN 1 AND 9 AND NOT c.k = ''
        HAVING n > 0 ORDER BY n
    """
    assert len(rows(memory.engine.sql("memory", text))) == 1


@pytest.mark.long
def test_pyspark_can_still_log_its_errors_afterwards() -> None:
    name = "SQLQueryContextLogger"
    known = logging.root.manager.loggerDict.pop(name, None)
    try:
        with quiet():
            pass
        assert isinstance(logging.getLogger(name), PySparkLogger)
    finally:
        if known is not None:
            logging.root.manager.loggerDict[name] = known


def test_checkpoints_sources_and_key_groups_are_views(memory: Memory) -> None:
    engine = memory.engine
    checkpoints = rows(
        engine.sql("memory", "SELECT id, parent, kind, rows_in, on_path, unix_millis(clock) FROM checkpoints")
    )
    assert checkpoints == [
        (1, None, "checkpoint", 4, True, 1000),
        (2, 1, "checkpoint", 2, True, 1040),
        (3, 2, "checkpoint", 3, True, 1080),
    ]
    earlier = engine.sql("memory", "SELECT id FROM checkpoints WHERE on_path ORDER BY id", checkpoint_id=2)
    assert rows(earlier) == [(1,), (2,)]
    assert rows(
        engine.sql("memory", "SELECT source, sum(rows), max(checkpoint_id) FROM sources GROUP BY ALL")
    ) == [("events", 9, 3)]

    groups = rows(engine.sql("memory", "SELECT key_group, subtask, entries, bytes, skew FROM key_groups"))
    assert sorted(g[0] for g in groups) == list(range(8))
    assert all(g[1] == subtask_for_key_group(8, 2, g[0]) for g in groups)
    assert sum(g[2] for g in groups) == sum(opened(memory, state).num_rows for state in STATES)
    mean = sum(g[2] for g in groups) / 8
    assert all(g[4] == pytest.approx(g[2] / mean) for g in groups)
    files = (memory.root / "memory/operators/remembers/changelog").rglob("part-*.parquet")
    assert abs(sum(g[3] for g in groups) - sum(f.stat().st_size for f in files)) <= 8


class Two(KeyedProcessFunction):
    """A state of the same name in two operators, called as a view is."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sinks = runtime_context.get_state(ValueStateDescriptor("sinks", int))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.sinks.update(value.v)
        self.total.update((self.total.value() or 0) + value.v)
        return [(value.k, value.v)]


@pytest.mark.long
def test_names_that_are_not_unique_are_kept_apart_by_their_operator(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    job = StatefulJob("tiny")
    from state_engine import FileSource

    first = job.source("events", FileSource(str(site.feed))).key_by("k")
    again = first.process(Two(), uid="one", output_type="k string, v bigint").key_by("k")
    again.process(Two(), uid="two", output_type="k string, v bigint")
    engine = site.engine()
    engine.run(job)
    names = {view.name for view in engine.list_views(job)}
    assert {"one__total", "two__total", "one__sinks", "sinks"} <= names
    assert "total" not in names
    assert by_key(rows(engine.sql(job, "SELECT k, value FROM two__total"))) == {
        ("a",): 4,
        ("b",): 2,
        ("c",): 4,
    }
    assert engine.sql(job, "SELECT * FROM sinks").columns[0] == "checkpoint_id"  # the common view wins


@pytest.mark.long
def test_dead_letters_and_sinks_are_views(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    site.engine().run(site.job(Sum(raises), on_error="dead_letter", batch_rows=2))
    engine = site.engine()
    letters = rows(engine.sql("tiny", "SELECT checkpoint_id, operator, key FROM dead_letters"))
    assert len(letters) == len(site.dead_letters()) > 0
    assert {letter[1] for letter in letters} == {"sums"}
    refused = rows(engine.sql("tiny", "SELECT id FROM checkpoints WHERE rows_refused > 0"))
    assert {letter[0] for letter in letters} == {i for (i,) in refused}
    staged = rows(
        engine.sql("tiny", "SELECT sum(rows_staged), sum(rows_withdrawn) FROM sinks WHERE sink = 'out'")
    )
    assert staged == [(len(site.outputs()), 0)]
    engine.restore("tiny", checkpoint_id=1)
    withdrawn = rows(engine.sql("tiny", "SELECT sum(rows_withdrawn) FROM sinks WHERE sink = 'out'"))
    assert withdrawn == [(staged[0][0] - len(site.outputs()),)]
    assert rows(engine.sql("tiny", "SELECT id FROM checkpoints WHERE NOT on_path")) == [(2,)]


# -- history -----------------------------------------------------------------------------------------------------------

REMEMBERED = ("last", "all", "counts", "total")


def assert_history(
    memory: Memory,
    recorded: dict[int, dict[str, list[Any]]],
    read: Callable[..., list[Any]],
    ids: list[int],
    states: Sequence[str] = REMEMBERED,
) -> None:
    """Every checkpoint reads as when it was new, by id and, where it is on the path, by time."""
    checkpoints = {row.checkpoint_id: row for row in memory.engine.checkpoints("memory")}
    on_path = {r[0] for r in rows(memory.engine.sql("memory", "SELECT id FROM checkpoints WHERE on_path"))}
    for checkpoint_id in ids:
        for state in states:
            then = recorded[checkpoint_id][state]
            assert read(state, checkpoint_id=checkpoint_id) == then, (checkpoint_id, state)
            if checkpoint_id in on_path:
                at = checkpoints[checkpoint_id].created_at
                as_of = at if checkpoint_id % 2 else at.isoformat()
                assert read(state, as_of=as_of) == then, (checkpoint_id, state)


@pytest.mark.long
def test_history_stays_what_it_was(tmp_path: Path, spark: SparkSession) -> None:
    """After compaction, restore and further batches; the model confirms the first reads."""
    memory, recorded = Memory(tmp_path, spark), dict[int, dict[str, list[Any]]]()

    def without_spark(state: str, **options: Any) -> list[Any]:
        return entries(opened(memory, state, **options))

    for number, batch in enumerate(BATCHES, 1):
        assert memory.run(batch) == number
        recorded[number] = {state: memory.seen(state) for state in REMEMBERED}
        for state, folded in model(BATCHES[:number]).items():
            assert by_key(recorded[number][state]) == folded, (number, state)
    assert_history(memory, recorded, without_spark, [1, 2, 3, 4, 5, 6])
    assert_history(memory, recorded, memory.seen, [1, 3, 6], ("all", "counts"))

    engine = memory.engine
    compacted = engine.compact("memory").committed_id
    assert compacted == 7
    recorded[7] = recorded[6]
    assert_history(memory, recorded, without_spark, [1, 2, 3, 4, 5, 6, 7])
    assert_history(memory, recorded, memory.seen, [2, 7], ("all", "counts"))

    restored = engine.restore("memory", checkpoint_id=4).committed_id
    assert restored == 8
    recorded[8] = recorded[4]
    assert_history(memory, recorded, without_spark, list(range(1, 9)))
    assert_history(memory, recorded, memory.seen, [4, 5, 8], ("all", "counts"))
    # a time whose checkpoint was left is read on the path of the head
    left = next(row for row in engine.checkpoints("memory") if row.checkpoint_id == 5)
    assert memory.seen("total", as_of=left.created_at) == recorded[4]["total"]

    memory.run([("e", 1, 2)])
    engine.compact("memory")
    recorded[9] = {state: without_spark(state) for state in REMEMBERED}
    assert_history(memory, recorded, without_spark, list(range(1, 10)))

    engine.expire_checkpoints("memory", RetentionPolicy(keep_last=1))
    for file in (memory.root / "memory/operators/remembers/changelog").rglob("part-*.parquet"):
        file.unlink()
    for read in (memory.seen, without_spark):
        with pytest.raises(MissingFilesError, match="checkpoint 1 has expired"):
            read("last", checkpoint_id=1)


# -- from a shell ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_prints_tables_csv_and_json(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATELAKE__ROOT", str(memory.root))

    def printed(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["sql", "memory", *arguments])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else str(done.exception)

    listed = printed("--views")
    assert "remembers__counts" in listed
    assert "map_key bigint" in listed
    query = "SELECT k, key_value, value, updated_at FROM last ORDER BY k"
    assert "1970-01-01T00:00:01.040000Z" in printed(query)
    parsed = list(csv.DictReader(io.StringIO(printed(query, "--format", "csv"))))
    assert [(r["k"], r["value"]) for r in parsed] == [("a", "2"), ("b", "3"), ("c", "9"), ("d", "4")]
    lines = printed("SELECT value FROM all ORDER BY k", "--format", "json", "--checkpoint", "1").splitlines()
    assert [json.loads(line) for line in lines] == [{"value": [5, 7]}, {"value": [3]}, {"value": [3]}]
    lines = printed("SELECT value FROM tags WHERE k = 'c'", "--format", "json").splitlines()
    assert json.loads(lines[0]) == {"value": [{"t1": 9}]}
    assert len(printed(query, "--format", "csv", "--limit", "2").splitlines()) == 3
    assert "had no checkpoint at" in printed(query, "--as-of", "2001-01-01", code=1)
    assert "there is no view nope" in printed("SELECT * FROM nope", code=1)
    assert "DIVIDE_BY_ZERO" in printed("SELECT 1 / (value - value) FROM last", code=1)
    assert "give a query or --views" in printed(code=1)
