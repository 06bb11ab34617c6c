"""The key of a letter, and of an error, is what commands take with ``--key``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, time
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from state_engine import FileSource, Instant, KeyedProcessFunction, StatefulJob, Types
from state_engine.cli.keys import key_of
from state_engine.core.errors import UserFunctionError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.queries.stored_entries import key_table
from state_engine.testing import CollectSink, run_in_memory


class Refuses(KeyedProcessFunction):
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
    rows.key_by(*key).process(Refuses(), uid="f", output_type="v double").sink("out", CollectSink())
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
