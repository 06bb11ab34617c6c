"""What can be seen of a job that runs in memory: what its sinks show, its state, and its dead letters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.harness.harness_state import HarnessState
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.state.ttl_rule import without_expired
from state_engine.job.graph import OperatorNode, declared_columns, function_for, is_scalar
from state_engine.job.job import StatefulJob
from state_engine.job.parallelism import parallelism_in_force
from state_engine.sinks.file_moves import PUBLISHED
from state_engine.sinks.files import FileSink, published_directory
from state_engine.sources.stream_columns import shown_elements
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.changelog import StateFiles
from state_engine.storage.state.listed_files import AllKeys
from state_engine.storage.state.located_files import state_files
from state_engine.storage.state.operator_state_files import read_subtask_state
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.parquet_reading import read_parquet
from state_engine.testing.memory_job import type_in_memory


def shown(job: StatefulJob, sink: str, checkpoints: Collection[int] | None = None) -> list[Any]:
    """What a sink shows, by checkpoint and subtask: elements as functions see them."""
    node = job.sinks[sink]
    assert isinstance(node.sink, FileSink)
    at, rows = open_location(node.sink.path), list[Any]()
    wanted = None if checkpoints is None else {published_directory(one) for one in checkpoints}
    for directory in sorted(n for n in at.names(missing_ok=True) if n.startswith(PUBLISHED)):
        if wanted is not None and directory not in wanted:
            continue
        for name in sorted(at.inside(directory).names(), key=_attempt_and_subtask):
            table = read_parquet(join(node.sink.path, directory, name), of=f"what sink '{sink}' collected")
            rows += shown_elements(
                table, scalar=is_scalar(node.parent), declared=declared_columns(node.parent)
            )
    return rows


def _attempt_and_subtask(name: str) -> tuple[str, str]:
    """What puts the files of one checkpoint into an order; see ``layout.file_name``."""
    _, subtask, write_id, *_ = name.split("-")
    return write_id, subtask


def state(layout: JobLayout, job: StatefulJob, path: Sequence[CheckpointRow], uid: str, name: str) -> Any:
    """A state as a harness gives it: keyed state by key, of operator state what each subtask holds."""
    if uid not in job.operators:
        raise ConfigurationError(
            f"job '{job.name}' has no operator '{uid}'; its operators: {sorted(job.operators)}"
        )
    operator = job.operators[uid]
    keyed = MemoryState()
    for descriptor in _declared(job, operator) if operator.keyed else ():
        entries = _entries(layout, path, operator, descriptor)
        if entries is not None:
            keyed.entries[descriptor.name], keyed.descriptors[descriptor.name] = entries, descriptor
    snapshots = _snapshots(layout, job, path, uid)
    return HarnessState(keyed=keyed, operator=snapshots).values(name)


def _declared(job: StatefulJob, operator: OperatorNode) -> list[StateDescriptor]:
    function = function_for(operator, type_in_memory)
    if function is None:
        raise ConfigurationError(
            f"job '{job.name}', operator '{operator.uid}': its states have the type of its rows, which nobody "
            "declares. Give output_type to the transform or the operator before it, or types= to run_in_memory"
        )
    info = TaskInfo(operator.uid, 0, job.parallelism_of(operator), job.max_parallelism)
    return trial_open(function, info).states


def _entries(
    layout: JobLayout, path: Sequence[CheckpointRow], operator: OperatorNode, descriptor: StateDescriptor
) -> dict[Any, Any] | None:
    """The entries of a keyed state that have not expired; None where no checkpoint knows the state."""
    recorded = path[-1].operator(operator.uid) if path else None
    if recorded is None:
        return None
    schemas = {schema.name: schema for schema in recorded.states}
    stored = StoredStates(operator.uid, schemas, earlier_states(operator.uid, path)).of(descriptor)
    if stored.read is None:
        return None
    files = [file.listed for file in state_files(layout, path, operator.uid)]
    keys = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    every = StateFiles(files, AllKeys(), keys, only=stored.descriptor.stored_as)
    table = every.table(stored.descriptor, stored.read)
    entries = {} if table is None else every.fold(stored.descriptor, table)
    if descriptor.ttl is None or not descriptor.ttl.lifetime.hides_expired:
        return entries
    watermark_ms = path[-1].watermark_of(operator.uid)
    return without_expired(descriptor, entries, clock_ms=path[-1].clock_ms, watermark_ms=watermark_ms)


def _snapshots(
    layout: JobLayout, job: StatefulJob, path: Sequence[CheckpointRow], uid: str
) -> tuple[SubtaskSnapshot, ...]:
    ref = next((r for r in path[-1].operator_state if r.operator == uid), None) if path else None
    if ref is None:
        return ()
    parallelism = parallelism_in_force(job, path[-1])[uid]
    read = (
        read_subtask_state(
            ref, operator_state_files(path, ref), uri=layout.operator_state, subtask=subtask,
            parallelism=parallelism, max_parallelism=job.max_parallelism, restored=False,
        )
        for subtask in range(parallelism)
    )  # fmt: skip
    return tuple(snapshot for snapshot in read if snapshot is not None)


def dead_letters(layout: JobLayout, path: Sequence[CheckpointRow]) -> list[dict[str, Any]]:
    """The rows that were set aside on a path, oldest first."""
    files = [file for row in path for file in row.dead_letters]
    letters: list[dict[str, Any]] = []
    for file in files:
        uri = join(layout.dead_letters, file.path)
        letters += read_parquet(uri, footer=file.footer, of="dead letters").to_pylist()
    return letters
