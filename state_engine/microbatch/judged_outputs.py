"""Rows that break a sink's CHECK constraints: found in what was staged, and set aside before anything is committed.

Such rules are SQL text, so the sink's own engine judges them: one query over the staged files of a sink that has any.
A file that holds such rows is written again without them.
"""

from __future__ import annotations

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import UserFunctionError
from state_engine.job.graph import output_of
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.subtask.refusals import Letter, letters_table, sink_letter
from state_engine.microbatch.subtask.subtask_outputs import write_sink_file
from state_engine.sinks.base import WRITE_ID, SinkTarget
from state_engine.sinks.row_rules import without_rows
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout, file_name, partition_path
from state_engine.storage.stores.files import join, open_location, write_parquet
from state_engine.storage.stores.parquet_reading import open_recorded

_JUDGED = 1_000_000
"""In names of files, in place of the attempt of a task: written again on the driver."""


def set_broken_aside(job: StatefulJob, done: Execution, *, kernel: DeltaKernel, layout: JobLayout) -> None:
    """Take rows that break checks of their sinks out of the staged files, as dead letters."""
    letters: list[Letter] = []
    for name, target in done.outputs.targets.items():
        files = [f for f in done.outputs.files.get(name, []) if f.rows]
        if not (target.checks and files):
            continue
        place = output_of(job.sinks[name].parent)
        broken = job.sinks[name].sink.broken_checks(kernel, target, files)
        for file in [f for f in files if f.path in broken]:
            rows = _rows(target, file)
            own = _letters(target, file, rows, broken[file.path])
            if job.on_error != "dead_letter":
                raise UserFunctionError(
                    job=job.name,
                    operator=f"sink {name}" if place is None else place[0],
                    cause=f"{own[0]['error']} (row {own[0]['row']})",
                    position=own[0]["position"],
                )
            letters += [one | {"operator": None if place is None else place[0]} for one in own]
            kept = without_rows(rows, broken[file.path])
            done.outputs.files[name].remove(file)
            done.outputs.add(name, _written_again(target, file, kept, done.outputs.write_id))
            open_location(join(target.uri, file.path)).delete()
    if letters:
        path = partition_path(done.outputs.write_id, file_name(done.outputs.write_id, 0, _JUDGED))
        written = write_parquet(letters_table(letters), join(layout.dead_letters, path))
        done.outputs.dead_letters.append(
            DataFile(path, written.bytes, len(letters), 0, footer=written.footer)
        )
        done.refused += len(letters)


def _rows(target: SinkTarget, file: DataFile) -> pa.Table:
    """What a task staged, without the mark of the attempt."""
    rows = open_recorded(join(target.uri, file.path), file, of=f"sink '{target.name}'").read()
    return rows if target.lineage is None else rows.drop_columns([WRITE_ID])


def _letters(target: SinkTarget, file: DataFile, rows: pa.Table, broken: dict[int, str]) -> list[Letter]:
    position = f"an output of subtask {file.subtask}"
    return [
        sink_letter(rows, row, sink=target.name, error=target.refusal(why), position=position)
        | {"subtask": file.subtask}
        for row, why in sorted(broken.items())
    ]


def _written_again(target: SinkTarget, file: DataFile, rows: pa.Table, write_id: str) -> list[DataFile]:
    if not rows.num_rows:
        return []
    subtask = file.subtask or 0
    return [write_sink_file(rows, target, target.file_name(write_id, subtask, _JUDGED), subtask)]
