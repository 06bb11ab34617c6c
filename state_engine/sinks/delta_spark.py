"""Publishes to Delta tables that Kernel cannot write to, through Spark's writer: kind ``delta_spark``.

Chosen by ``DeltaSink`` where the table has partitions, column mapping, NOT NULL columns, constraints, generated or
identity columns. Delta itself judges the rows; where it refuses some, they stay staged until the table takes them.
"""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import SinkError
from state_engine.sinks.delta import LogPublisher, check_active, check_published, same_table
from state_engine.sinks.delta_tables import check_spark_columns, check_withdrawals, has_lineage
from state_engine.sinks.spark_writer import write_once


class SparkDeltaPublisher(LogPublisher):
    """Publishes through Spark's writer."""

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        if self._checked(staged, app) < checkpoint_id:
            write_once(self._kernel, staged, app, checkpoint_id)
        check_published(staged, app, checkpoint_id, active=self._kernel.active_files)

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        super().check_seen(staged, app, checkpoint_id)
        # whoever published it may have died before that was on the disk, and the next commit syncs its own files
        self._kernel.outlasting(staged.path, files=True)

    def withdraws(self, staged: StagedSink) -> bool:
        return has_lineage(staged.schema)

    def check_withdrawable(self, staged: StagedSink) -> None:
        self._checked(staged)
        check_active(self._kernel, staged, lineage=True)

    def _checked(self, staged: StagedSink, app: str = "") -> int:
        """The highest checkpoint published, of the right table, which can do what the row asks for."""
        facts, seen = same_table(self._kernel, staged, app)
        check_spark_columns(staged.path, facts, staged.schema)
        check_withdrawals(staged, facts)
        if staged.withdrawn and not has_lineage(staged.schema):
            raise SinkError(
                f"sink '{staged.name}': outputs cannot be withdrawn from {staged.path}: Spark writes this table, so "
                "only a lineage column could identify its rows (DeltaSink(…, lineage=True), from the first row on). "
                'Keep the outputs with outputs="keep" (--outputs keep)'
            )
        return seen
