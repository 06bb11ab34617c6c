"""What Dagster is shown of time partitions: one materialisation a partition and asset, each with its own data version.

The version is the id of the checkpoint that the partition ends with. A partition is shown when its outputs are what
readers see: at once where it ran on ``main``, after the swap where a backfill ran it on a branch. Dagster gives all
partitions of a run the version of one returned result, so only a run of a single partition returns any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from py4j.protocol import Py4JError

from state_engine import BatchReport, CheckpointRow, StatefulJob
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.external.external_runner import JobRunner
from state_engine.dagster.metadata import (
    checkpoint_metadata,
    history_metadata,
    markdown,
    sink_metadata,
    state_metadata,
    table_metadata,
)
from state_engine.dagster.micro_batches import DATA_VERSION_TAG, requester_of
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key, table_key
from state_engine.microbatch.partition_runs import PartitionStatus, by_partition

MOST_LINES = 60
"""Of the table of partitions: the newest ones."""


@dataclass
class PartitionEvents:
    """Turns the engine's reports into log lines and materialisations while a run goes on.

    Attributes:
        declared: all assets of the job; those that were not selected are shown as well.
        returned: the only partition of the run, whose events are results of it; None where there are more.
    """

    context: dg.AssetExecutionContext
    engine: JobRunner
    dagster_job: DagsterJob
    declared: Collection[dg.AssetKey]
    returned: str | None = None
    batches: dict[int, BatchReport] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    _held: str | None = None

    @property
    def job(self) -> StatefulJob:
        return self.dagster_job.job

    @property
    def checkpoint(self) -> dg.AssetKey:
        return self.dagster_job.key(checkpoint_key(self.job.name))

    @property
    def requester(self) -> str:
        return requester_of(self.context)

    def path(self) -> list[CheckpointRow]:
        """From the first row to the head; empty where the job never ran."""
        return self._rows().main_path

    def batch(self, report: BatchReport) -> None:
        """A batch was committed; on ``main`` it is published, too."""
        late = f", {report.late_rows:,} late" if report.late_rows else ""
        log = self.context.log.warning if late else self.context.log.info
        log(
            f"partition {report.partition}, checkpoint {report.checkpoint_id}: {counted(report.rows_in, 'row')} "
            f"in{late}, "
            f"{report.seconds:.2f} s"
        )
        self.batches[report.checkpoint_id] = report
        if self._rows()[report.checkpoint_id].branch == MAIN:
            self.flush()
            self._held = report.partition

    def flush(self) -> None:
        """Log the last partition, which turned out not to be the run's result."""
        held, self._held = self._held, None
        if held is not None and held != self.returned:
            self._log(held, self._assets(self.path(), held, {}))

    def failed(self) -> None:
        """Log what was committed before a failure, also a checkpoint whose publishing failed."""
        try:
            held, self._held, path = self._held, None, self.path()
            known = History(path)
            if held is not None:
                self._log(held, self._assets(path, held, {}))
            for partition, rows in by_partition(path).items():
                if rows[-1].requested_by == self.requester and not self._is_shown(partition, rows):
                    shown = checkpoint_metadata(rows[-1], self.batches.get(rows[-1].checkpoint_id), known)
                    self._log(partition, {self.checkpoint: (rows[-1].checkpoint_id, shown)})
        except (StatelakeError, Py4JError) as error:  # must not hide the failure that led here
            self.context.log.warning(f"the checkpoints could not be looked at: {error}")

    def finish(
        self, partitions: Sequence[str], whole_run: Mapping[str, Any], states: Sequence[PartitionStatus]
    ) -> Iterator[dg.MaterializeResult[None]]:
        """Show partitions, and beside the one that was asked for, or the last one, what is true of the whole run."""
        self._held, path = None, self.path()
        runs = by_partition(path)
        left = [p for p in partitions if p in runs and not self._is_shown(p, runs[p])]
        main = self.returned if self.returned in left else left[-1] if left else None
        for partition in left:
            more: Mapping[str, Any] = {}
            if partition == main:
                more = {**whole_run, **partitions_metadata(states), **history_metadata(path)}
            assets = self._assets(path, partition, more)
            if partition == self.returned:
                yield from self._results(partition, assets)
            else:
                self._log(partition, assets)

    def is_in_step(self, partition: str, checkpoint_id: int | None) -> bool:
        """Whether every asset that was asked for shows this checkpoint as the version of a partition."""
        return all(
            self._version(key, partition) == str(checkpoint_id) for key in self.context.selected_asset_keys
        )

    def observe(self, metadata: Mapping[str, Any]) -> None:
        """Show what was found out, and changes nothing."""
        self.context.log_event(
            dg.AssetObservation(self.checkpoint, partition=self.returned, metadata=dict(metadata))
        )

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _rows(self) -> History:
        return History(self.engine.checkpoints(self.job))

    def _is_shown(self, partition: str, rows: Sequence[CheckpointRow]) -> bool:
        return self.shown.get(partition) == rows[-1].checkpoint_id

    def _assets(
        self, path: Sequence[CheckpointRow], partition: str, more: Mapping[str, Any]
    ) -> dict[dg.AssetKey, tuple[int, Mapping[str, Any]]]:
        rows = by_partition(list(path))[partition]
        last, job, key_of = rows[-1], self.job.name, self.dagster_job.key
        reports = [self.batches[r.checkpoint_id] for r in rows if r.checkpoint_id in self.batches]
        known = History(path)
        shown = checkpoint_metadata(last, reports[-1] if reports else None, known)
        metadata: dict[dg.AssetKey, Mapping[str, Any]] = {self.checkpoint: {**shown, **more}}
        for sink in self.job.sinks:  # also one that got nothing: a partition without rows is done, too
            metadata[key_of(sink_key(job, sink))] = sink_metadata(sink, rows)
        for operator in last.operators:
            for state in operator.states:
                key = key_of(state_key(job, operator.uid, state.name))
                metadata[key] = state_metadata(
                    known.path(last.checkpoint_id), operator.uid, state.name, reports
                )
        moves = [move for report in reports for move in report.tables]
        tables = {
            key_of(table_key(job, name)): table_metadata(name, moves, last.checkpoint_id)
            for name in self.job.published
        }
        for key in self.declared:
            if key not in tables:
                metadata.setdefault(key, {})
        metadata |= tables  # below their states, which come first
        return {key: (last.checkpoint_id, values) for key, values in metadata.items()}

    def _results(
        self, partition: str, assets: Mapping[dg.AssetKey, tuple[int, Mapping[str, Any]]]
    ) -> Iterator[dg.MaterializeResult[None]]:
        rest = {}
        for key, (version, metadata) in assets.items():
            if key in self.context.selected_asset_keys:
                yield dg.MaterializeResult(
                    asset_key=key, metadata=dict(metadata), data_version=dg.DataVersion(str(version))
                )
                self.shown[partition] = version
            else:
                rest[key] = (version, metadata)
        self._log(partition, rest)

    def _log(self, partition: str, assets: Mapping[dg.AssetKey, tuple[int, Mapping[str, Any]]]) -> None:
        for key, (version, metadata) in assets.items():
            if key in self.declared:
                self.shown[partition] = version
                tags = {DATA_VERSION_TAG: str(version)}
                self.context.log_event(
                    dg.AssetMaterialization(key, partition=partition, metadata=dict(metadata), tags=tags)
                )

    def _version(self, key: dg.AssetKey, partition: str) -> str | None:
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
        records = self.context.instance.fetch_materializations(wanted, limit=1).records
        event = records[0].asset_materialization if records else None
        return (event.tags or {}).get(DATA_VERSION_TAG) if event else None


def partitions_metadata(states: Sequence[PartitionStatus]) -> dict[str, Any]:
    """How many partitions there are in each state, and a table of the newest ones."""
    lines = [
        [one.key, one.state, "" if one.checkpoint_id is None else one.checkpoint_id, one.rows, one.late_rows]
        for one in states
    ]
    # those before the last that was run, and a few that wait
    reached = max((i for i, one in enumerate(states) if one.state != "missing"), default=-1)
    end = min(len(lines), reached + 1 + MOST_LINES // 4)
    header = ["partition", "state", "checkpoint", "rows", "late rows"]
    return {
        **{f"partitions_{s}": sum(one.state == s for one in states) for s in ("done", "stale", "missing")},
        "partitions": dg.MetadataValue.md(markdown(header, lines[max(0, end - MOST_LINES) : end])),
    }
