"""A recorded position has the right form and a wrong number: refused by name, with a way out; never a silent skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from state_engine import DeltaSource, FileSource, KafkaSource
from state_engine.core.errors import SourceError
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import Element, Source
from state_engine.sources.collection import CollectionSource
from state_engine.sources.kafka.offset_ranges import Offsets, newest_by_partition
from state_engine.sources.output_type import OutputType
from state_engine.spark.kafka.clients import Topic
from state_engine.spark.no_spark import NO_SPARK
from tests.microbatch.test_altered_tables import POSITIONS

THREE = pa.table({"v": [1, 2, 3]})


@dataclass
class Recorded:
    """A source, and the position after all that it has."""

    source: Source
    elements: list[Element]

    def with_numbers(self, **numbers: Any) -> list[Element]:
        first, *others = self.elements
        at = first["position"]
        return [{**first, "position": {**at, **numbers} if isinstance(at, dict) else numbers["at"]}, *others]


def a_list(directory: Path, spark: SparkSession) -> Recorded:
    source = CollectionSource("rows", [1, 2, 3], OutputType.of(to_type(int, parameter="p")), None)
    return Recorded(source, source.consumed(NO_SPARK, "all"))


def parquet(directory: Path, spark: SparkSession) -> Recorded:
    directory.mkdir()
    pq.write_table(THREE, directory / "three.parquet")
    source = FileSource(str(directory), schema="v bigint")
    return Recorded(source, source.consumed(NO_SPARK, "all"))


def lines(directory: Path, spark: SparkSession) -> Recorded:
    directory.mkdir()
    (directory / "three.json").write_text('{"v": 1}\n{"v": 2}\n{"v": 3}\n')
    source = FileSource(str(directory), schema="v bigint", format="json")
    return Recorded(source, source.consumed(NO_SPARK, "all"))


def delta(directory: Path, spark: SparkSession) -> Recorded:
    for _ in range(2):
        write_deltalake(directory, THREE, mode="append")
    source = DeltaSource(str(directory))
    return Recorded(source, source.consumed(spark, "all"))


WRONG: dict[str, tuple[Callable[[Path, SparkSession], Recorded], dict[str, Any], str]] = {
    "more elements than the list has": (a_list, {"at": 7}, "7 elements were consumed and the list holds 3 now: give"),
    "a row that the file does not have": (
        parquet, {"end": 7}, r"three\.parquet was read up to row 7, and has 3 rows: .*Put back what it was, or restore",
    ),
    "a row in a file that is read whole": (
        lines, {"end": 2}, r"three\.json was read up to row 2, and is read whole with format='json': .*or restore",
    ),
    "a version that the table does not have": (
        delta, {"version": 9}, "ends with version 1, and version 9 was read: .*Ways out: on_change='restart'",
    ),
    "a file that its version does not have": (
        delta, {"version": 0, "files": 4}, "4 files of version 0 of .* were read, and it has 1: .*Restore a checkpoint",
    ),
    "a file that the snapshot does not have": (
        delta, {"files": 4, "snapshot": True}, "4 files of version 1 of .* were read, and it has 2: .*Restore",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_number_is_refused_when_the_next_batch_is_planned(
    what: str, tmp_path: Path, spark: SparkSession
) -> None:
    make, numbers, message = WRONG[what]
    recorded = make(tmp_path / "in", spark)
    assert recorded.source.plan(spark, recorded.elements) is None
    wrong = recorded.with_numbers(**numbers)
    assert all(map(recorded.source.is_element, wrong))
    with pytest.raises(SourceError, match=f"(?s){message}"):
        recorded.source.plan(spark, wrong)


AGAIN: dict[str, tuple[Callable[[Path, SparkSession], Recorded], dict[str, Any], str]] = {
    "elements": (a_list, {"at": 7}, "7 elements were consumed and the list holds 3 now"),
    "rows": (parquet, {"end": 7}, "was read up to row 7, and has 3 rows"),
    "a version": (
        delta,
        {"version": 9},
        "has the versions up to 1, and .* to 9 are to be read again.*or replay",
    ),
    "files": (delta, {"files": 4, "version": 1}, "4 files of version 1 of .* were read, and it has 1"),
}


@pytest.mark.parametrize("what", AGAIN)
def test_a_wrong_number_is_refused_when_a_batch_is_read_again(
    what: str, tmp_path: Path, spark: SparkSession
) -> None:
    make, numbers, message = AGAIN[what]
    recorded = make(tmp_path / "in", spark)
    before = recorded.with_numbers(version=0)[:1] if make is delta else []
    recorded.source.replan(spark, before, recorded.elements)
    with pytest.raises(SourceError, match=f"(?s){message}"):
        recorded.source.replan(spark, before, recorded.with_numbers(**numbers))


def test_a_partition_that_its_topic_does_not_have_is_refused() -> None:
    topic = Topic("t", "x", (0,))
    there = Offsets({("t", 0): topic}, {("t", 0): 0}, {("t", 0): 9})
    known = newest_by_partition([{"split": "t/5", "position": {"topic_id": "x", "start": 0, "end": 4}}])
    with pytest.raises(
        SourceError, match=r"t/5 was read up to offset 4, .*no such partition: .*on_data_loss='reset'"
    ):
        KafkaSource("b:1", "t", schema="v int")._check_partitions(there, known)
    KafkaSource("b:1", "t", schema="v int", on_data_loss="reset")._check_partitions(there, known)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("file in parts", {"start": 9, "end": 7}),
        ("Kafka", {"start": 9, "end": 1}),
        ("partition", {"start_ms": 1, "end_ms": 1}),
        ("seen", {"files": [[2, 1, 0]]}),
        *((kind, {"end": -1}) for kind in ("file", "Kafka")),
        *(("Delta", {name: -1}) for name in ("version", "files")),
    ],
    ids=str,
)
def test_numbers_that_contradict_each_other_are_no_position(kind: str, numbers: dict[str, Any]) -> None:
    source, split, position = POSITIONS[kind]
    assert source.is_element({"split": split, "position": position})
    assert not source.is_element({"split": split, "position": position | numbers})
