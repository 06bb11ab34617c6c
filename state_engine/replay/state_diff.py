"""What changed in keyed state between two checkpoints, entry by entry; by the comparison that replays use.

The checkpoints may lie on any paths. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import declared_states
from state_engine.core.errors import ConfigurationError
from state_engine.replay.comparison import changed_entries
from state_engine.storage.layout import JobLayout


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
        found = {row["change"]: row["count"] for row in self.changes.groupBy("change").count().collect()}
        return {kind: found.get(kind, 0) for kind in ("added", "removed", "changed")}


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
    wanted = {names for names in known if operator in (None, names[0]) and state in (None, names[1])}
    if not wanted and (operator or state):
        told = ", ".join(sorted(f"{uid}.{name}" for uid, name in known)) or "none"
        raise ConfigurationError(
            f"job '{layout.job}': no state '{state or 'of any name'}' of operator '{operator or 'any'}' at checkpoint "
            f"{before[-1].checkpoint_id} or {after[-1].checkpoint_id}; there are {told}"
        )
    found = changed_entries(spark, layout, [list(before), list(after)], wanted)
    return [StateDiff(*names, _plain(frame)) for names, frame in found.items()]


def _plain(changes: DataFrame) -> DataFrame:
    keys = [F.col(f"`{c}`") for c in changes.columns if c not in ("change", "old", "new")]
    return changes.select(
        *keys, "change", F.col("old.value").alias("before"), F.col("new.value").alias("after")
    )
