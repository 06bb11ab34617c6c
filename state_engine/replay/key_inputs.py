"""The rows of one key among the inputs of recorded micro-batches, read from the sources again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import PySparkException

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import StatelakeError
from state_engine.core.types.beyond_python import python_rows
from state_engine.job.graph import OperatorInput, OperatorNode, SourceNode, output_of, upstream
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.planning import InputPlanner, RecordedInput
from state_engine.queries.spark_sql import plain_message
from state_engine.sources.base import Slice


@dataclass(frozen=True)
class RowsOfKey:
    """Rows of a key that came in or went out.

    Attributes:
        operator: that they came into; empty of outputs.
        place: the source, or the sink.
        count: how many there are.
        rows: the first of them.
        problem: why they are not known; empty where they are.
    """

    operator: str
    place: str
    count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class KeyInputs:
    """Reads inputs of one job again.

    Attributes:
        job: the code, which parses rows and makes keys as the run did where it is the same.
    """

    job: StatefulJob
    planner: InputPlanner
    executor: GraphExecutor

    def notes(self, uid: str) -> list[str]:
        """What is not read again of an operator's inputs."""
        operator = self.job.operators.get(uid)
        if operator is None:
            return [f"inputs of {uid}: the job's code has no such operator"]
        notes = []
        for one in operator.inputs:
            before = _operators_before(one)
            if one.key is None:
                notes.append(f"inputs of {uid}: a stream without keys goes to all subtasks, and is left out")
            elif before:
                notes.append(
                    f"inputs of {uid}: they are outputs of {', '.join(before)}: explain a key of that"
                )
        return notes

    def rows(
        self, path: Sequence[CheckpointRow], uid: str, key_hash: int, *, limit: int
    ) -> Iterator[RowsOfKey]:
        operator = self.job.operators.get(uid)
        if operator is None:
            return
        for place, one in enumerate(operator.inputs):
            if one.key is not None and not _operators_before(one):
                yield self._of_input(path, operator, place, key_hash, limit=limit)

    def _of_input(
        self, path: Sequence[CheckpointRow], operator: OperatorNode, place: int, key_hash: int, *, limit: int
    ) -> RowsOfKey:
        parent = operator.inputs[place].parent
        names = sorted({node.name for node in upstream(parent) if isinstance(node, SourceNode)})
        read = RowsOfKey(operator.uid, ", ".join(names))
        try:
            slices = {name: part for name in names if (part := self._slice(path, name)) is not None}
            if not slices:
                return read
            batch = _again(path[-1], path[:-1], slices)
            held = self.executor.rows_of_key(operator, place, batch, key_hash, limit=limit)
            return replace(read, count=held.count, rows=python_rows(held.rows))
        except StatelakeError as error:
            return replace(read, problem=str(error))
        except PySparkException as error:
            return replace(read, problem=f"it can no longer be read: {plain_message(error)}")

    def _slice(self, path: Sequence[CheckpointRow], name: str) -> Slice | None:
        reads = RecordedInput([path[-1]])
        part = self.planner.recorded(name, self.job.sources[name].source, path[:-1], reads)
        return None if part is None or part.without_rows else part


def _operators_before(one: OperatorInput) -> list[str]:
    return sorted({place[0] for node in upstream(one.parent) if (place := output_of(node)) is not None})


def _again(row: CheckpointRow, before: Sequence[CheckpointRow], slices: dict[str, Slice]) -> BatchContext:
    return BatchContext(
        write_id="",
        path=list(before),
        slices=slices,
        clock_ms=row.clock_ms,
        watermarks_ms={},
        parameters={},
        checkpoint_id=row.checkpoint_id,
        parallelism={},
    )
