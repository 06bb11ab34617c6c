"""The state examples of Flink's documents, in memory: one batch an element, and all at once; and by two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    ProcessFunction,
    StatefulJob,
    Types,
)
from tests.support.flink_examples import (
    AVERAGE,
    AVERAGE_OUTPUTS,
    COUNTS,
    COUNTS_OUTPUTS,
    FIRST_ENTRY,
    FIRST_ENTRY_OUTPUTS,
    Buffering,
    CountWindowAverage,
    CountWindowFirstEntry,
    running_count,
)
from tests.support.pipelines import MemoryPipeline, Pipeline

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class BufferingSink(ProcessFunction, Buffering):
    """Emits what it buffered as soon as there are two elements."""

    def __init__(self) -> None:
        super().__init__(2, PAIR)

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        for group in self.groups(tuple(value)):
            yield from group


def examples(cut: int | None) -> Any:
    """All examples in one job: each has a source of its own."""

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        def pairs(name: str, elements: list[Any], kind: Any = PAIR) -> DataStream:
            return job.from_collection(elements, kind, name=name, max_rows_per_batch=cut)

        triple = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
        count = Types.TUPLE([Types.STRING(), Types.LONG()])
        return {
            "average": pairs("averaged", AVERAGE)
            .key_by(lambda pair: pair[0], key_type=Types.LONG())
            .flat_map(CountWindowAverage(), output_type=PAIR)
            .uid("average_of_window"),
            "first_entry": pairs("entered", FIRST_ENTRY)
            .key_by("f0")
            .flat_map(CountWindowFirstEntry(), output_type=triple)
            .uid("first_entry_of_window"),
            "count": pairs("counted", COUNTS, count)
            .key_by("f0")
            .map_with_state(running_count, Types.LONG(), count, uid="running_count"),
            "buffer": pairs("sent", AVERAGE)
            .process(BufferingSink(), uid="buffering", output_type=PAIR)
            .set_parallelism(1),
        }

    return build


EXPECTED = {
    "average": AVERAGE_OUTPUTS,
    "first_entry": FIRST_ENTRY_OUTPUTS,
    "buffer": AVERAGE[:4],
}


@pytest.mark.parametrize("parallelism", [1, 4])
def test_every_element_in_a_batch_of_its_own(parallelism: int) -> None:
    with MemoryPipeline.of(examples(1), parallelism=parallelism) as pipeline:
        runs = 0
        while pipeline.run(max_batches=1).batches:
            runs += 1
        assert runs == len(FIRST_ENTRY)
        outputs = pipeline.outputs()
        assert outputs.pop("count") == COUNTS_OUTPUTS
        assert outputs == EXPECTED
        assert pipeline.state("average_of_window", "average") == [(1, (1, 2))]
        assert pipeline.state("first_entry_of_window", "sortedmapstate") == [
            (1, 1, 1),
            (1, 2, 2),
            (1, 3, 2),
            (1, 4, 1),
            (1, 5, 1),
            (1, 7, 1),
        ]


def test_all_elements_in_one_batch() -> None:
    with MemoryPipeline.of(examples(None), parallelism=1) as pipeline:
        assert len(pipeline.run().batches) == 1
        outputs = pipeline.outputs()
        assert sorted(outputs.pop("count")) == sorted(COUNTS_OUTPUTS)
        assert outputs == EXPECTED


_SCRIPT = """
import sys
from pathlib import Path
from state_engine.spark.session import local_session
from state_engine.machine.settings import SparkSettings
sys.path.insert(0, {project!r})
from tests.porting.test_examples_of_flink import Pipeline, examples
spark = local_session(SparkSettings(master="local[2]", driver_memory="1g"))
Pipeline(Path({directory!r}), spark, examples(4), parallelism=1).run(max_batches=1)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_process_of_its_own_goes_on_where_another_one_ended(tmp_path: Path, spark: SparkSession) -> None:
    project = Path(__file__).parents[2]
    script = _SCRIPT.format(project=str(project), directory=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pipeline = Pipeline(tmp_path, spark, examples(4), parallelism=1)
    assert len(pipeline.run().batches) == 1
    outputs = pipeline.outputs()
    assert sorted(outputs.pop("count")) == sorted(COUNTS_OUTPUTS)
    assert outputs == EXPECTED
