"""Upgrades a root of an older format to this version's, in place.

For each job the table of checkpoints gets the columns that it lacks, then its rows are written anew in the new form, in
one commit that replaces the old files, then the table says its new format. The root says its new format when all its
jobs do, and only then will this version run them. So a crash leaves a root that is still refused, and the upgrade can
be run again: what is done is not done twice. State, changes and outputs are not touched. Runners of the older version
must be stopped before: they know nothing of this. Flink reads older savepoints instead, and writes new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION, FormatStep, steps_from, upgraded_row
from state_engine.core.errors import RootError
from state_engine.core.types.stored_form import added_fields, grown
from state_engine.core.types.type_parsing import from_spark_json
from state_engine.job.job_tables import add_columns
from state_engine.operations.root_repair import check_transactions
from state_engine.storage.checkpoint_files import (
    damaged_row,
    plain_rows,
    read_rows,
    with_digests,
    write_rows,
)
from state_engine.storage.delta.commit_actions import FileGroup
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import CHECKPOINTS_SCHEMA, ROOT_PROPERTY, JobLayout
from state_engine.storage.root import jobs_in, read_marker, write_marker
from state_engine.storage.row_digest import is_intact
from state_engine.storage.stores.files import write_parquet
from state_engine.storage.stores.locks import table_lock

_FORMAT = "statelake.format"


@dataclass(frozen=True)
class UpgradeReport:
    """What an upgrade did, or would do.

    Attributes:
        root: uri.
        before, after: formats; the same where there was nothing to do.
        steps: what changes, as texts, in order.
        jobs: whose tables are concerned; those that an earlier attempt finished are not.
        rows: rows of checkpoints that are rewritten.
        dry_run: whether nothing was done.
    """

    root: str
    before: int
    after: int
    steps: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    rows: int = 0
    dry_run: bool = False


def upgrade_root(
    uri: str, *, kernel: DeltaKernel, spark: SparkSession, dry_run: bool = False, lock_timeout_s: float = 60.0
) -> UpgradeReport:
    """Bring a root to this version's format; see the module docstring."""
    with table_lock(uri, timeout_s=lock_timeout_s):
        marker = read_marker(uri)
        if marker is None:
            raise RootError(f"there is no root at {uri}: run a job there first, or set another root")
        before = int(marker["format"])
        steps = steps_from(before, where=uri)
        if not steps:
            return UpgradeReport(uri, before, before, dry_run=dry_run)
        jobs, rows = [], 0
        for job in jobs_in(uri):
            check_transactions(uri, job, marker["root_id"])
            table = _Checkpoints(JobLayout(uri, job), kernel, spark, marker["root_id"])
            if table.format() < FORMAT_VERSION:
                jobs.append(job)
                rows += table.upgrade(dry_run=dry_run)
        if not dry_run:
            write_marker(uri, marker | {"format": str(FORMAT_VERSION)})
        changes = [f"format {step.version}: {step.changes}" for step in steps]
        return UpgradeReport(uri, before, FORMAT_VERSION, changes, jobs, rows, dry_run)


class _Checkpoints:
    def __init__(self, layout: JobLayout, kernel: DeltaKernel, spark: SparkSession, root_id: str) -> None:
        self._uri, self._kernel, self._spark, self._root_id = layout.checkpoints, kernel, spark, root_id

    def format(self) -> int:
        return int((self._kernel.properties(self._uri) or {}).get(_FORMAT, "0"))

    def upgrade(self, *, dry_run: bool) -> int:
        """Columns, rows, then the format; the number of rows."""
        steps = steps_from(self.format(), where=self._uri)
        files = [(p, t) for p in self._kernel.active_files(self._uri) if not _is_current(t := self._read(p))]
        if not dry_run:
            self._add_columns()
            if files:
                written = [self._written(table, steps) for _, table in files]
                self._kernel.change(self._uri, add=[FileGroup(written, {})], remove=[p for p, _ in files])
            self._say_format()
        return sum(table.num_rows for _, table in files)

    def _say_format(self) -> None:
        said = {_FORMAT: str(FORMAT_VERSION), ROOT_PROPERTY: self._root_id}
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in said.items())
        with table_lock(self._uri):
            self._spark.sql(f"ALTER TABLE delta.`{self._uri}` SET TBLPROPERTIES ({properties})")

    def _add_columns(self) -> None:
        facts = self._kernel.facts(self._uri)
        assert facts is not None
        have = pa.struct([(f["name"], from_spark_json(f["type"]).arrow) for f in facts.schema["fields"]])
        added = added_fields(have, grown(have, pa.struct(list(CHECKPOINTS_SCHEMA))))
        if added:
            with table_lock(self._uri):
                add_columns(self._spark, self._uri, added)

    def _read(self, path: str) -> pa.Table:
        return read_rows(self._uri, path)

    def _written(self, table: pa.Table, steps: list[FormatStep]) -> DataFile:
        """A file of the same rows in the new form, which no reader sees yet."""
        before = plain_rows(table)
        for row in before:
            if not is_intact(row):
                raise damaged_row(self._uri, row["checkpoint_id"], row["job"])
        rows = [upgraded_row(row, steps) for row in before]
        made = with_digests(pa.Table.from_pylist(rows, schema=CHECKPOINTS_SCHEMA))
        first = rows[0]
        name = f"checkpoint-{first['checkpoint_id']:012d}-{first['write_id']}-{uuid4().hex[:8]}"
        return write_rows(made, self._uri, name, write=write_parquet)


def _is_current(table: pa.Table) -> bool:
    columns = pa.struct([pa.field(f.name, f.type) for f in table.schema])
    return not added_fields(columns, grown(columns, pa.struct(list(CHECKPOINTS_SCHEMA))))
