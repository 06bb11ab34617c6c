"""Slices that were recorded and are read again: lists, functions, Python data sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader

from state_engine import PythonDataSource, SourceFunction, Types
from state_engine.core.errors import SourceError
from state_engine.sources.base import Element
from state_engine.sources.collection import CollectionSource
from state_engine.sources.function import FunctionSource
from state_engine.sources.output_type import OutputType

NO_SPARK: Any = None


def collection(size: int, bound: int | None = None) -> CollectionSource:
    return CollectionSource("numbers", range(size), OutputType.of(Types.LONG()), max_rows_per_batch=bound)


def test_a_list_gives_the_same_elements_again() -> None:
    appended: list[list[Element]] = []
    while (part := collection(5, 2).plan(NO_SPARK, [e for a in appended for e in a])) is not None:
        appended.append(part.elements)
        before = [e for a in appended[:-1] for e in a]
        again = collection(9, 7).replan(NO_SPARK, before, part.elements)
        assert (again.elements, again.detail) == (part.elements, part.detail)
        assert (again.position_from, again.position_to) == (part.position_from, part.position_to)
    recorded = [e for a in appended for e in a]
    first = collection(9, 3).rebatch(NO_SPARK, [], recorded)
    assert first is not None
    second = collection(9, 3).rebatch(NO_SPARK, first.elements, recorded)
    assert second is not None
    assert (first.detail, second.detail) == ((0, 3), (3, 5))
    assert collection(9, 3).rebatch(NO_SPARK, second.elements, recorded) is None
    with pytest.raises(SourceError, match="5 elements were consumed and the list holds 4 now"):
        collection(4).replan(NO_SPARK, [], recorded)


class Ticks(SourceFunction):
    def run(self, ctx: Any) -> None:
        ctx.collect(1)

    def cancel(self) -> None:
        pass


def test_a_source_function_cannot_be_replayed_and_says_what_to_do() -> None:
    source = FunctionSource("ticks", Ticks(), OutputType.of(Types.LONG()), max_rows_per_batch=1)
    for call in (source.replan, source.rebatch):
        with pytest.raises(SourceError, match=r"'ticks': a SourceFunction cannot be replayed: .* of Ticks"):
            call(NO_SPARK, [], [{"split": "0", "position": {"rows": 1}}])


class Reader(DataSourceStreamReader):
    """Its partitions are the numbers between two offsets; it has committed nothing in a replay."""

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        return list(range(start["next"], end["next"]))

    def commit(self, end: dict[str, int]) -> None:
        raise AssertionError(end)

    def read(self, partition: Any) -> Iterator[Any]:
        yield (partition,)


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        raise AssertionError(start)

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        if end["next"] > 5:
            raise ValueError("forgotten")
        return iter([(n,) for n in range(start["next"], end["next"])])


class Numbers(DataSource):
    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Reader()


class SimpleNumbers(DataSource):
    def schema(self) -> str:
        return "n bigint"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleReader()


def offsets(*numbers: int) -> list[Element]:
    return [{"split": "0", "position": {"next": n}} for n in numbers]


def test_offsets_of_a_python_data_source_are_read_between() -> None:
    source, simple = PythonDataSource(Numbers), PythonDataSource(SimpleNumbers)
    for before, appended, expected in ((offsets(), offsets(3), [0, 1, 2]), (offsets(3), offsets(5), [3, 4])):
        part = source.replan(NO_SPARK, before, appended)
        assert (part.elements, part.detail[2]) == (appended, expected)
        part = simple.replan(NO_SPARK, before, appended)
        assert (part.elements, part.detail) == (appended, ("rows", [(n,) for n in expected]))
    whole = source.rebatch(NO_SPARK, [], offsets(3, 5))
    assert whole is not None
    assert (whole.elements, whole.detail[2]) == (offsets(5), [0, 1, 2, 3, 4])
    assert source.rebatch(NO_SPARK, whole.elements, offsets(3, 5)) is None
    with pytest.raises(SourceError, match=r"the reader of data source 'SimpleNumbers' failed .*forgotten"):
        simple.replan(NO_SPARK, [], offsets(6))
