"""``ComparisonReport``: what differs between two branches, row by row: outputs of every sink, and every keyed state.

Outputs are those that the micro-batches of either path staged since their common ancestor, as multisets of rows;
where a restore kept outputs in a sink, that is not looked at. State is that of the two heads. Differences are
DataFrames over files that the checkpoints list by name, counted by one Spark job. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorStateSchema
from state_engine.core.checkpoints.lineage import Rows
from state_engine.core.checkpoints.sink_moves import Outputs, content
from state_engine.core.errors import ConfigurationError
from state_engine.publication.output_reader import OutputReader
from state_engine.queries.state_pairs import StatePair, state_pairs
from state_engine.queries.state_reader import read_state
from state_engine.queries.stored_entries import key_schema
from state_engine.sinks.staging import Staging
from state_engine.storage.layout import JobLayout

COUNT = "_rows"
"""Column of differing outputs: how many more of this row there are on that side."""


@dataclass(frozen=True)
class OutputDifference:
    """Outputs of one sink.

    Attributes:
        sink: name.
        only_old, only_new: rows that are there more often on the one side, and in COUNT how much more often.
        rows_only_old, rows_only_new: sums of those.
    """

    sink: str
    only_old: DataFrame
    only_new: DataFrame
    rows_only_old: int
    rows_only_new: int


@dataclass(frozen=True)
class StateDifference:
    """One keyed state.

    Attributes:
        operator, state: names.
        changes: columns of the key, ``map_key`` for maps, ``change`` (added, removed, changed), and structs ``old`` and
            ``new`` with the field ``value``, null where there is none.
        added, removed, changed: number of keys, or of entries of maps.
    """

    operator: str
    state: str
    changes: DataFrame
    added: int
    removed: int
    changed: int


@dataclass(frozen=True)
class OperatorStateDifference:
    """One state of an operator that belongs to subtasks.

    Attributes:
        operator, state: names.
        old_elements, new_elements: over all subtasks.
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
        lines = [(what, ", ".join(f"{n} {k}" for k, n in found.items())) for what, found in self._counts()]
        width = max((len(what) for what, _ in lines), default=0)
        return "\n".join([heading, *(f"  {what:<{width}}  {told}" for what, told in lines)])

    def _counts(self) -> list[tuple[str, dict[str, int]]]:
        found = [
            (f"sink {o.sink}", {"only in old": o.rows_only_old, "only in new": o.rows_only_new})
            for o in self.outputs.values()
        ]
        found += [
            (f"state {s.operator}.{s.state}", {"added": s.added, "removed": s.removed, "changed": s.changed})
            for s in self.states
        ]
        found += [
            (f"operator state {s.operator}.{s.state}", {"changed": int(not s.same)})
            for s in self.operator_states
        ]
        return found


def compare(
    spark: SparkSession, layout: JobLayout, staging: Staging, rows: Rows, *, new: str, old: str
) -> ComparisonReport:
    """Compare the heads of two branches; see ``StateEngine.compare``."""
    heads = [_head(layout.job, rows, branch) for branch in (old, new)]
    paths = [lineage.path(rows, head.checkpoint_id) for head in heads]
    ancestor = lineage.common_ancestor(rows, heads[0].checkpoint_id, heads[1].checkpoint_id)
    since = [path[path.index(ancestor) + 1 :] if ancestor else path for path in paths]
    outputs = _outputs(OutputReader(spark, layout, staging), *map(content, since))
    states = changed_entries(spark, layout, paths)
    counts = _counted([*outputs.values(), *states.values()])
    return ComparisonReport(
        job=layout.job,
        old_id=heads[0].checkpoint_id,
        new_id=heads[1].checkpoint_id,
        ancestor_id=ancestor.checkpoint_id if ancestor else None,
        outputs={
            sink: _output_difference(sink, frame, found)
            for (sink, frame), found in zip(outputs.items(), counts, strict=False)
        },
        states=[
            _state_difference(names, frame, found)
            for (names, frame), found in zip(states.items(), counts[len(outputs) :], strict=True)
        ],
        operator_states=_operator_states(*heads),
    )


def _head(job: str, rows: Rows, branch: str) -> CheckpointRow:
    known = lineage.branches(rows)
    if branch not in known:
        raise ConfigurationError(f"job '{job}': there is no branch '{branch}'; there are {sorted(known)}")
    return known[branch]


# -- outputs -----------------------------------------------------------------------------------------------------------


def _outputs(reader: OutputReader, old: Outputs, new: Outputs) -> dict[str, DataFrame]:
    """By sink, the rows that are there more often on one side: negative counts are of the new one."""
    found: dict[str, DataFrame] = {}
    for sink in sorted({name for name, _ in (*old, *new)}):
        sides = [_rows_of(reader, sink, outputs) for outputs in (old, new)]
        if any(side is not None for side in sides):
            found[sink] = _difference(*sides, what=f"sink '{sink}'")
    return found


def _rows_of(reader: OutputReader, sink: str, outputs: Outputs) -> DataFrame | None:
    """All outputs of a sink on one path, of whichever place and schema it had; None where there are none."""
    parts = []
    for (name, _), files in outputs.items():
        staged = {file: origin.sink for file, origin in files.items()} if name == sink else {}
        for schema in dict.fromkeys(s.schema for s in staged.values()):
            chosen = [file for file, s in staged.items() if s.schema == schema]
            parts.append(reader.read(staged[chosen[0]], chosen))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts) if parts else None


def _output_difference(sink: str, frame: DataFrame, counts: Mapping[str, int]) -> OutputDifference:
    old = frame.where(F.col(COUNT) > 0)
    new = frame.where(F.col(COUNT) < 0).withColumn(COUNT, -F.col(COUNT))
    return OutputDifference(sink, old, new, counts["old"], counts["new"])


# -- keyed state -------------------------------------------------------------------------------------------------------


def changed_entries(
    spark: SparkSession,
    layout: JobLayout,
    paths: Sequence[list[CheckpointRow]],
    wanted: Collection[tuple[str, str]] | None = None,
) -> dict[tuple[str, str], DataFrame]:
    """By operator and state, what differs between the ends of two paths; all states, or those of a wanted name."""
    found: dict[tuple[str, str], DataFrame] = {}
    for pair in state_pairs(*paths):
        if wanted is not None and not pair.names & set(wanted):
            continue
        what = f"state '{pair.state}' of operator '{pair.operator}'"
        _check_keys(pair, what)
        sides = [
            read_state(spark, layout, path, pair.operator, s.schema.name, shown=pair.shown(s)) if s else None
            for path, s in zip(paths, (pair.old, pair.new), strict=True)
        ]
        found[pair.operator, pair.state] = _by_key(_difference(*sides, what=what))
    return found


def _check_keys(pair: StatePair, what: str) -> None:
    """Raise ConfigurationError where the type of the key was changed between the two sides."""
    old, new = (key_schema(side.operator) if side else None for side in (pair.old, pair.new))
    if old is not None and new is not None and not old.is_stored_like(new):
        raise ConfigurationError(
            f"{what} cannot be compared: it is keyed by another type on the two sides, {old.declared_text} and "
            f"{new.declared_text}. Compare other states, or checkpoints on one side of the change"
        )


def _by_key(difference: DataFrame) -> DataFrame:
    """One row a key (and map key) with what it had and what it has."""
    keys = [c for c in difference.columns if c not in ("value", COUNT)]
    value = F.struct("value")
    both = difference.groupBy(*(F.col(f"`{k}`") for k in keys)).agg(
        F.first(F.when(F.col(COUNT) > 0, value), ignorenulls=True).alias("old"),
        F.first(F.when(F.col(COUNT) < 0, value), ignorenulls=True).alias("new"),
    )
    change = (
        F.when(F.col("old").isNull(), "added").when(F.col("new").isNull(), "removed").otherwise("changed")
    )
    return both.withColumn("change", change)


def _state_difference(names: tuple[str, str], frame: DataFrame, counts: Mapping[str, int]) -> StateDifference:
    numbers = (counts.get(kind, 0) for kind in ("added", "removed", "changed"))
    return StateDifference(*names, frame, *numbers)


# -- operator state ----------------------------------------------------------------------------------------------------


def _operator_states(old: CheckpointRow, new: CheckpointRow) -> list[OperatorStateDifference]:
    sides = [
        {(ref.operator, s.name): s for ref in head.operator_state for s in ref.states} for head in (old, new)
    ]
    found = []
    for names in sorted({*sides[0], *sides[1]}):
        a, b = (side.get(names) for side in sides)
        found.append(OperatorStateDifference(*names, _elements(a), _elements(b), same=_lists(a) == _lists(b)))
    return found


def _elements(state: OperatorStateSchema | None) -> int:
    return sum(part.elements for part in state.parts) if state else 0


def _lists(state: OperatorStateSchema | None) -> dict[int, tuple[int, str]]:
    """Length and digest of every list that is not empty."""
    return {p.subtask: (p.elements, p.digest) for p in state.parts if p.elements} if state else {}


# -- rows --------------------------------------------------------------------------------------------------------------


def _difference(old: DataFrame | None, new: DataFrame | None, *, what: str) -> DataFrame:
    """Rows that are there more often on one side, with COUNT: above zero for the old one, below for the new one."""
    sides = [(side, number) for side, number in ((old, 1), (new, -1)) if side is not None]
    frames = [side.withColumn(COUNT, F.lit(number)) for side, number in sides]
    try:
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    except AnalysisException as error:
        raise ConfigurationError(
            f"{what} cannot be compared: its columns were changed in a way that no rows go with both ({error})"
        ) from error
    columns = [F.col(f"`{c}`") for c in rows.columns if c != COUNT]
    return rows.groupBy(*columns).agg(F.sum(COUNT).alias(COUNT)).where(F.col(COUNT) != 0)


def _counted(frames: Sequence[DataFrame]) -> list[dict[str, int]]:
    """How much of each kind is in each frame: of outputs, rows by side; of state, keys by change."""
    if not frames:
        return []
    parts = []
    for place, frame in enumerate(frames):
        if "change" in frame.columns and COUNT not in frame.columns:
            kinds = frame.groupBy(F.col("change").alias("kind")).agg(F.count(F.lit(1)).alias("n"))
        else:
            side = F.when(F.col(COUNT) > 0, "old").otherwise("new")
            kinds = frame.groupBy(side.alias("kind")).agg(F.sum(F.abs(COUNT)).alias("n"))
        parts.append(kinds.select(F.lit(place).alias("place"), "kind", "n"))
    found: list[dict[str, int]] = [{} for _ in frames]
    for place, kind, number in reduce(DataFrame.unionAll, parts).collect():
        found[place][kind] = number
    return [{"old": 0, "new": 0, **one} for one in found]
