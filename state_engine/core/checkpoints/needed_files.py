"""Which files that checkpoints list somebody still needs, and which nobody does: what a collector may delete by name.

A checkpoint that is not expired needs, to be restored:

    keyed state       the base files in force of its key groups, and the changes on its path after each of these bases
    operator state    the files that hold the lists that it points to, and source positions: all of its path since the
                      newest compaction that stated them whole
    published tables  what a compaction that it is left out of published states
    replays           the source positions of the micro-batches after it on the path of ``main``
    outputs           those of its path, for a move of the head puts back what sinks do not show

What sinks show is theirs and never deleted; but where they hold a copy of it (a database, a function, a table that
Spark writes), the staged files go as soon as no move of the head can put them back. Rows stay for ever. Files that no
row lists are orphans of an attempt, to be known by the ``write_id`` in their names. Plays the part of Flink's
``SharedStateRegistry`` and its subsumption of checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.sink_moves import SinkContents, content, published
from state_engine.core.checkpoints.state_files import (
    Pointer,
    is_pointed_to,
    keyed_state_files,
    operator_of,
    pointers,
    position_files,
)
from state_engine.core.checkpoints.table_names import (
    OPERATOR_STATE,
    base_table,
    changelog_table,
    listed_in_tables,
)

Files = dict[str, set[DataFile]]
"""By table: the job's own by their names under its directory, as in ``delta_versions``; sinks by their paths."""


def reachable(history: History, *, as_of: datetime | None = None, unpublished: Collection[int] = ()) -> Files:
    """The files that a checkpoint that can be restored needs, or that a sink shows.

    Args:
        as_of: count as needed, too, what was needed then or at any time since; None for what is needed now only.
        unpublished: rows whose outputs some sink has not seen yet.
    """
    before = _until(history, as_of)
    roots = set(history) - before.expired | set(unpublished)
    roots |= {row.checkpoint_id for row in history.open_branches.values()}
    roots |= {pin.checkpoint_id for pin in history.pins.values()}
    needed_files: Files = {}
    ancestors: dict[int, CheckpointRow] = {}
    pointed: set[Pointer] = set()
    for root in roots:
        on_path = history.path(root)
        ancestors |= {row.checkpoint_id: row for row in on_path}
        pointed |= pointers(history[root].operator_state)
        for operator in history[root].operators:
            held = keyed_state_files(on_path, operator.uid)
            _add(needed_files, base_table(operator.uid), (one.file for one in held.base))
            _add(needed_files, changelog_table(operator.uid), (one.file for one in held.changelog))
            _add(needed_files, changelog_table(operator.uid), operator.expired)
    for row in ancestors.values():
        _add(needed_files, OPERATOR_STATE, (f for f in row.operator_state_files if is_pointed_to(f, pointed)))
    _add(needed_files, OPERATOR_STATE, _positions(history, roots))
    copied = _copied(history, before, roots, unpublished)
    _add_outputs(needed_files, _without(content(ancestors.values()), copied))
    # what was published since is of rows that were not expired before
    _add_outputs(needed_files, _without(published(before), copied))
    return needed_files


def listed(rows: Iterable[CheckpointRow]) -> Files:
    """All files that rows list as written by their attempts."""
    known = list(rows)
    recorded: Files = {}
    for row in known:
        for table, files in listed_in_tables(row):
            _add(recorded, table, files)
    _add_outputs(recorded, content(known))
    return recorded


def unreachable(
    history: History, *, as_of: datetime | None = None, unpublished: Collection[int] = ()
) -> Files:
    """The listed files that nothing needs, nor has needed since ``as_of``: of no use to anyone for that long.

    A collector asks with ``as_of`` = now less the age that protects readers and attempts, deletes what is still there,
    and in sinks nothing that the table lists. Arguments as for :func:`reachable`.
    """
    needed = reachable(history, as_of=as_of, unpublished=unpublished)
    candidates = {
        table: files - needed.get(table, set()) for table, files in listed(history.values()).items()
    }
    return {table: files for table, files in candidates.items() if files}


def _copied(
    history: History, before: History, roots: Collection[int], unpublished: Collection[int]
) -> SinkContents:
    """Outputs that sinks hold a copy of, and that no move of the head to any root, or from one, can put back.

    That is so where they are shown, and on the path of every root; and where nothing can be replayed from the very
    beginning.
    """
    if any(history[root].parent_id is None for root in roots):
        return {}
    paths = [history.ids_to(root) for root in roots]
    everywhere = set.intersection(*paths) - set(unpublished) if paths else set()
    now = published(history)
    copies: SinkContents = {}
    for key, shown in published(before).items():
        copies[key] = {
            file: origin
            for file, origin in shown.items()
            if SinkKind(origin.sink.kind).holds_copy
            and origin.checkpoint_id in everywhere
            and file in now.get(key, {})
        }
    return copies


def _without(outputs: SinkContents, left_out: SinkContents) -> SinkContents:
    return {
        key: {file: origin for file, origin in files.items() if file not in left_out.get(key, {})}
        for key, files in outputs.items()
    }


def _until(history: History, as_of: datetime | None) -> History:
    """The rows from before the first that is younger: what later ones ended had not ended then."""
    if as_of is None:
        return history
    younger = min((i for i, row in history.items() if row.created_at > as_of), default=None)
    return history if younger is None else history.before(younger)


def _positions(history: History, roots: Collection[int]) -> Iterator[DataFile]:
    """Source positions of checkpoints, and of the micro-batches that a replay from any of them goes through."""
    on_main = history.main_path
    first = min((row.checkpoint_id for row in on_main if row.checkpoint_id in roots), default=0)
    for row in on_main:
        if row.checkpoint_id > first:
            yield from (file for file in row.operator_state_files if operator_of(file) is None)
    for root in roots:
        yield from position_files(history.path(root))


def _add(collected: Files, table: str, files: Iterable[DataFile]) -> None:
    collected.setdefault(table, set()).update(files)


def _add_outputs(collected: Files, outputs: SinkContents) -> None:
    for (name, sink_path), files in outputs.items():
        _add(collected, DEAD_LETTERS if name == DEAD_LETTERS else sink_path, files)
