"""Ported programs with checkpoint hooks, stateful sources and buffering sinks; in the harness and in memory.

`tests/microbatch/test_operator_state_on_spark.py` runs such functions on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from state_engine import (
    CheckpointListener,
    DataStream,
    ListCheckpointed,
    MapFunction,
    RuntimeContext,
    SinkFunction,
    StatefulJob,
    Types,
)
from state_engine.testing import OperatorHarness
from tests.support.flink_examples import Buffering, CounterSource
from tests.support.pipelines import MemoryPipeline

parallelisms = pytest.mark.parametrize("parallelism", [1, 4])
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [(letter, n) for n, letter in enumerate("abcdefghij")]


class BufferingSink(SinkFunction, Buffering):
    """Sends elements in groups: a line of a file each. What is left over is state until the next checkpoint."""

    def __init__(self, threshold: int, path: Path) -> None:
        super().__init__(threshold, PAIR)
        self.path = path

    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        for group in self.groups(tuple(value)):
            with self.path.open("a") as file:
                file.write(" ".join(f"{name}{n}" for name, n in group) + "\n")


def groups(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def buffering(sent: Path) -> Callable[[StatefulJob], Mapping[str, DataStream]]:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=3)
        pairs.add_sink(BufferingSink(2, sent), uid="buffering")
        return {}

    return build


@parallelisms
def test_a_buffering_sink_sends_whole_groups_across_restarts_and_a_rescale(
    tmp_path: Path, parallelism: int
) -> None:
    """Three batches, each of a new job; then one subtask takes over the state of the others."""
    sent, in_harness = tmp_path / "sent", tmp_path / "in_harness"
    harness = OperatorHarness(BufferingSink(2, in_harness), parallelism=parallelism)
    with MemoryPipeline.of(buffering(sent)) as pipeline:
        for batch in range(3):
            pipeline.run(max_batches=1, parallelism=parallelism)
            harness.process(PAIRS[batch * 3 : batch * 3 + 3])
        (ref,) = (r for r in pipeline.checkpoints()[-1].operator_state if r.operator == "buffering")
        assert ref.elements == 9 - 2 * len(groups(sent))
        assert pipeline.run(parallelism=1).caught_up
    last = BufferingSink(2, in_harness)
    OperatorHarness.restored(last, harness.snapshot(), parallelism=1).process(PAIRS[9:])

    for path in (sent, in_harness):
        assert {len(group) for group in groups(path)} == {2}
        assert sorted(name for group in groups(path) for name in group) == [f"{k}{n}" for k, n in PAIRS]
    if parallelism == 1:
        assert groups(sent) == groups(in_harness)


class Double(MapFunction):
    def map(self, value: int) -> int:
        return value * 2


def doubled(job: StatefulJob) -> Mapping[str, DataStream]:
    numbers = job.source("counter", CounterSource(), output_type=Types.LONG(), max_rows_per_batch=5)
    return {"doubled": numbers.map(Double(), output_type=Types.LONG())}


@parallelisms
def test_a_counter_source_has_no_gap_and_no_repeat(parallelism: int) -> None:
    harness = OperatorHarness(CounterSource())
    expected: list[int] = []
    with MemoryPipeline.of(doubled, parallelism=parallelism) as pipeline:
        for batches in (1, 2):  # of a job of its own each
            pipeline.run(max_batches=batches)
            harness = OperatorHarness.restored(CounterSource(), harness.snapshot())
            expected += [
                n for _ in range(batches) for n in OperatorHarness(Double()).process(harness.collect(5)[0])
            ]
        assert expected == list(range(0, 30, 2))
        assert sorted(pipeline.outputs()["doubled"]) == expected


class Numbered(MapFunction, ListCheckpointed, CheckpointListener):
    """Numbers its elements, and writes down the checkpoints of which it was notified."""

    def __init__(self, log: Path) -> None:
        self.log, self.number, self.name = log, 0, ""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.name = runtime_context.get_task_name()

    def map(self, value: Any) -> Any:
        self.number += 1
        return value[0], self.number

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.number]

    def restore_state(self, state: list[int]) -> None:
        self.number = sum(state)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with self.log.open("a") as file:
            file.write(f"{checkpoint_id}\n")


def test_a_listener_is_notified_of_every_checkpoint_in_order(tmp_path: Path) -> None:
    """In a job, subtasks are notified at the start of the next micro-batch, so not of the last checkpoint yet."""

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        pairs = job.from_collection(PAIRS[:6], PAIR, name="pairs", max_rows_per_batch=2)
        return {"numbered": pairs.map(Numbered(tmp_path / "in_job"), output_type=PAIR).uid("numbered")}

    def outputs(harness: OperatorHarness) -> Iterable[Any]:
        for at in (0, 2, 4):
            yield from harness.process(PAIRS[at : at + 2])

    with MemoryPipeline.of(build, parallelism=1) as pipeline:
        pipeline.run()
        numbered = pipeline.outputs()["numbered"]
    expected = list(outputs(OperatorHarness(Numbered(tmp_path / "in_harness"))))
    assert expected == [(letter, n) for n, letter in enumerate("abcdef", 1)]
    assert numbered == expected
    assert (tmp_path / "in_harness").read_text().split() == ["1", "2", "3"]
    assert (tmp_path / "in_job").read_text().split() == ["1", "2"]
