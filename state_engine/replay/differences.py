"""What differs between two tables: rows that are there more often on one side, and entries of keyed state by key.

The one comparison behind ``compare``, ``diff`` and ``compare_outputs``. Differences are DataFrames over both sides;
only counting them, or looking at them, runs a Spark job. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import DeclaredState, declared_states
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import quoted
from state_engine.core.types.type_text import shown_storage
from state_engine.queries.state_reader import read_state
from state_engine.queries.stored_entries import key_schema
from state_engine.spark.engine_session import handed_out
from state_engine.storage.layout import JobLayout


@dataclass(frozen=True)
class StatePair:
    """A state at the ends of two paths; None where it is not there."""

    operator: str
    state: str
    old: DeclaredState | None
    new: DeclaredState | None
    inherited: bool = False

    @property
    def names(self) -> set[tuple[str, str]]:
        return {(self.operator, s.schema.name) for s in (self.old, self.new) if s is not None}

    def shown(self, side: DeclaredState) -> pa.DataType:
        """The type in which both sides are compared: fields that were renamed are called as on the new side."""
        like = self.new.schema.type if self.inherited and self.new is not None else None
        return shown_storage(side.schema.type, like=like)


def state_pairs(old: Sequence[CheckpointRow], new: Sequence[CheckpointRow]) -> list[StatePair]:
    """All keyed states at the end of either path, by operator and name."""
    shared = [a for a, b in zip(old, new, strict=False) if a.checkpoint_id == b.checkpoint_id]
    common = {_stored(s) for s in declared_states(shared)}
    before, after = declared_states(old), declared_states(new)
    by_stored = {_stored(s): s for s in before if _stored(s) in common}
    by_name = {_named(s): s for s in before if _stored(s) not in common}
    pairs = []
    for state in after:
        inherited = by_stored.pop(_stored(state), None)
        other = inherited or (None if _stored(state) in common else by_name.pop(_named(state), None))
        pairs.append(StatePair(*_named(state), other, state, inherited is not None))
    taken = {_named(s) for s in after}
    for state in (*by_stored.values(), *by_name.values()):
        uid, name = _named(state)
        while (uid, name) in taken:  # it was dropped, and another one has its name
            name = f"{name} (old)"
        taken.add((uid, name))
        pairs.append(StatePair(uid, name, state, None))
    return sorted(pairs, key=lambda pair: (pair.operator, pair.state))


def _stored(state: DeclaredState) -> tuple[str, str]:
    return state.operator.uid, state.schema.column_name


def _named(state: DeclaredState) -> tuple[str, str]:
    return state.operator.uid, state.schema.name


COUNT = "_rows"
"""Column of differing rows: how many more of this row there are on that side."""
_KINDS = ("old", "new", "added", "removed", "changed")

# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowDifference:
    """What two tables have not in common, as multisets of rows.

    Attributes:
        only_old, only_new: rows that are there more often on the one side, and in COUNT how much more often.
    """

    only_old: DataFrame
    only_new: DataFrame
    rows_only_old: int
    rows_only_new: int

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same rows, each as often."""
        return not (self.rows_only_old or self.rows_only_new)


def differing_rows(old: DataFrame | None, new: DataFrame | None, *, what: str) -> DataFrame:
    """Rows that are there more often on one side, with COUNT: above zero for the old one, below for the new one."""
    sides = [(side, number) for side, number in ((old, 1), (new, -1)) if side is not None]
    frames = [side.withColumn(COUNT, F.lit(number)) for side, number in sides]
    try:
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    except AnalysisException as error:
        raise ConfigurationError(
            f"{what} cannot be compared: its columns were changed in a way that no rows go with both ({error})"
        ) from error
    columns = [F.col(quoted(c)) for c in rows.columns if c != COUNT]
    return rows.groupBy(*columns).agg(F.sum(COUNT).alias(COUNT)).where(F.col(COUNT) != 0)


def sides(differing: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Differing rows of the old side, and of the new one; COUNT is above zero in both."""
    new = differing.where(F.col(COUNT) < 0).withColumn(COUNT, -F.col(COUNT))
    return differing.where(F.col(COUNT) > 0), new


def counted(frames: Sequence[DataFrame]) -> list[dict[str, int]]:
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
    counts = [dict.fromkeys(_KINDS, 0) for _ in frames]
    for place, kind, number in reduce(DataFrame.unionAll, parts).collect():
        counts[place][kind] = number
    return counts


# -- keyed state -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateDifference:
    """One keyed state.

    Attributes:
        changes: columns of the key, ``map_key`` for maps, ``change`` (added, removed, changed), and structs ``old`` and
            ``new`` with the field ``value``, null where there is none.
    """

    operator: str
    state: str
    changes: DataFrame
    added: int
    removed: int
    changed: int


@dataclass(frozen=True)
class StateDiff:
    """What changed in one state.

    Attributes:
        operator, state: names.
        changes: columns of the key, ``map_key`` for maps, ``change`` (added, removed, changed), ``before`` and
            ``after``: values, null where there is none.
    """

    operator: str
    state: str
    changes: DataFrame

    def counts(self) -> dict[str, int]:
        """How many entries were added, removed and changed; runs a Spark job."""
        numbers = {row["change"]: row["count"] for row in self.changes.groupBy("change").count().collect()}
        return {kind: numbers.get(kind, 0) for kind in ("added", "removed", "changed")}


def diff_states(
    spark: SparkSession,
    layout: JobLayout,
    before: Sequence[CheckpointRow],
    after: Sequence[CheckpointRow],
    *,
    operator: str | None = None,
    state: str | None = None,
) -> list[StateDiff]:
    """One a state that is at the end of either path; see ``StateEngine.diff``."""
    known = {(s.operator.uid, s.schema.name) for path in (before, after) for s in declared_states(path)}
    wanted = {one for one in known if operator in (None, one[0]) and state in (None, one[1])}
    if not wanted and (operator or state):
        names = ", ".join(sorted(f"{uid}.{name}" for uid, name in known)) or "none"
        raise ConfigurationError(
            f"job '{layout.job}': no state '{state or 'of any name'}' of operator '{operator or 'any'}' at checkpoint "
            f"{before[-1].checkpoint_id} or {after[-1].checkpoint_id}; there are {names}"
        )
    changes = changed_entries(spark, layout, [list(before), list(after)], wanted)
    return [StateDiff(*state_of, handed_out(_plain(frame))) for state_of, frame in changes.items()]


def changed_entries(
    spark: SparkSession,
    layout: JobLayout,
    paths: Sequence[list[CheckpointRow]],
    wanted: Collection[tuple[str, str]] | None = None,
) -> dict[tuple[str, str], DataFrame]:
    """By operator and state, what differs between the ends of two paths; all states, or those of a wanted name."""
    frames: dict[tuple[str, str], DataFrame] = {}
    for pair in state_pairs(*paths):
        if wanted is not None and not pair.names & set(wanted):
            continue
        what = f"state '{pair.state}' of operator '{pair.operator}'"
        _check_keys(pair, what)
        sides = [
            read_state(spark, layout, path, pair.operator, s.schema.name, shown=pair.shown(s)) if s else None
            for path, s in zip(paths, (pair.old, pair.new), strict=True)
        ]
        frames[pair.operator, pair.state] = _by_key(differing_rows(*sides, what=what))
    return frames


def _check_keys(pair: StatePair, what: str) -> None:
    """Raise ConfigurationError where the type of the key was changed between the two sides."""
    old, new = (key_schema(side.operator) if side else None for side in (pair.old, pair.new))
    if old is not None and new is not None and not old.is_stored_like(new):
        raise ConfigurationError(
            f"{what} cannot be compared: it is keyed by another type on the two sides, {old.declared_text} and "
            f"{new.declared_text}. Compare other states, or checkpoints on one side of the change"
        )


def _by_key(difference: DataFrame) -> DataFrame:
    keys = [c for c in difference.columns if c not in ("value", COUNT)]
    value = F.struct("value")
    both = difference.groupBy(*(F.col(quoted(k)) for k in keys)).agg(
        F.first(F.when(F.col(COUNT) > 0, value), ignorenulls=True).alias("old"),
        F.first(F.when(F.col(COUNT) < 0, value), ignorenulls=True).alias("new"),
    )
    change = (
        F.when(F.col("old").isNull(), "added").when(F.col("new").isNull(), "removed").otherwise("changed")
    )
    return both.withColumn("change", change)


def _plain(changes: DataFrame) -> DataFrame:
    keys = [F.col(quoted(c)) for c in changes.columns if c not in ("change", "old", "new")]
    return changes.select(
        *keys, "change", F.col("old.value").alias("before"), F.col("new.value").alias("after")
    )
