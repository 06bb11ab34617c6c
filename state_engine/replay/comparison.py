"""``ComparisonReport``: what differs between two branches, row by row: outputs of every sink, and every keyed state.

Outputs are those that the micro-batches of either path staged since their common ancestor, as multisets of rows;
where a restore kept outputs in a sink, that is not looked at. State is that of the two heads. Differences are
DataFrames over files that the checkpoints list by name, counted by one Spark job. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorStateSchema
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.sink_moves import SinkContents, content
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import quoted
from state_engine.publishing.output_reader import OutputReader
from state_engine.replay.differences import (
    COUNT,
    RowDifference,
    StateDifference,
    changed_entries,
    counted,
    differing_rows,
    sides,
)
from state_engine.spark.engine_session import handed_out
from state_engine.storage.layout import JobLayout


@dataclass(frozen=True)
class OutputDifference(RowDifference):
    """Outputs of one sink."""

    sink: str


@dataclass(frozen=True)
class OutputComparison(RowDifference):
    """Two outputs, each of a job of its own."""

    keys_differing: int


@dataclass(frozen=True)
class OperatorStateDifference:
    """One state of an operator that belongs to subtasks.

    Attributes:
        same: whether every subtask has the same elements in the same order.
    """

    operator: str
    state: str
    old_elements: int
    new_elements: int
    same: bool


@dataclass(frozen=True)
class ComparisonReport:
    """See the module docstring; ``old`` is the branch that was compared against.

    Attributes:
        job: name.
        old_id, new_id: the heads.
        ancestor_id: the newest checkpoint on both paths; None where they began apart.
        outputs: by sink, those with outputs on either side.
        states: keyed states of either side.
        operator_states: of either side.
    """

    job: str
    old_id: int
    new_id: int
    ancestor_id: int | None
    outputs: Mapping[str, OutputDifference]
    states: Sequence[StateDifference]
    operator_states: Sequence[OperatorStateDifference]

    @property
    def is_equal(self) -> bool:
        """Whether outputs and states are the same."""
        return not any(sum(numbers.values()) for _, numbers in self._counts())

    def summary(self) -> str:
        """A small table: one line a sink and state, with what differs."""
        heading = f"job {self.job}: checkpoint {self.old_id} (old) and {self.new_id} (new)"
        lines = [
            (what, ", ".join(f"{n} {k}" for k, n in numbers.items())) for what, numbers in self._counts()
        ]
        width = max((len(what) for what, _ in lines), default=0)
        return "\n".join([heading, *(f"  {what:<{width}}  {counts}" for what, counts in lines)])

    def _counts(self) -> list[tuple[str, dict[str, int]]]:
        lines = [
            (f"sink {o.sink}", {"only in old": o.rows_only_old, "only in new": o.rows_only_new})
            for o in self.outputs.values()
        ]
        lines += [
            (f"state {s.operator}.{s.state}", {"added": s.added, "removed": s.removed, "changed": s.changed})
            for s in self.states
        ]
        lines += [
            (f"operator state {s.operator}.{s.state}", {"changed": int(not s.same)})
            for s in self.operator_states
        ]
        return lines


def compare(
    spark: SparkSession, layout: JobLayout, history: History, *, new: str, old: str
) -> ComparisonReport:
    """Compare the heads of two branches; see ``StateEngine.compare``."""
    heads = [_head(layout.job, history, branch) for branch in (old, new)]
    paths = [history.path(head.checkpoint_id) for head in heads]
    ancestor = history.common_ancestor(heads[0].checkpoint_id, heads[1].checkpoint_id)
    since = [path[path.index(ancestor) + 1 :] if ancestor else path for path in paths]
    outputs = _outputs(OutputReader(spark, layout), *map(content, since))
    states = changed_entries(spark, layout, paths)
    counts = counted([*outputs.values(), *states.values()])
    return ComparisonReport(
        job=layout.job,
        old_id=heads[0].checkpoint_id,
        new_id=heads[1].checkpoint_id,
        ancestor_id=ancestor.checkpoint_id if ancestor else None,
        outputs={
            sink: OutputDifference(*sides(handed_out(frame)), number["old"], number["new"], sink=sink)
            for (sink, frame), number in zip(outputs.items(), counts, strict=False)
        },
        states=[
            StateDifference(*names, handed_out(frame), number["added"], number["removed"], number["changed"])
            for (names, frame), number in zip(states.items(), counts[len(outputs) :], strict=True)
        ],
        operator_states=_operator_states(*heads),
    )


def _head(job: str, history: History, branch: str) -> CheckpointRow:
    known = history.branches
    if branch not in known:
        raise ConfigurationError(f"job '{job}': there is no branch '{branch}'; there are {sorted(known)}")
    return known[branch]


# -- outputs -----------------------------------------------------------------------------------------------------------


def _outputs(reader: OutputReader, old: SinkContents, new: SinkContents) -> dict[str, DataFrame]:
    """By sink, the rows that are there more often on one side: negative counts are of the new one."""
    frames: dict[str, DataFrame] = {}
    for sink in sorted({name for name, _ in (*old, *new)}):
        both = [_rows_of(reader, sink, outputs) for outputs in (old, new)]
        if any(side is not None for side in both):
            frames[sink] = differing_rows(*both, what=f"sink '{sink}'")
    return frames


def _rows_of(reader: OutputReader, sink: str, outputs: SinkContents) -> DataFrame | None:
    """All outputs of a sink on one path, of whichever place and schema it had; None where there are none."""
    parts = []
    for (name, _), files in outputs.items():
        staged = {file: origin.sink for file, origin in files.items()} if name == sink else {}
        for schema in dict.fromkeys(s.schema for s in staged.values()):
            chosen = [file for file, s in staged.items() if s.schema == schema]
            parts.append(reader.read(staged[chosen[0]], chosen))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts) if parts else None


def compare_outputs(old: DataFrame, new: DataFrame, keys: Sequence[str]) -> OutputComparison:
    """Compare two outputs row by row; the order of rows is no matter.

    For a shadow run: begin a new job with the state of the one that it is to replace, run both on the same input and
    into sinks of their own, and switch when nothing differs.

    Args:
        keys: columns that identify what a row is about, for the count of keys that differ.
    """
    columns = old.columns
    if sorted(columns) != sorted(new.columns):
        raise ConfigurationError(f"the outputs have other columns: {columns} (old) and {new.columns} (new)")
    missing = [k for k in keys if k not in columns]
    if missing or not keys:
        raise ConfigurationError(f"keys must be some of the columns {columns}, not {list(keys)}")
    differing = differing_rows(old, new, what="the outputs")
    key = F.struct(*[F.col(quoted(k)) for k in keys])
    numbers = differing.agg(
        F.sum(F.greatest(F.col(COUNT), F.lit(0))).alias("old"),
        F.sum(F.greatest(-F.col(COUNT), F.lit(0))).alias("new"),
        F.count_distinct(key).alias("keys"),
    ).collect()[0]
    return OutputComparison(
        *sides(differing), numbers["old"] or 0, numbers["new"] or 0, keys_differing=numbers["keys"]
    )


# -- operator state ----------------------------------------------------------------------------------------------------


def _operator_states(old: CheckpointRow, new: CheckpointRow) -> list[OperatorStateDifference]:
    sides = [
        {(ref.operator, s.name): s for ref in head.operator_state for s in ref.states} for head in (old, new)
    ]
    differences = []
    for names in sorted({*sides[0], *sides[1]}):
        a, b = (side.get(names) for side in sides)
        differences.append(
            OperatorStateDifference(*names, _elements(a), _elements(b), same=_lists(a) == _lists(b))
        )
    return differences


def _elements(state: OperatorStateSchema | None) -> int:
    return sum(part.elements for part in state.parts) if state else 0


def _lists(state: OperatorStateSchema | None) -> dict[int, tuple[int, str]]:
    return {p.subtask: (p.elements, p.digest) for p in state.parts if p.elements} if state else {}
