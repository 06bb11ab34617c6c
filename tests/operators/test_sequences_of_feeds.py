"""The sequence of a feed orders the rows of keyed sinks and versions, in any order of arrival, cut and repetition."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from state_engine import ChangeFormat, DeltaSink, FileSource, Row, StatefulJob
from state_engine.core.errors import ConfigurationError
from state_engine.testing import run_in_memory
from tests.operators.histories import batches, cuts

ROW = "id bigint, name string"
STRUCT = "struct<id: bigint, name: string>"


class Change(NamedTuple):
    """Of a database: a row before and after, at a place in its log."""

    lsn: int
    before: tuple[int, str] | None
    after: tuple[int, str] | None

    @property
    def op(self) -> str:
        return "c" if self.before is None else "d" if self.after is None else "u"


def _row(key: int, at: int) -> tuple[int, str]:
    return key, f"name {at}"


def changes_of(keys: list[tuple[int, int | None]]) -> list[Change]:
    """What a database logs: each step puts a row at a key, moves it to another one, or deletes it."""
    table: dict[int, tuple[int, str]] = {}
    made = []
    for lsn, (key, to) in enumerate(keys, 1):
        before = table.pop(key, None)
        after = None if to is None and before is not None else _row(to or key, lsn)
        if after is not None and after[0] != key and after[0] in table:
            after = _row(key, lsn)
        if after is not None:
            table[after[0]] = after
        made.append(Change(lsn, before, after))
    return made


def shown_at_the_end(changes: list[Change]) -> dict[int, str]:
    """The table of the database."""
    table: dict[int, str] = {}
    for change in changes:
        if change.before is not None:
            del table[change.before[0]]
        if change.after is not None:
            table[change.after[0]] = change.after[1]
    return table


def _named(row: tuple[int, str] | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(("id", "name"), row, strict=True))


def _in_log(lsn: int) -> dict[str, Any]:
    """A place in MySQL's log: names of files and positions get more digits, and positions begin anew in each file."""
    return {"file": f"mysql-bin.{999_998 + lsn // 2:06}", "pos": 900 + 100 * (lsn % 2), "row": 0}


def _as_text(change: Change) -> list[Any]:
    envelope = {"op": change.op, "before": _named(change.before), "after": _named(change.after)}
    return [(json.dumps({"payload": envelope | {"source": {"lsn": change.lsn, **_in_log(change.lsn)}}}),)]


def _as_struct(change: Change) -> list[Any]:
    return [(change.before, change.after, change.op, (change.lsn, *_in_log(change.lsn).values()))]


def _as_columns(change: Change) -> list[Any]:
    old = (
        [] if change.before is None else [("d" if change.after is None else "b", *change.before, change.lsn)]
    )
    new = [] if change.after is None else [(change.op, *change.after, change.lsn)]
    return [*old, *new]


MYSQL = ["source.file", "source.pos", "source.row"]
PLACE = "struct<lsn: bigint, file: string, pos: bigint, row: int>"
ENVELOPES = f"before {STRUCT}, after {STRUCT}, op string, source {PLACE}"
FEEDS: dict[str, tuple[str, ChangeFormat, Any]] = {
    "debezium, text": (
        "value string",
        ChangeFormat.debezium(column="value", schema=ROW, sequence="source.lsn"),
        _as_text,
    ),
    "debezium, structs": (
        ENVELOPES,
        ChangeFormat.debezium(sequence="source.lsn"),
        _as_struct,
    ),
    "mysql, text": (
        "value string",
        ChangeFormat.debezium(column="value", schema=ROW, sequence=MYSQL),
        _as_text,
    ),
    "mysql, structs": (ENVELOPES, ChangeFormat.debezium(sequence=MYSQL), _as_struct),
    "columns": (
        f"op string, {ROW}, lsn bigint",
        ChangeFormat.columns(
            op="op", insert=["c"], update=["u"], update_before=["b"], delete=["d"], sequence="lsn"
        ),
        _as_columns,
    ),
}
_steps = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=8)


@pytest.mark.parametrize(
    "feed",
    [pytest.param(feed, marks=() if feed == "debezium, text" else pytest.mark.more) for feed in FEEDS],
)
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(steps=_steps, sizes=cuts, data=st.data())
def test_a_keyed_sink_ends_at_the_table_of_the_database(
    feed: str, steps: list[tuple[int, int | None]], sizes: list[int], data: Any
) -> None:
    """Changes come in any order, and some of them, or parts of them, again."""
    schema, format_, as_feed = FEEDS[feed]
    changes = changes_of(steps)
    rows = [row for change in changes for row in as_feed(change)]
    came = data.draw(st.permutations(rows)) + data.draw(st.lists(st.sampled_from(rows), max_size=4))
    job = StatefulJob("latest", parallelism=2)
    source = job.source("feed", FileSource("/feed", schema=schema, format="json"), format=format_)
    source.sink("latest", DeltaSink("/latest", key=["id"]))
    with run_in_memory(job) as run:
        for batch in batches(came, sizes):
            run.process({"feed": batch})
        assert {row["id"]: row["name"] for row in run.table("latest")} == shown_at_the_end(changes)


@pytest.mark.parametrize("feed", FEEDS)
def test_versions_have_the_sequence_of_the_feed(feed: str) -> None:
    schema, format_, as_feed = FEEDS[feed]
    job = StatefulJob("versions")
    source = job.source("feed", FileSource("/feed", schema=schema, format="json"), format=format_)
    source.key_by("id").scd2(valid_from="name", uid="homes")
    with run_in_memory(job) as run:
        run.process({"feed": as_feed(Change(3, (1, "A"), None))})
        run.process({"feed": as_feed(Change(2, None, (1, "A")))})
        assert run.state("homes", "versions") == {}
        log = "00000000000000999999.00000000000000001000.00000000000000000000"
        sequence = Row(file_pos_row=log) if "mysql" in feed else Row(lsn=3)
        assert run.state("homes", "deleted") == {1: {"A": sequence}}


def test_a_sink_with_a_sequence_of_its_own_keeps_it() -> None:
    schema, format_, as_feed = FEEDS["columns"]
    job = StatefulJob("latest")
    source = job.source("feed", FileSource("/feed", schema=schema, format="json"), format=format_)
    source.sink("latest", DeltaSink("/latest", key=["id"], sequence=["name"]))
    with run_in_memory(job) as run:
        for change in (Change(1, None, (1, "b")), Change(2, (1, "b"), (1, "a"))):
            run.process({"feed": as_feed(change)[-1:]})
        assert [row["name"] for row in run.table("latest")] == ["b"]


def test_an_envelope_without_its_place_is_a_problem() -> None:
    format_ = ChangeFormat.debezium(column="value", schema=ROW, sequence="source.lsn")
    texts = [
        {"op": "c", "after": {"id": 1, "name": "a"}, "source": {"lsn": 7}},
        {"op": "c", "after": {"id": 1, "name": "a"}},
        {"op": "c", "after": {"id": 1, "name": "a"}, "source": {"lsn": 1.5}},
    ]
    changes = format_.decode(pa.table({"value": [json.dumps(text) for text in texts]}))
    assert changes.rows.to_pylist() == [{"id": 1, "name": "a", "lsn": 7}]
    assert changes.problems[1] == "there is no 'source.lsn'"
    assert changes.problems[2].startswith("'source.lsn': ")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "there is no 'source.file' or no 'source.pos'"),
        ({"file": "bin.1"}, "there is no 'source.file' or no 'source.pos'"),
        (
            {"file": "bin", "pos": 1},
            "'source.file': 'bin' is not a whole number of at least 0, and does not end in one",
        ),
        ({"file": "bin." + "9" * 21, "pos": 1}, "is not a whole number of at least 0"),
        (
            {"file": "bin.1", "pos": -1},
            "'source.pos': -1 is not a whole number of at least 0, and does not end in one",
        ),
        ({"file": "bin.1", "pos": 1.5}, "is not a whole number of at least 0"),
        ({"file": "bin.1", "pos": True}, "'source.pos': True is not a whole number of at least 0"),
    ],
)
def test_fields_that_order_nothing_are_a_problem(source: Any, problem: str) -> None:
    format_ = ChangeFormat.debezium(column="value", schema=ROW, sequence=["source.file", "source.pos"])
    text = {"op": "c", "after": {"id": 1, "name": "a"}, "source": source}
    changes = format_.decode(pa.table({"value": [json.dumps(text), None]}))
    assert (changes.rows.num_rows, list(changes.problems)) == (0, [0])
    assert problem in changes.problems[0]


def test_a_tombstone_beside_structs_has_no_place_and_is_no_problem() -> None:
    kind = pa.struct([("id", pa.int64())])
    place = pa.struct([("file", pa.string()), ("pos", pa.int64())])
    envelope = pa.struct([("before", kind), ("after", kind), ("op", pa.string()), ("source", place)])
    feed = pa.table(
        {
            "e": pa.array(
                [{"op": "c", "after": {"id": 1}, "source": {"file": "b.2", "pos": 3}}, None], envelope
            )
        }
    )
    changes = ChangeFormat.debezium(column="e", sequence=["source.file", "source.pos"]).decode(feed)
    assert changes.rows.to_pylist() == [{"id": 1, "file_pos": f"{2:020}.{3:020}"}]
    assert not changes.problems


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChangeFormat.debezium(sequence="source."), "names no field: write it as 'source.lsn'"),
        (lambda: ChangeFormat.debezium(sequence=["source.file", ""]), "'' names no field: write it as 'source.lsn'"),
        (lambda: ChangeFormat.debezium(sequence=[]), "is an empty list: name fields, or leave it out"),
        (lambda: ChangeFormat.debezium(sequence=cast(Any, 7)), "sequence=7 names no field"),
        (lambda: ChangeFormat.debezium(sequence="source.pos"), r"order the changes of MySQL.*=\['source.file',"),
        (lambda: ChangeFormat.debezium(sequence="source.file string"), "does not order the changes of MySQL"),
        (
            lambda: ChangeFormat.debezium(sequence=["source.at"]).decoded(
                pa.schema([*((n, pa.struct([("id", pa.int64())])) for n in ("before", "after")), ("op", pa.string()),
                           ("source", pa.struct([("at", pa.float64())]))])
            ),
            "'source.at' is double: the fields of a sequence are whole numbers, or text that ends in one",
        ),
        (
            lambda: ChangeFormat.debezium(column="v", schema="id bigint, lsn bigint", sequence="source.lsn").decoded(
                pa.schema([("v", pa.string())])
            ),
            "the rows have a column 'lsn' of their own",
        ),
        (
            lambda: ChangeFormat.debezium(column="v", sequence="source.lsn").decoded(
                pa.schema([("v", pa.struct([(n, pa.struct([("id", pa.int64())])) for n in ("before", "after")]
                                           + [("op", pa.string())]))])
            ),
            "the envelope has no field 'source.lsn'",
        ),
    ],
)  # fmt: skip
def test_a_sequence_that_is_no_field_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_sequence_may_be_text() -> None:
    format_ = ChangeFormat.debezium(column="value", schema=ROW, sequence="source.change_lsn string")
    text = json.dumps({"op": "c", "after": {"id": 1, "name": "a"}, "source": {"change_lsn": "00:0a"}})
    changes = format_.decode(pa.table({"value": [text]}))
    assert changes.rows.to_pylist() == [{"id": 1, "name": "a", "change_lsn": "00:0a"}]
    assert repr(format_).endswith("sequence='source.change_lsn string')")
