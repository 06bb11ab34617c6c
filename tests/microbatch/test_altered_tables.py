"""What tables of a job hold as JSON or as bytes is judged, whoever wrote it: a savepoint brings such tables along."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine import (
    DeltaSource,
    FileSource,
    Instant,
    KafkaSource,
    KeyedProcessFunction,
    ListCheckpointed,
    SourceFunction,
    StatefulJob,
    TimePartitions,
    Types,
)
from state_engine.cli.options import key_of
from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import DamagedFileError, StatelakeError, UserFunctionError, ValueTypeError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.json_values import from_json, to_json
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type
from state_engine.microbatch.dead_letters import _letter, next_slice
from state_engine.queries.stored_entries import key_table
from state_engine.sources.collection import CollectionSource
from state_engine.sources.function import FunctionSource
from state_engine.sources.output_type import OutputType
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA
from state_engine.storage.stores.files import join, write_parquet
from state_engine.testing import CollectSink, run_in_memory
from tests.core.checkpoints.rows import checkpoint
from tests.support.altered_json import altered, as_text

KINDS: dict[str, tuple[Any, Any]] = {
    "number": (int, 3),
    "double": (float, float("nan")),
    "text": (str, "x"),
    "bytes": (bytes, b"x"),
    "boolean": (bool, True),
    "date": (date, date(2026, 3, 1)),
    "timestamp": (datetime, datetime(2026, 3, 1, tzinfo=UTC)),
    "decimal": ("decimal(10,2)", Decimal("1.50")),
    "list": (list[int], [1, 2]),
    "map": (dict[str, int], {"a": 1}),
    "record": ("struct<day: date, n: array<bigint>>", (date(2026, 3, 1), [1])),
}


@pytest.mark.parametrize("kind", [*KINDS, "plain"])
@given(st.data())
def test_an_element_of_operator_state_is_of_its_type_or_refused(kind: str, data: st.DataObject) -> None:
    declared, value = KINDS.get(kind, (None, None))
    made = PlainType() if kind == "plain" else to_type(declared, parameter="p")
    values = [{"a": [1, (b"x", 2.5, date(2026, 3, 1))]}] if kind == "plain" else [value]
    (text,) = to_json(made, [made.normalise(one) for one in values])
    assert to_json(made, from_json(made, [text])) == (text,)
    other = as_text(data.draw(altered([json.loads(text)])))[1:-1]
    try:
        read = from_json(made, [other])
    except ValueTypeError:
        return
    assert len(to_json(made, read)) == 1


class Counts(SourceFunction, ListCheckpointed):
    """Gives a number, and keeps the next one."""

    at = 0

    def run(self, ctx: Any) -> None:
        ctx.collect(self.at)
        self.at += 1

    def cancel(self) -> None: ...

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.at]

    def restore_state(self, state: list[int]) -> None:
        (self.at,) = state


FILES = FileSource("file:///nowhere", schema="day timestamp", format="json")
AT = {"size": 9, "mtime_ms": 1, "start": 0, "end": None, "digest": "ab"}
LONG = to_type(int, parameter="p")
STATE = {"name": "list", "scheme": "even_split", "type": "bigint", "elements": ["3"]}
SEEN = {"elements": [{"split": "file:///a", "position": AT}], "files": [[0, None, 1]], "late_rows": 0}
PARTITION = {"key": "2024-01-01", "start_ms": 0, "end_ms": 1, "new_from_ms": 0, "late_rows": 0}
DAYS = TimePartitions("day", start="2024-01-01")
COLUMN = {"name": "v", "type": "long", "nullable": True, "metadata": {}}
POSITIONS: dict[str, tuple[Any, str, Any]] = {
    "file": (FILES, "file:///in/a.json", AT),
    "file in parts": (FILES, "file:///in/a.json", AT | {"end": 7, "nameless": True}),
    "schema": (FileSource("file:///in"), "file:///in#schema", {"type": "struct", "fields": [COLUMN]}),
    "Delta": (DeltaSource("/t"), "/t#changes", {"table": "id", "version": 1, "files": 2, "snapshot": False}),
    "Delta's schema": (DeltaSource("/t"), "/t#schema", {"version": 1, "schema": "{}"}),
    "Kafka": (
        KafkaSource("b:1", "t", schema="v int"),
        "t/0",
        {"topic_id": "x", "start": 1, "end": 9, "lost": 1},
    ),
    "collection": (CollectionSource("rows", [1, 2], OutputType.of(LONG), None), "0", 1),
    "function": (
        FunctionSource("rows", Counts(), OutputType.of(LONG), 1),
        "0",
        {"rows": 1, "states": [STATE]},
    ),
    "seen": (PartitionedSource("rows", FILES, DAYS, keep_refused=False, job="j"), "#seen", SEEN),
    "partition": (
        PartitionedSource("rows", FILES, DAYS, keep_refused=False, job="j"),
        "#partition",
        PARTITION,
    ),
}
"""By name, a source, and an element of its position."""


@pytest.mark.parametrize("kind", POSITIONS)
@given(st.data())
def test_a_position_is_one_of_its_source_or_file_and_row_are_named(
    kind: str, tmp_path_factory: Any, data: st.DataObject
) -> None:
    uri = f"file://{tmp_path_factory.mktemp('positions')}"
    source, split, position = POSITIONS[kind]
    element = {"split": split, "position": position}
    assert source.is_element(element)
    text = as_text(data.draw(altered([element])))[1:-1] or "null"
    row = {"operator": "rows", "state": "positions", "position": 0, "value": text}
    table = pa.Table.from_pylist([row], OPERATOR_STATE_SCHEMA)
    file = write_parquet(table, join(uri, "positions.parquet"))
    listed = DataFile("positions.parquet", file.bytes, 1, 0, footer=file.footer)
    path = [checkpoint(1, operator_state_files=[listed])]
    try:
        elements = SourcePositions(uri).elements(path, "rows", source)
    except DamagedFileError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert re.search("positions.parquet is damaged: .*restore a checkpoint", refusal)
        return
    source.position_text(elements)
    if kind in ("Delta", "Delta's schema", "Kafka"):  # they ask Spark or a broker first
        return
    with suppress(StatelakeError):
        source.plan(None, elements)


class Refuses(KeyedProcessFunction):
    """Takes no row."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.v / 0


def refusing() -> StatefulJob:
    job = StatefulJob("refuses", on_error="dead_letter")
    rows = job.source("rows", FileSource("/rows", schema="k string, v bigint"))
    rows.key_by("k").process(Refuses(), uid="f", output_type="v double").sink("out", CollectSink())
    return job


@pytest.fixture(scope="module")
def letter() -> dict[str, Any]:
    """A row of the table of dead letters."""
    with run_in_memory(refusing()) as run:
        run.process({"rows": [("a", 1)]})
        (row,) = run.checkpoints()
        (file,) = row.dead_letters
        (written,) = Path(run._directory.name).rglob(Path(file.path).name)
        (one,) = pq.ParquetFile(written).read().to_pylist()
        letter: dict[str, Any] = one
        return letter


@given(st.data())
def test_a_letter_that_somebody_altered_says_why_it_cannot_be_sent(
    letter: dict[str, Any], data: st.DataObject
) -> None:
    column = data.draw(
        st.sampled_from(["schema", "data", "operator", "source", "input", "sink", "key", "error"])
    )
    as_it_was = letter[column]
    value: Any
    if isinstance(as_it_was, bytes):
        at = data.draw(st.integers(0, len(as_it_was)))
        value = data.draw(
            st.sampled_from([None, as_it_was[:at], as_it_was[:at] + b"\xff" + as_it_was[at + 1 :]])
        )
    else:
        value = data.draw(st.integers(-1, 9) if column == "input" else st.text())
    one = _letter(1, 1, "file", 0, {**letter, column: value}, sent=False, job=refusing())
    part = next_slice([one], [], 10)
    if part is None:
        assert one.problem
    elif part.place.operator is not None:
        assert part.rows().num_rows == 1


@pytest.mark.parametrize("form", ["json", "csv"])
@given(st.data())
def test_a_record_that_is_sent_again_is_a_row_or_refused_again(form: Any, data: st.DataObject) -> None:
    source = FileSource("file:///in", format=form, schema="k string, v bigint")
    text = as_text(data.draw(altered([{"k": "a", "v": 1}])))[1:-1].encode("utf-8", "surrogatepass")
    head = as_text(data.draw(altered([{"names": ["k", "v"], "directory": "/in/d=1"}])))[1:-1]
    headed = data.draw(st.sampled_from([head.encode("utf-8", "surrogatepass") + b"\na,1", b"", b"[]\n"]))
    records = [text, data.draw(st.binary()), b"\xffstatelake text\xff" + headed]
    read = source.parse(None, records, keep_refused=True)  # type: ignore[arg-type]
    assert read.rows.schema.names[:2] == ["k", "v"]


def test_a_letter_whose_file_had_none_of_the_columns_of_today_is_refused_again() -> None:
    source = FileSource("file:///in", format="csv", schema="k string, v bigint")
    letters = [
        b'\xffstatelake text\xff{"names": ["a", "b"]}\nx,1',
        b'\xffstatelake text\xff{"names": ["v", "k"]}\n1,x',
    ]
    read = source.parse(None, letters, keep_refused=True)  # type: ignore[arg-type]
    assert isinstance(read.rows, pa.Table)
    assert read.rows.select(["k", "v"]).to_pylist() == [{"k": "x", "v": 1}]
    assert isinstance(read.refused, pa.Table)
    (refused,) = read.refused.to_pylist()
    assert refused["record"] == letters[0]
    assert "names none of the declared columns ['k', 'v']" in refused["reason"]


class RefusesAll(KeyedProcessFunction):
    """Takes no row."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (value.v / 0,)


class Pair(NamedTuple):
    at: time
    n: int


def job_of(policy: Any, *key: Any) -> StatefulJob:
    job = StatefulJob("keys", on_error=policy)
    schema = "k string, day date, price decimal(10,2), raw binary, ok boolean, v bigint"
    rows = job.source("rows", FileSource("/rows", schema=schema))
    rows.key_by(*key).process(RefusesAll(), uid="f", output_type="v double").sink("out", CollectSink())
    return job


ROW = ("a", date(2026, 3, 1), Decimal("1.50"), b"ab", True, 7)
KEYS: dict[str, tuple[tuple[Any, ...], str]] = {
    "text": (("k",), '{"k": "a"}'),
    "number": (("v",), '{"v": 7}'),
    "several": (
        ("k", "day", "price", "raw", "ok"),
        '{"k": "a", "day": "2026-03-01", "price": "1.50", "raw": "YWI=", "ok": true}',
    ),
    "time of day": ((lambda row: time(9, 30), Types.SQL_TIME()), '{"key": "09:30:00"}'),
    "instant": (
        (lambda row: Instant(row.v, 5_000), Types.INSTANT()),
        '{"key": "1970-01-01T00:00:07.000005Z"}',
    ),
    "record": (
        (
            lambda row: Pair(time(1), row.v),
            Types.ROW_NAMED(["at", "n"], [Types.SQL_TIME(), Types.LONG()]),
        ),
        '{"at": "01:00:00", "n": 7}',
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_is_shown_as_commands_take_it(kind: str) -> None:
    key, shown = KEYS[kind]
    with run_in_memory(job_of("dead_letter", *key)) as run:
        run.process({"rows": [ROW]})
        (letter,) = run.dead_letters()
        (row,) = run.checkpoints()
        assert letter["key"] == shown, letter["error"]
        if kind not in ("several", "instant"):  # Spark casts the texts of these
            schema = KeySchema.recorded(row.operators[0].key_schema, row.operators[0].key_type)
            (stored,) = key_table([key_of(shown)], schema, what="job").to_pylist()
            assert (
                pa.array([stored])
                .cast(pa.struct(list(zip(schema.names, schema.types, strict=True))))[0]
                .as_py()
                == stored
            )
    with run_in_memory(job_of("fail", *key)) as run, pytest.raises(UserFunctionError) as failed:
        run.process({"rows": [ROW]})
    assert failed.value.key == shown
