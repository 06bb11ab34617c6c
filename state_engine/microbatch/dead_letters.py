"""Dead letters that are sent again: what waits along a path, and the slice of a micro-batch that some of it makes.

A letter goes where it was refused: to the operator's input whose function refused it, to the sink that did not take it,
or, where it could not be parsed, to its source, which parses it with today's schema. The files of the path say what
letters there are, and the position
``core.checkpoints.dead_letters.LETTERS`` which of them were sent, so each is sent once along a path. A micro-batch that
sends letters reads nothing else: they come after all rows that were read before. Decision 0100.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.dead_letters import LETTERS, letter_files
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.types.row import RowKind
from state_engine.job.changing_streams import is_changing
from state_engine.job.graph import Node, OperatorNode, SourceNode, TransformNode, declared_columns
from state_engine.microbatch.routing.assigned_time import NO_TIME, with_missing_times
from state_engine.microbatch.subtask.refusals import BAD_FILE
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Element, Slice, summary
from state_engine.sources.frames import EVENT_TIME, ORIGIN, WATERMARK, StreamFrame
from state_engine.sources.rows import DriverRows
from state_engine.sources.source_positions import SourcePositions
from state_engine.sources.stream_columns import ROW_KIND, kinds_of
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded

if TYPE_CHECKING:
    from state_engine.job.job import StatefulJob


class Place(NamedTuple):
    """Where a letter goes: to an input of an operator, to a source, or to a sink."""

    operator: str | None = None
    input: int | None = None
    source: str | None = None
    sink: str | None = None


@dataclass(frozen=True)
class DeadLetter:
    """One row that was refused.

    Attributes:
        id: ``<checkpoint>:<number>``; names it along the head's path.
        checkpoint_id: that refused it.
        operator: that refused it; None where a sink without an operator read it.
        position, key, error, row: as in the table of dead letters.
        sent: whether a later checkpoint of the path sent it again.
        source: that it came straight from; None after another operator.
        input: of the operator; None where no operator saw it.
        event_ms: its event time, in milliseconds.
        problem: why it cannot be sent again; empty where it can.
        sink: that refused it; None where no sink did.
    """

    id: str
    checkpoint_id: int
    operator: str | None
    position: str | None
    key: str | None
    error: str
    row: str | None
    sent: bool
    source: str | None
    input: int | None
    event_ms: int | None
    problem: str = ""
    sink: str | None = None
    _file: str = field(default="", repr=False)
    _row: int = field(default=0, repr=False)
    _schema: bytes | None = field(default=None, repr=False)
    _data: bytes | None = field(default=None, repr=False)

    @property
    def place(self) -> Place:
        """Where it goes."""
        if self.sink is not None:
            return Place(sink=self.sink)
        return (
            Place(source=self.source)
            if self.input is None
            else Place(operator=self.operator, input=self.input)
        )


@dataclass(frozen=True)
class LettersSlice:
    """Letters of one place that one micro-batch sends again.

    Attributes:
        slice: what the batch appends to the position of sent letters.
    """

    letters: list[DeadLetter]
    slice: Slice

    @property
    def place(self) -> Place:
        """Where they go."""
        return self.letters[0].place

    @property
    def input(self) -> int:
        """The place of the operator's input."""
        return self.letters[0].input or 0

    @property
    def labels(self) -> tuple[str, ...]:
        """For messages: where each letter came from first."""
        return tuple(f"dead letter {one.id} ({one.position})" for one in self.letters)

    @property
    def records(self) -> list[bytes]:
        return [one._data or b"" for one in self.letters]

    def rows(self) -> pa.Table:
        """The rows, of letters that go to a sink, each with its place among them."""
        table = pa.concat_tables([_table(one) for one in self.letters], promote_options="permissive")
        return table.append_column(ROW_COLUMN, pa.array(range(table.num_rows), pa.int64()))

    def frame(self, spark: Any, operator: OperatorNode, *, timed: bool) -> StreamFrame:
        """The rows, of letters that go to an operator, in the order that its input has.

        They say nothing of the watermark and move none: each is judged by that of the head. Those that a
        WatermarkStrategy gave no time have the one that today's gives.
        """
        parts = [_table(one) for one in self.letters]
        table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        count = len(parts)
        order_by = tuple(c for c in _order_of(operator.inputs[self.input].parent) if c in table.column_names)
        event_time = _event_time_of(operator.inputs[self.input].parent)
        hidden: tuple[str, ...] = (FILE_COLUMN, ROW_COLUMN)
        table = table.append_column(FILE_COLUMN, pa.repeat(pa.scalar(0, pa.int32()), count))
        table = table.append_column(ROW_COLUMN, pa.array(range(count), pa.int64()))
        if timed:
            times = pa.array([one.event_ms for one in self.letters], pa.int64())
            table = table.append_column(EVENT_TIME, times)
            table = table.append_column(WATERMARK, pa.nulls(count, pa.int64()))
            table = table.append_column(ORIGIN, pa.nulls(count, pa.string()))
        chained = timed and not order_by
        made = StreamFrame(
            spark=spark,
            given=DriverRows(table),
            order_by=order_by,
            hidden_order=(EVENT_TIME, *hidden) if chained else hidden,
            named=1 if chained else len(order_by),
            event_time=EVENT_TIME if timed else None,
            timed_order=chained or (bool(order_by) and order_by[0] == event_time),
            changing=ROW_KIND in table.column_names,
        )
        node = operator.inputs[self.input].parent
        untimed = any(one.error.startswith(NO_TIME) for one in self.letters)
        timed_rows = with_missing_times(made, node) if untimed and isinstance(node, SourceNode) else made
        return timed_rows.with_rows(timed_rows.table)  # many go through Spark


def letters_of(
    path: Sequence[CheckpointRow],
    job: StatefulJob | None,
    positions: SourcePositions,
    *,
    uri: str,
    active: Collection[str],
) -> list[DeadLetter]:
    """All dead letters along a path, oldest first.

    Args:
        job: whose operators and sources they would go to; None to leave that out.
        active: paths of the files that the table shows; what a user deleted or rewrote is not there.
    """
    sent = {(e["split"], row) for e in positions.elements(path, LETTERS) for row in e["position"]}
    letters = []
    number_of: dict[int, int] = {}
    for checkpoint_id, file in letter_files(path):
        if file.path not in active:
            continue
        table = _read(join(uri, file.path), file)
        for at, row in enumerate(table.to_pylist()):
            number = number_of[checkpoint_id] = number_of.get(checkpoint_id, 0) + 1
            letters.append(
                _letter(checkpoint_id, number, file.path, at, row, sent=(file.path, at) in sent, job=job)
            )
    return letters


def _read(path: str, file: DataFile) -> pa.Table:
    try:
        return open_recorded(path, file, of="dead letters").read()
    except FileNotFoundError:
        raise MissingFilesError(
            f"dead letters: {path} is gone: somebody deleted it. Put the file back from a backup, or restore a "
            "checkpoint from before it was written"
        ) from None


def _letter(
    checkpoint_id: int,
    number: int,
    file: str,
    at: int,
    row: Mapping[str, Any],
    *,
    sent: bool,
    job: StatefulJob | None,
) -> DeadLetter:
    # an older version wrote the first of these columns only
    columns = ("operator", "position", "key", "error", "row", "source", "input", "event_ms", "sink")
    fields: dict[str, Any] = {name: row.get(name) for name in columns}
    letter = DeadLetter(
        id=f"{checkpoint_id}:{number}",
        checkpoint_id=checkpoint_id,
        **fields,
        sent=sent,
        _file=file,
        _row=at,
        _schema=row.get("schema"),
        _data=row.get("data"),
    )
    problem = _problem(letter, job)
    return replace(letter, problem=problem) if problem else letter


def _problem(letter: DeadLetter, job: StatefulJob | None) -> str:
    """Why a letter cannot be sent again; empty where it can."""
    if letter.error.startswith(BAD_FILE):
        return "it is a file: repair it, and add it under another name"
    if letter._data is None:
        if letter.row is None:
            return "it is not a row: a timer or a call without an element failed"
        return (
            "the row itself was not kept: an older version refused it, a sink without an operator, a window, or a "
            "timer of an operator that keeps parts of its rows"
        )
    if job is None:
        return ""
    source = letter.place.source
    if source is not None:
        return "" if source in job.sources else f"the job no longer has a source '{source}'"
    if unread := _unreadable(letter):
        return f"what was kept of the row cannot be read ({unread}): correct it where it came from"
    return _problem_at_operator(letter, job) if letter.sink is None else _problem_at_sink(letter, job)


def _problem_at_operator(letter: DeadLetter, job: StatefulJob) -> str:
    operator, place = letter.operator, letter.input
    if operator is None or operator not in job.operators:
        return f"the job no longer has an operator '{operator}'"
    inputs = job.operators[operator].inputs
    if place is None or not 0 <= place < len(inputs):
        return f"the operator '{operator}' has {counted(len(inputs), 'input')} now"
    node = inputs[place].parent
    kind = _kind(letter)
    if kind is not RowKind.INSERT and not is_changing(node):
        return f"it is of kind {kind}, and the stream that the operator '{operator}' reads holds inserts only now"
    timeless = letter.error.startswith(NO_TIME)
    if timeless and not (isinstance(node, SourceNode) and node.timestamps is not None):
        return (
            "its WatermarkStrategy gave it no event time, and only the source could ask today's: correct the record, "
            "and add it to its source"
        )
    if inputs[place].everywhere:
        return "every subtask had the element, and may have taken it: send it again through its source"
    return ""


def _problem_at_sink(letter: DeadLetter, job: StatefulJob) -> str:
    if letter.sink not in job.sinks:
        return f"the job no longer has a sink '{letter.sink}'"
    declared = declared_columns(job.sinks[letter.sink].parent)
    names = [name for name in _table(letter).column_names if name != ROW_KIND]
    if declared is not None and sorted(declared.names) != sorted(names):
        return f"it has the columns {names}, and the sink '{letter.sink}' is given {list(declared.names)} now"
    return ""


def next_slice(
    letters: Iterable[DeadLetter], sent_before: Sequence[Element], max_rows: int
) -> LettersSlice | None:
    """The first of these letters, as many as go to one place and fit into a micro-batch; None where there is none."""
    waiting = [one for one in letters if not one.sent and not one.problem]
    if not waiting:
        return None
    some = [one for one in waiting if one.place == waiting[0].place][:max_rows]
    rows: dict[str, list[int]] = {}
    for one in some:
        rows.setdefault(one._file, []).append(one._row)
    elements: list[Element] = [{"split": file, "position": at} for file, at in rows.items()]
    part = Slice(elements, position_of(sent_before), position_of([*sent_before, *elements]), labels=[])
    return LettersSlice(some, part)


def position_of(elements: Sequence[Element]) -> str:
    return summary(elements, letters=sum(len(e["position"]) for e in elements))


def chosen(letters: Sequence[DeadLetter], ids: Sequence[str] | None) -> list[DeadLetter]:
    """Those with the ids; all that wait where none are given."""
    if ids is None:
        return [one for one in letters if not one.sent and not one.problem]
    by_id = {one.id: one for one in letters}
    for wanted in ids:
        one = by_id.get(wanted)
        if one is None:
            raise ConfigurationError(
                f"there is no dead letter '{wanted}' on the head's path; list them first"
            )
        if one.sent or one.problem:
            raise ConfigurationError(
                f"dead letter '{wanted}' cannot be sent again: {one.problem or 'it was sent before'}"
            )
    return [by_id[wanted] for wanted in dict.fromkeys(ids)]


def _table(letter: DeadLetter) -> pa.Table:
    schema = pa.ipc.read_schema(pa.py_buffer(letter._schema or b""))
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(letter._data or b""), schema)])


def _unreadable(letter: DeadLetter) -> str:
    """Why the row itself cannot be read; empty where it can."""
    try:
        table = _table(letter)
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        return str(error)
    return "" if table.num_rows == 1 else f"it holds {counted(table.num_rows, 'row')}"


def _kind(letter: DeadLetter) -> RowKind:
    row = _table(letter)
    return kinds_of(row)[0] if ROW_KIND in row.column_names else RowKind.INSERT


def _order_of(node: Node) -> tuple[str, ...]:
    if isinstance(node, SourceNode):
        return node.order_by
    if isinstance(node, TransformNode):
        return _order_of(node.parent) if node.order_by is None else tuple(node.order_by)
    return ()


def _event_time_of(node: Node) -> str | None:
    if isinstance(node, SourceNode):
        return node.event_time if node.timestamps is None else None
    return _event_time_of(node.parent) if isinstance(node, TransformNode) else None
