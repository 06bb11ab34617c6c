"""The column of kinds: what sources must give, and what unions make of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state_engine import RowKind, StatefulJob
from state_engine.core.errors import SourceError, ValueTypeError
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.collection import CollectionSource
from state_engine.sources.frames import StreamFrame, from_source, united
from state_engine.sources.output_type import OutputType
from state_engine.sources.row_kinds import KIND_FIELD, column_of_kinds, kind_column, kinds_of
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.no_spark import NO_SPARK


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
