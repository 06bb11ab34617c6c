"""What a row of ``checkpoints`` that cannot be read any more changed in sinks, as the sinks show it; and the way back.

Sinks show what the rows that are left say, and besides what the lost row did: a micro-batch added its outputs; a
restore or a promotion withdrew outputs of others, and put some back. Every kind of sink shows which:

    Delta table      the log entry with the row's transaction lists what came and what went
    directory        the note of the row's move does; outputs of a micro-batch bear the name of the attempt
    database         which attempts have rows there, by their lineage column; the ledger's digest of the row confirms it
    Spark's tables   likewise, and the note in the log confirms it
    function         was called, and cannot take that back
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey, dead_letters_sink, sink_key
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.sink_moves import content, newest_sinks, published
from state_engine.core.errors import SinkError
from state_engine.publishing.publication import Publication
from state_engine.sinks.base import WRITE_ID, write_ids
from state_engine.sinks.delta_tables import has_lineage
from state_engine.sinks.file_moves import (
    STAGED_PREFIX,
    Move,
    are_on_their_way,
    attempt_of,
    base_name,
    moves_of,
    published_files,
)
from state_engine.sinks.file_owner import looking
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.sql import attempts_in, ledger_note, target_of
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.files import open_location

Files = list[DataFile]


@dataclass(frozen=True)
class LostRow:
    """A row that cannot be read.

    Attributes:
        way_out: what a person can do where a sink keeps the row from being left out.
    """

    checkpoint_id: int
    write_id: str
    way_out: str


@dataclass(frozen=True)
class LostChange:
    """What the lost row did to one sink.

    Attributes:
        came, went: files that it shows since, and those that it does not show since.
        begun: whether the sink stands in the middle of it: it comes to its end before it is taken back.
        resumed: whether the sink stands in the middle of being brought back.
    """

    sink: StagedSink
    came: Files
    went: Files
    begun: bool = False
    resumed: bool = False

    @property
    def forth(self) -> StagedSink:
        """What the row said."""
        return replace(self.sink, files=self.came, withdrawn=self.went)

    @property
    def back(self) -> StagedSink:
        return replace(self.sink, files=self.went, withdrawn=self.came)


class LostOutputs:
    """Looks up what a lost row changed.

    Args:
        lost: the newest row, which is not among them.
    """

    def __init__(
        self, publication: Publication, kernel: DeltaKernel, history: History, lost: LostRow
    ) -> None:
        self._publication, self._kernel, self._lost = publication, kernel, lost
        self._history, self._before, self._all = history, published(history), content(history.values())

    def changes(self) -> list[LostChange]:
        """What is to be taken back, in sinks of all rows and in the dead letters.

        Raises:
            SinkError: a sink cannot be brought back to what it showed before. Nothing was changed.
        """
        letters = dead_letters_sink()
        known = {**newest_sinks(self._history.values()), sink_key(letters): letters}
        looked_up = (self._change(key, self._publication.places.located(sink)) for key, sink in known.items())
        changes = [change for change in looked_up if change is not None and (change.came or change.went)]
        for change in changes:
            if not (change.begun or change.resumed):
                self._publication.check_withdrawable([change.back])
        return changes

    def take_back(self, change: LostChange, checkpoint_id: int) -> None:
        """Bring a sink back to what it showed before, under the id of the row that will say so."""
        publisher = self._publication.publisher(change.sink.kind)
        app = self._publication.places.app_of(change.sink.name)
        if change.begun:
            publisher.publish(change.forth, app, self._lost.checkpoint_id)
        publisher.publish(change.back, app, checkpoint_id)

    # -- by kind of sink -------------------------------------------------------------------------------------------

    def _change(self, key: SinkKey, sink: StagedSink) -> LostChange | None:
        if sink.kind == SinkKind.FILES and (moves := self._moves(sink)):
            return self._of_moves(key, sink, moves)
        if (
            self._seen(sink) != self._lost.checkpoint_id
        ):  # it does not show the row, or it was taken back already
            return None
        if sink.kind == SinkKind.FILES:
            names = [
                name for name in published_files(open_location(sink.path)) if self._lost.write_id in name
            ]
            if not names:
                raise self._refusal(sink, "somebody removed the files that it published there")
            return LostChange(sink, self._of_names(key, names), [])
        if sink.kind == SinkKind.FOREACH_BATCH:
            raise self._refusal(sink, "its function was called with outputs of it, and cannot take them back")
        if sink.kind == SinkKind.KAFKA:
            raise self._refusal(sink, "records that were sent to its topic cannot be taken back")
        if sink.kind == SinkKind.SQL:
            note = ledger_note(sink, self._publication.places.app_of(sink.name), self._lost.checkpoint_id)
            return self._by_lineage(key, sink, note, attempts_in if target_of(sink).lineage else None)
        return self._of_table(key, sink)

    def _of_moves(self, key: SinkKey, sink: StagedSink, moves: dict[int, Move]) -> LostChange | None:
        """From the notes of the row's move, and of the one that takes the row back, where a repair had begun that."""
        lost, back = (moves.get(self._lost.checkpoint_id + more) for more in (0, 1))
        if back is not None:
            came, went = self._of_names(key, back.withdrawn), self._of_names(key, back.files)
            return None if back.done else LostChange(sink, came, went, resumed=True)
        if lost is None or self._seen(sink) > self._lost.checkpoint_id:
            return None
        came, went = self._of_names(key, lost.files), self._of_names(key, lost.withdrawn)
        taken_back = self._lost.checkpoint_id + 1
        resumed = looking(open_location(sink.path), lambda look: are_on_their_way(look, taken_back))
        return LostChange(sink, came, went, begun=not lost.done, resumed=resumed)

    def _of_table(self, key: SinkKey, sink: StagedSink) -> LostChange:
        app = self._publication.places.app_of(sink.name)
        entry = DeltaLog(sink.path).transaction(app, self._lost.checkpoint_id)
        if entry is None:
            raise self._refusal(sink, "the log of its table no longer holds its changes")
        if entry.note:  # Spark wrote it
            there = self._attempts_in_table if has_lineage(sink.schema) else None
            return self._by_lineage(key, sink, entry.note, there)
        known = {file.path: file for file in self._all.get(key, {})}
        unknown = entry.removed - known.keys()
        if unknown:
            raise self._refusal(sink, f"it withdrew files that no row lists: {sorted(unknown)[:3]}")
        came = [known.get(path) or self._own(path) for path in sorted(entry.added)]
        return LostChange(sink, came, [known[path] for path in sorted(entry.removed)])

    def _by_lineage(
        self,
        key: SinkKey,
        sink: StagedSink,
        note: str | None,
        there: Callable[[StagedSink, Iterable[str]], set[str]] | None,
    ) -> LostChange:
        """From which attempts have rows there; None for ``there`` where rows do not name theirs."""
        if there is None:
            raise self._refusal(sink, "only a lineage column could identify its rows, from the first on")
        own = [
            self._own(path)
            for path in open_location(sink.path).files()
            if self._lost.write_id in path.rsplit("/", 1)[-1] and path.endswith(".parquet")
        ]
        before, known = self._before.get(key, {}), self._all.get(key, {})
        attempts = there(sink, {*write_ids([*known]), self._lost.write_id})
        came = [f for f in known if f not in before and write_ids([f])[0] in attempts]
        went = [f for f in before if write_ids([f])[0] not in attempts]
        change = LostChange(sink, [*came, *(own if self._lost.write_id in attempts else [])], went)
        # a task that was run again may have left more files of a micro-batch than its row listed
        if note_of(change.forth) != note and (came or went):
            raise self._refusal(sink, "somebody has changed rows since")
        return change

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _seen(self, sink: StagedSink) -> int:
        return self._publication.seen(sink)

    def _moves(self, sink: StagedSink) -> dict[int, Move]:
        """The row's own, and the one under the id of the row that leaves it out."""
        first = self._lost.checkpoint_id
        moves = looking(open_location(sink.path), moves_of)
        return {m.checkpoint_id: m for m in moves if m.checkpoint_id in (first, first + 1)}

    def _of_names(self, key: SinkKey, names: Iterable[str]) -> Files:
        known = {base_name(file): file for file in self._all.get(key, {})}
        return [known.get(name) or self._own(f"{STAGED_PREFIX}{attempt_of(name)}/{name}") for name in names]

    def _own(self, path: str) -> DataFile:
        """A file that only the lost row listed."""
        return DataFile(path=path, bytes=0, rows=0, subtask=0)

    def _attempts_in_table(self, sink: StagedSink, wanted: Iterable[str]) -> set[str]:
        table = self._kernel.spark.read.format("delta").load(sink.path)
        rows = table.where(table[WRITE_ID].isin(sorted(wanted))).select(WRITE_ID).distinct().collect()
        return {row[0] for row in rows}

    def _refusal(self, sink: StagedSink, why: str) -> SinkError:
        return SinkError(
            f"sink '{sink.name}' shows checkpoint {self._lost.checkpoint_id}: {why}. Nothing was done: "
            f"{self._lost.way_out}"
        )
