"""What sinks show, and how a row that moves the head to another path moves their outputs along.

    content(rows)     what a path should show: the outputs that its micro-batches staged, those of a replay included
    published(rows)   what the rows of ``main`` made sinks show so far, one after the other
    moves(...)        from the one to the other: what a restore or promotion withdraws and puts back

Rows of other branches stage outputs and never publish. The lists of a row that moves the head describe the way, not the
path: they count for ``published`` and not for ``content``. After any move without ``kept`` both are equal at the head.
What a single row stages and publishes: ``row_outputs``.
Flink has no counterpart: its sinks cannot take back what they committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey, publications, sink_key, staged_sinks
from state_engine.core.errors import SinkIdentityError


@dataclass(frozen=True)
class Origin:
    """Where an output comes from: the checkpoint that staged it, and the sink's identity and schema then."""

    checkpoint_id: int
    sink: StagedSink


SinkContents = dict[SinkKey, dict[DataFile, Origin]]
"""The files of every sink, in the order in which they came."""


def content(rows: Iterable[CheckpointRow]) -> SinkContents:
    """The outputs that these rows contribute to the path that they are on."""
    outputs: SinkContents = {}
    for row in rows:
        for staged in staged_sinks(row) if row.kind.is_micro_batch else []:
            origin = Origin(row.checkpoint_id, staged)
            outputs.setdefault(sink_key(staged), {}).update(dict.fromkeys(staged.files, origin))
    return outputs


def published(history: History) -> SinkContents:
    """What sinks show when every row of ``main`` is published, outputs that moves kept included."""
    origins = content(history.values())
    outputs: SinkContents = {}
    for _, row in sorted(history.items()):
        for staged in publications(row):
            shown = outputs.setdefault(sink_key(staged), {})
            for file in staged.withdrawn:
                shown.pop(file, None)
            shown |= {file: origins[sink_key(staged)][file] for file in staged.files}
    return outputs


def moves(
    history: History, old_head_id: int | None, new_parent_id: int | None, *, kept: Collection[int] = ()
) -> list[StagedSink]:
    """What a row that replaces a head and continues another row must withdraw from each sink, and put (back) there.

    Args:
        history: as they are now; every row of ``main`` is published before the move is.
        old_head_id: the head that is left; None where there is none.
        kept: checkpoints whose outputs stay although they leave the path. ``outputs="keep"`` is all of ``leaving``:
            the sinks lose nothing and get what the new path has and they do not show, so every output is there at
            least once. Later moves do not withdraw what was kept, unless the head came back to its path in between.

    Returns:
        One a sink that changes; ``files`` and ``withdrawn`` in the order in which they were staged.
    """
    old_path, new_path = history.path(old_head_id), history.path(new_parent_id)
    old, new, shown = content(old_path), content(new_path), published(history)
    staged_sinks = []
    for key, sink in newest_sinks([*old_path, *new_path]).items():
        there, then = shown.get(key, {}), new.get(key, {})
        withdrawn = [
            file
            for file, origin in old.get(key, {}).items()
            if file in there and file not in then and origin.checkpoint_id not in kept
            # what was staged for a table that was re-created since went with that table
            and origin.sink.identity == sink.identity
        ]  # fmt: skip
        back = {file: origin for file, origin in then.items() if file not in there}
        _check_identity(sink, back.values())
        if withdrawn or back:
            staged_sinks.append(replace(sink, files=list(back), withdrawn=withdrawn))
    return staged_sinks


def kept_outputs(history: History, head_id: int | None) -> dict[int, list[StagedSink]]:
    """Outputs that sinks show though they are not on the head's path, because a move kept them.

    Returns:
        By the checkpoint that staged them, as ``withdrawn`` of its sinks: ready for the row that takes them out.
    """
    wanted = content(history.path(head_id))
    newest = newest_sinks(history.values())
    by_sink: dict[int, dict[SinkKey, list[DataFile]]] = {}
    for key, shown in published(history).items():
        for file, origin in shown.items():
            if file not in wanted.get(key, {}) and origin.sink.identity == newest[key].identity:
                by_sink.setdefault(origin.checkpoint_id, {}).setdefault(key, []).append(file)
    return {
        staged_by: [replace(newest[key], withdrawn=files) for key, files in sinks.items()]
        for staged_by, sinks in sorted(by_sink.items())
    }


def newest_sinks(rows: Iterable[CheckpointRow]) -> dict[SinkKey, StagedSink]:
    """Every sink as the newest row knows it, without files."""
    newest: dict[SinkKey, StagedSink] = {}
    for row in sorted(rows, key=lambda row: row.checkpoint_id):
        newest |= {sink_key(staged): replace(staged, files=[], withdrawn=[]) for staged in staged_sinks(row)}
    return newest


def _check_identity(sink: StagedSink, back: Iterable[Origin]) -> None:
    others = sorted({o.checkpoint_id for o in back if o.sink.identity != sink.identity})
    if others:
        raise SinkIdentityError(
            f"sink '{sink.name}': {sink.path} was re-created after checkpoints {others} staged outputs for it, so "
            "these cannot be put back. Choose a checkpoint whose outputs are in the table, or run its input again"
        )
