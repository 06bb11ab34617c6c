"""``ChangeFormat``: feeds of operations as inserts, updates and deletes; what cannot be decoded has a reason.

And the column of kinds: what sources must give, and what unions make of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine import ChangeFormat, RowKind, StatefulJob
from state_engine.core.errors import ConfigurationError, SourceError, ValueTypeError
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.changes.change_format import Changes
from state_engine.sources.collection import CollectionSource
from state_engine.sources.frames import StreamFrame, from_source, united
from state_engine.sources.output_type import OutputType
from state_engine.sources.stream_columns import KIND_FIELD, ROW_KIND, column_of_kinds, kind_column, kinds_of
from state_engine.spark.no_spark import NO_SPARK

INS, OLD_ROW, NEW_ROW, DEL = RowKind
ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
SCHEMA = "id bigint, name string"


def shown(changes: Changes) -> list[tuple[RowKind, tuple[Any, ...], int]]:
    """Kind, row and place in the feed of each change."""
    rows = [tuple(r.values()) for r in changes.rows.to_pylist()]
    return [
        (RowKind(int(kind)), row, int(origin))
        for kind, row, origin in zip(changes.kinds, rows, changes.origins, strict=True)
    ]


def structs(*envelopes: tuple[Any, Any, Any]) -> pa.Table:
    before, after, op = zip(*envelopes, strict=True)
    return pa.table(
        {"before": pa.array(before, ROW), "after": pa.array(after, ROW), "op": pa.array(op, pa.string())}
    )


def texts(*envelopes: Any) -> pa.Table:
    values = [e if isinstance(e, str | bytes | None) else json.dumps(e) for e in envelopes]
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    return pa.table({"offset": range(len(values)), "value": pa.array(encoded, pa.binary()).view(pa.string())})


def decoded(format_: ChangeFormat, feed: pa.Table) -> Changes:
    changes = format_.decode(feed)
    assert changes.rows.schema == format_.decoded(feed.schema)
    return changes


OLD, NEW = {"id": 1, "name": "old"}, {"id": 1, "name": "new"}
ENVELOPES = [
    (None, OLD, "c"),
    (OLD, NEW, "u"),
    (None, NEW, "u"),
    (OLD, None, "d"),
    (None, OLD, "r"),
    (OLD, NEW, "c"),
]
CHANGES = [
    (INS, (1, "old"), 0), (OLD_ROW, (1, "old"), 1), (NEW_ROW, (1, "new"), 1), (NEW_ROW, (1, "new"), 2),
    (DEL, (1, "old"), 3), (INS, (1, "old"), 4), (INS, (1, "new"), 5),
]  # fmt: skip


def test_envelopes_may_be_one_column_of_structs_or_of_json_text() -> None:
    feed = structs(*ENVELOPES)
    whole = pa.table(
        {"payload": pa.StructArray.from_arrays([c.combine_chunks() for c in feed.columns], feed.column_names)}
    )
    assert shown(decoded(ChangeFormat.debezium(column="payload"), whole)) == CHANGES
    bare = [{"before": b, "after": a, "op": op} for b, a, op in ENVELOPES]
    wrapped = [{"schema": {"type": "struct"}, "payload": e} for e in bare]
    for envelopes in (bare, wrapped):
        assert (
            shown(decoded(ChangeFormat.debezium(column="value", schema=SCHEMA), texts(*envelopes))) == CHANGES
        )


def test_a_tombstone_is_passed_over() -> None:
    format_ = ChangeFormat.debezium(column="value", schema=SCHEMA)
    changes = decoded(format_, texts({"before": OLD, "op": "d"}, None, {"after": NEW, "op": "c"}))
    assert shown(changes) == [(DEL, (1, "old"), 0), (INS, (1, "new"), 2)]
    assert not changes.problems


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        ((OLD, NEW, "x"), "unknown operation 'x'"),
        ((OLD, NEW, None), "there is no operation"),
        ((None, None, "t"), "a truncate (op 't') deletes rows without saying which"),
        ((None, NEW, "d"), "a delete (op 'd') without the row before it"),
        ((OLD, None, "c"), "an operation without the row after it"),
        ((OLD, None, "u"), "an operation without the row after it"),
    ],
)
def test_an_envelope_that_says_too_little_is_no_change_and_has_a_reason(envelope: Any, reason: str) -> None:
    good = (None, OLD, "c")
    as_text = [{"before": b, "after": a, "op": op} for b, a, op in (good, envelope, good)]
    for format_, feed in (
        (ChangeFormat.debezium(), structs(good, envelope, good)),
        (ChangeFormat.debezium(column="value", schema=SCHEMA), texts(*as_text)),
    ):
        changes = decoded(format_, feed)
        assert shown(changes) == [(INS, (1, "old"), 0), (INS, (1, "old"), 2)]
        assert list(changes.problems) == [1]
        assert reason in changes.problems[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "the envelope is not JSON"),
        ('{"op": "c", "after": {"id": 1}} {}', "the envelope is not JSON"),
        (b'{"op": "c", "after": {"id": 1, "name": "caf\xe9"}}', "the envelope is not JSON"),
        ("[1]", "the envelope is not a JSON object"),
        ({"op": "c", "after": {"id": "1"}}, "'after': field 'id': '1': it is not a number"),
        ({"op": "c", "after": {"id": 2**63}}, "'after': field 'id': 9223372036854775808"),
        ({"op": "d", "before": 7}, "'before': 7 is not an object with the fields ['id', 'name']"),
        ({"op": "c", "after": {"id": 1.5}}, "'after': field 'id'"),
        ({"op": "c", "after": {"id": True}}, "'after': field 'id'"),
        ({"op": "c", "after": {"name": "\ud800"}}, "'after': field 'name'"),
    ],
)
def test_json_that_does_not_fit_has_a_reason(text: Any, reason: str) -> None:
    changes = decoded(
        ChangeFormat.debezium(column="value", schema=SCHEMA), texts({"op": "c", "after": OLD}, text)
    )
    assert shown(changes) == [(INS, (1, "old"), 0)]
    assert reason in changes.problems[1]


def test_values_of_json_become_those_of_the_declared_types() -> None:
    schema = (
        "d date, days date, at timestamp, local timestamp_ntz, price decimal(9,2), exact decimal(20,0), x double, "
        "raw binary, tags array<string>, m map<string,int>, s struct<a: int, b: string>, missing int"
    )
    row = {
        "d": "2026-01-02", "days": 1, "at": "2026-01-02T03:04:05+01:00", "local": "2026-01-02T03:04:05.25",
        "price": 1.5, "exact": "12345678901234567890", "x": 2, "raw": "AAE=", "tags": ["a", None], "m": {"k": 1},
        "s": {"b": "x"}, "more": "passed over",
    }  # fmt: skip
    changes = decoded(ChangeFormat.debezium(column="value", schema=schema), texts({"op": "r", "after": row}))
    assert changes.problems == {}
    (only,) = changes.rows.to_pylist()
    assert only == {
        "d": date(2026, 1, 2), "days": date(1970, 1, 2), "at": datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5, 250_000), "price": Decimal("1.50"),
        "exact": Decimal("12345678901234567890"), "x": 2.0, "raw": b"\x00\x01", "tags": ["a", None],
        "m": [("k", 1)], "s": {"a": None, "b": "x"}, "missing": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (
            "timestamp",
            1_700_000_000_000,
            "a number, which does not say its unit: declare the field as bigint",
        ),
        ("timestamp", "2026-01-02T03:04:05", "has no offset from UTC: declare the field as timestamp_ntz"),
        ("timestamp", "soon", "is not a time such as"),
        ("date", "soon", "is not a date such as"),
        ("decimal(9,2)", "1.234", "more fraction digits"),
        ("decimal(9,2)", "much", "is not a decimal"),
        ("binary", "ä", "is not base64"),
    ],
)
def test_a_value_that_is_no_such_thing_is_no_change(kind: str, value: Any, reason: str) -> None:
    format_ = ChangeFormat.debezium(column="value", schema=f"v {kind}")
    changes = decoded(format_, texts({"op": "c", "after": {"v": value}}))
    assert (changes.rows.num_rows, list(changes.problems)) == (0, [0])
    assert reason in changes.problems[0]


@pytest.mark.parametrize(
    "ops", [["I", "B", "U", "D", "?", None], [1, 2, 3, 4, 5, None]], ids=["text", "numbers"]
)
def test_columns_that_the_user_names(ops: list[Any]) -> None:
    format_ = ChangeFormat.columns(
        op="op", insert=["I", 1], update_before=["B", 2], update=["U", 3], delete=["D", 4], sequence="lsn"
    )
    feed = pa.table({"id": range(6), "op": ops, "lsn": [5, 4, None, 2, 1, 0]})
    changes = decoded(format_, feed)
    assert shown(changes) == [(INS, (0, 5), 0), (OLD_ROW, (1, 4), 1), (DEL, (3, 2), 3)]
    assert [changes.problems[i].partition(";")[0] for i in (2, 4, 5)] == [
        "there is no 'lsn'", f"unknown operation {ops[4]!r}", "there is no operation",
    ]  # fmt: skip
    assert (format_.order_after(()), format_.order_after(["day"])) == (("lsn",), ("lsn",))
    assert (format_.order_after(["lsn", "id"]), ChangeFormat.debezium().order_after(())) == ((), ())


def wrong(make: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return str(caught.value)


FEED = pa.schema([("value", pa.string()), ("op", pa.float64()), ("n", pa.int64())])
OTHER = pa.schema([("before", ROW), ("after", pa.struct([("id", pa.int64())])), ("op", pa.string())])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChangeFormat.columns(op="op"), "names no operation: say what the column holds"),
        (lambda: ChangeFormat.columns(op="op", insert="I"), "takes lists of operations, not 'I'"),
        (
            lambda: ChangeFormat.columns(op="op", insert=["I"], delete=["I"]),
            "the operation 'I' is named twice",
        ),
        (lambda: ChangeFormat.debezium(schema=SCHEMA), "say in which column"),
        (lambda: ChangeFormat.debezium(column="value", schema="bigint"), "schema must name columns"),
        (lambda: ChangeFormat.debezium().decoded(FEED), "there is no column ['before', 'after'] in the feed"),
        (lambda: ChangeFormat.debezium(column="x").decoded(FEED), "there is no column ['x'] in the feed"),
        (lambda: ChangeFormat.debezium(column="value").decoded(FEED), "the columns of its rows must be said"),
        (lambda: ChangeFormat.debezium(column="n").decoded(FEED), "must be a struct or JSON text, not int64"),
        (lambda: ChangeFormat.debezium(column="before", schema=SCHEMA).decoded(OTHER), "leave schema out"),
        (lambda: ChangeFormat.debezium().decoded(OTHER), "must be structs of the same fields"),
        (
            lambda: ChangeFormat.columns(op="o", insert=["I"]).decoded(FEED),
            "there is no column ['o'] in the feed",
        ),
        (lambda: ChangeFormat.columns(op="op", insert=["I"]).decoded(FEED), "must be text or a whole number"),
        (
            lambda: ChangeFormat.columns(op="n", insert=[1], sequence="n").decoded(FEED),
            "one column cannot be both the operation and the sequence",
        ),
    ],
)
def test_what_does_not_fit_the_feed_is_refused(make: Any, message: str) -> None:
    assert message in wrong(make)


@given(
    st.lists(
        st.tuples(
            st.none()
            | st.fixed_dictionaries({"id": st.integers(0, 3), "name": st.none() | st.text(max_size=3)}),
            st.none()
            | st.fixed_dictionaries({"id": st.integers(0, 3), "name": st.none() | st.text(max_size=3)}),
            st.none() | st.sampled_from(["c", "r", "u", "d", "t", "x"]),
        ),
        max_size=12,
    )
)
def test_no_envelope_is_lost_and_text_says_what_structs_say(envelopes: list[Any]) -> None:
    feed = structs(*envelopes) if envelopes else structs((None, None, None)).slice(0, 0)
    by_struct = decoded(ChangeFormat.debezium(), feed)
    by_text = decoded(
        ChangeFormat.debezium(column="value", schema=SCHEMA),
        texts(*[{"before": b, "after": a, "op": op} for b, a, op in envelopes]),
    )
    assert (shown(by_struct), by_struct.problems) == (shown(by_text), by_text.problems)
    assert shown(by_struct) == list(expected(envelopes))
    assert {*map(int, by_struct.origins), *by_struct.problems} == set(range(len(envelopes)))


def expected(envelopes: Iterable[Any]) -> Iterable[tuple[RowKind, tuple[Any, ...], int]]:
    """The definition, row by row."""
    for place, (before, after, op) in enumerate(envelopes):
        if op in ("c", "r") and after:
            yield INS, (after["id"], after["name"]), place
        elif op == "u" and after:
            if before:
                yield OLD_ROW, (before["id"], before["name"]), place
            yield NEW_ROW, (after["id"], after["name"]), place
        elif op == "d" and before:
            yield DEL, (before["id"], before["name"]), place


def frame(*kinds: RowKind, source: str = "s", changing: bool = True) -> StreamFrame:
    rows = pa.table(
        {
            "id": pa.array(range(len(kinds)), pa.int64()),
            FILE_COLUMN: pa.array([0] * len(kinds), pa.int32()),
            ROW_COLUMN: pa.array(range(len(kinds)), pa.int64()),
        }
    )
    rows = rows.append_column(KIND_FIELD, kind_column(kinds)) if changing else rows
    return from_source(
        NO_SPARK, SourceFrame(rows), order_by=(), event_time=None, source=source, labels=(), changing=changing
    )


def test_the_column_is_as_agreed() -> None:
    assert (ROW_KIND, KIND_FIELD.type) == ("_statelake_row_kind", pa.int8())
    assert kind_column(RowKind).to_pylist() == [0, 1, 2, 3]
    assert kinds_of(pa.table({ROW_KIND: kind_column(RowKind)})) == list(RowKind)
    assert column_of_kinds(pa.table({"id": [1, 2]})).to_pylist() == [0, 0]


def test_a_source_that_says_it_changes_gives_kinds() -> None:
    assert frame(RowKind.DELETE).user_columns == ["id"]
    rows = SourceFrame(pa.table({"id": [1], FILE_COLUMN: [0], ROW_COLUMN: [0]}))
    with pytest.raises(SourceError, match="source 's': it says that it changes, and its rows have no column"):
        from_source(NO_SPARK, rows, order_by=(), event_time=None, source="s", labels=(), changing=True)


def test_a_union_has_kinds_where_one_of_its_streams_has() -> None:
    plain, changed = frame(RowKind.INSERT, source="p", changing=False), frame(*RowKind)
    for frames, kinds in (
        ([plain, changed], [RowKind.INSERT, *RowKind]),
        ([changed, plain], [*RowKind, RowKind.INSERT]),
    ):
        both = united(frames)
        assert both.changing
        assert both.table is not None
        assert kinds_of(both.table) == kinds
    only = united([plain, frame(RowKind.INSERT, source="q", changing=False)])
    assert not only.changing
    assert ROW_KIND not in only.schema.names


def test_a_collection_has_kinds_only_where_it_says_so() -> None:
    kind = OutputType.of(to_type(int, parameter="kind"))
    changed = CollectionSource("c", [(RowKind.DELETE, 7), 8], kind, changing=True)
    part = changed.plan(NO_SPARK, [])
    assert part is not None
    rows = changed.read(NO_SPARK, part, keep_refused=False).rows
    assert isinstance(rows, pa.Table)
    assert (rows["value"].to_pylist(), kinds_of(rows)) == ([7, 8], [RowKind.DELETE, RowKind.INSERT])
    plain = CollectionSource("c", [7], kind)
    part = plain.plan(NO_SPARK, [])
    assert part is not None
    assert ROW_KIND not in plain.read(NO_SPARK, part, keep_refused=False).rows.schema.names
    with pytest.raises(ValueTypeError, match="source 'c'"):
        CollectionSource("c", [(RowKind.DELETE, 7)], kind)
    assert not StatefulJob("j").from_collection([1], int)._job.sources["collection"].source.changing
