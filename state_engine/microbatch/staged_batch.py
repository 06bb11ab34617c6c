"""``StagedBatch``: what an attempt has staged for sinks and for keyed states, as gates read it before the commit.

Of a state these are its changed entries, as they will be: one row for each key, or each key of a map, that the
micro-batch wrote, in the columns that a table of the state has. Entries that it deletes are not among them. They come
from the files of changes that the subtasks wrote, so a gate reads what changed and not the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.errors import ConfigurationError
from state_engine.job.job import JudgedState, StatefulJob, judged_state
from state_engine.microbatch.batch_result import Execution
from state_engine.sinks.base import WRITE_ID
from state_engine.state_tables.difference import changes_in, newest_of
from state_engine.state_tables.table_form import TableForm
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.base import BaseSpec
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded


@dataclass(frozen=True)
class StagedBatch:
    """See the module docstring.

    Attributes:
        path: rows that the micro-batch continues.
        layout: where files of changes are.
    """

    job: StatefulJob
    done: Execution
    path: Sequence[CheckpointRow]
    layout: JobLayout
    _entries: dict[JudgedState, tuple[TableForm, pa.Table] | None] = field(default_factory=dict, repr=False)

    def rows(self, name: str) -> int:
        if judged_state(self.job, name) is not None:
            return int(self.table(name, None).num_rows)
        return sum(file.rows for file in self.done.outputs.files.get(name, ()))

    def table(self, name: str, columns: Sequence[str] | None) -> pa.Table:
        state = judged_state(self.job, name)
        rows = self._of_sink(name, columns) if state is None else self._of_state(state)
        if rows is None:  # nothing came: no column is known
            return pa.table({name: pa.nulls(0, pa.int64()) for name in columns or ()})
        if state is None or columns is None:
            return rows
        _check_has(name, columns, rows.schema)
        return rows.select(list(columns))

    def entries(self, operator: str, state: str) -> pa.Table:
        """Changed entries in the columns of ``read_state``: key, ``map_key`` and ``value``."""
        changed = self._changed(JudgedState(operator, state))
        return pa.table({}) if changed is None else changed[0].entries(changed[1])

    def rows_before(self, name: str, batches: int) -> list[int]:
        newest = islice((row for row in reversed(self.path) if row.kind.is_micro_batch), batches)
        staged = [row.sink(name) for row in newest]
        return [0 if one is None else one.rows for one in reversed(staged)]

    def places(self, name: str) -> list[str]:
        """The files that were staged for a sink; of a state none, as they do not outlast the attempt."""
        target = self.done.outputs.targets.get(name)
        files = self.done.outputs.files.get(name, ())
        return [] if target is None else [join(target.uri, file.path) for file in files if file.rows]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _of_sink(self, sink: str, columns: Sequence[str] | None) -> pa.Table | None:
        target = self.done.outputs.targets.get(sink)
        if target is None:
            return None
        _check_has(sink, columns or (), target.schema)
        names = columns or [name for name in target.schema.names if name != WRITE_ID]
        schema = pa.schema([target.schema.field(name) for name in names])
        parts = [
            open_recorded(join(target.uri, file.path), file, of=f"sink '{sink}'").read(list(names))
            for file in self.done.outputs.files.get(sink, ())
            if file.rows
        ]
        return pa.concat_tables([schema.empty_table(), *[part.cast(schema) for part in parts]])

    def _of_state(self, of: JudgedState) -> pa.Table | None:
        changed = self._changed(of)
        return None if changed is None else changed[0].rows(changed[1])

    def _changed(self, of: JudgedState) -> tuple[TableForm, pa.Table] | None:
        """Changed entries of a state, read once for all gates; None where its operator did not run."""
        if of not in self._entries:
            self._entries[of] = self._read(of)
        return self._entries[of]

    def _read(self, of: JudgedState) -> tuple[TableForm, pa.Table] | None:
        uid = of.operator
        report, key = self.done.operators.get(uid), self.done.key_schemas.get(uid)
        if report is None or key is None:
            return None
        schema = next((one for one in self.done.states[uid] if one.name == of.state), None)
        if schema is None:
            asked = sorted(one.name for one in self.done.states[uid])
            raise ConfigurationError(
                f"a gate judges the state '{of.state}' of operator '{uid}', which asked for {asked} in this micro-batch"
            )
        form = TableForm(key, schema, of.map_key)
        if form.shape == "list":
            raise ConfigurationError(
                f"a gate judges the state '{of.state}' of operator '{uid}', a list: its changes are elements that were "
                "added, and not whole lists. Judge the stream that makes them, with expect"
            )
        spec = BaseSpec(key.storage, (schema,), self.job.max_parallelism)
        files = [self._listed(uid, file) for one in report.subtasks for file in one.changelog]
        return form, newest_of(form, changes_in(spec, schema, files)).written

    def _listed(self, uid: str, file: DataFile) -> ListedFile:
        return ListedFile.recorded(
            join(self.layout.changelog(uid), file.path), file, of=f"changes of operator '{uid}'"
        )


def _check_has(name: str, columns: Sequence[str], schema: pa.Schema) -> None:
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise ConfigurationError(f"a gate reads the columns {missing} of '{name}', which has {schema.names}")
