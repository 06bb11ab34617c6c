"""Rows that were refused: where each came from, why, and the file of dead letters that they become.

A row is refused because it could not be parsed, because it holds text that is not UTF-8, because its key cannot be one,
because its function raised, or because a sink does not take it. A letter holds all that it takes to send the row again,
see ``microbatch.dead_letters``.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pyarrow as pa

from state_engine.core.errors import UserFunctionError
from state_engine.core.functions.waiting_elements import WaitedElement
from state_engine.core.operator.outputs import Refusal
from state_engine.core.plain_values import key_text
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.columns import to_table
from state_engine.core.types.invalid_text import text_or_bytes
from state_engine.core.types.row import RowKind
from state_engine.microbatch.routing.routed import INPUT
from state_engine.microbatch.subtask.subtask_spec import SubtaskSpec
from state_engine.sources.base import BadFile
from state_engine.sources.frames import EVENT_TIME, REFUSED, SOURCE
from state_engine.sources.output_type import OutputType
from state_engine.sources.stream_columns import ROW_KIND, kinds_of
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA

UNPARSABLE = "SourceError: the row cannot be parsed with the declared schema"

BAD_FILE = "BadFileError"
"""Begins the error of a letter that is a whole file."""

Letter = dict[str, Any]
"""One row of the table of dead letters."""


class RefusedRows:
    """Collects refused rows of one subtask."""

    def __init__(self, spec: SubtaskSpec, subtask: int) -> None:
        self._spec = spec
        passing: Letter = {"subtask": 0, "source": spec.source}
        self._who = passing if spec.function is None else {"operator": spec.uid, "subtask": subtask}
        self._rows: list[Letter] = []
        self._schemas: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, refusal: Refusal, events: pa.Table) -> None:
        """Keep the element at ``refusal.index`` of ``events``."""
        letter = self.described(refusal, events)
        if refusal.waited is not None:
            letter |= self._sendable_again(refusal.waited)
        elif refusal.index is not None and self._spec.function is not None:
            letter |= self._sendable(events, refusal.index)
        self.add_letter(letter)

    def add_unparsable(self, table: pa.Table) -> dict[str, int]:
        """Keep the rows that sources could not parse; their number by source."""
        counts: dict[str, int] = {}
        for packed in table[REFUSED].drop_null().to_pylist():
            source, letter = unparsable(packed, self._spec.labels)
            self.add_letter(letter)
            counts[source] = counts.get(source, 0) + 1
        return counts

    def add_letter(self, letter: Letter) -> None:
        self._rows.append(self._who | letter)

    def table(self) -> pa.Table:
        return letters_table(self._rows)

    def described(self, refusal: Refusal, events: pa.Table) -> Letter:
        """What there is to say about a refused element of ``events``."""
        index = refusal.index
        position = refusal.place if index is None else self._position(events, index)
        without_time = "" if index is None else self._without_time(refusal.error, events, index)
        return {
            "key": self._key_text(refusal.key),
            "position": position,
            "error": refusal.error + without_time,
            "traceback": refusal.traceback_text,
            "row": self._waited_text(refusal.waited) if index is None else self._row_text(events, index),
        }

    def _key_text(self, key: Any) -> str | None:
        schema = self._spec.key_schema
        if key is None or schema is None:
            return None
        return key_text(schema.names, key if self._spec.key_form is None else self._spec.key_form(key))

    def raised(self, letter: Letter) -> UserFunctionError:
        """The error that ends the micro-batch, where a row does not become its letter."""
        row = f" (row {letter['row']})" if letter["row"] else ""
        return UserFunctionError(
            job=self._spec.layout.job,
            operator=f"sink {self._spec.uid}" if self._spec.function is None else self._spec.uid,
            cause=f"{letter['error']}{row}",
            key=letter.get("key"),
            position=letter["position"],
            traceback_text=letter["traceback"],
            can_be_set_aside=letter["position"] is not None and not self._spec.dead_letters,
        )

    def _sendable(self, events: pa.Table, index: int) -> Letter:
        """The element as it came, for the input of the operator that it came to."""
        routed = self._spec.routed
        place = events[INPUT][index].as_py() if INPUT in events.column_names else 0
        one = routed.inputs[place]
        columns, names = list(one.columns), list(one.names)
        if routed.changing:
            columns, names = [*columns, ROW_KIND], [*names, ROW_KIND]
        batch = events.select(columns).slice(index, 1).rename_columns(names)
        if place not in self._schemas:
            self._schemas[place] = batch.schema.serialize().to_pybytes()
        return {
            "source": self._source(events, index),
            "input": place,
            "event_ms": events[EVENT_TIME][index].as_py() if routed.event_time else None,
            "schema": self._schemas[place],
            "data": batch.combine_chunks().to_batches()[0].serialize().to_pybytes(),
        }

    def _sendable_again(self, waited: WaitedElement) -> Letter:
        """An element that waited in the state of the first input, if it did so as it came."""
        if not waited.whole:
            return {}
        (batch,) = _waited_row(waited).to_batches()
        return {
            "source": self._spec.source,
            "input": 0,
            "event_ms": waited.timestamp,
            "schema": batch.schema.serialize().to_pybytes(),
            "data": batch.serialize().to_pybytes(),
        }

    @staticmethod
    def _waited_text(waited: WaitedElement | None) -> str | None:
        return None if waited is None else row_text(_waited_row(waited), 0)

    def _source(self, events: pa.Table, index: int) -> str | None:
        source: str | None = events[SOURCE][index].as_py() if self._spec.routed.sources else self._spec.source
        return source

    def _position(self, events: pa.Table, index: int) -> str:
        """Where an element came from, and its kind where it is an update or delete."""
        kind = _kind(events, index) if self._spec.routed.changing else ""
        return self._place(events, index) + kind

    def _place(self, events: pa.Table, index: int) -> str:
        spec, routed = self._spec, self._spec.routed
        order = [shown(events[c], index) for c in routed.order]
        source = self._source(events, index)
        if spec.letters:
            return str(spec.letters[order[-1]])
        if not order:
            return f"a row for sink '{spec.uid}'" if source is None else f"source '{source}'"
        if source is None:
            return f"an earlier operator, order {tuple(str(o) for o in order)}"
        if not routed.positioned:
            in_order = order if routed.sources else order[:-1]
            return f"source '{source}', order {tuple(str(o) for o in in_order if o is not None)}"
        first = len(order) - (3 if routed.changing else 2)
        named = f", order {tuple(str(o) for o in order[:first])}" if first else ""
        return f"source '{source}', {place_of(spec.labels, source, order[first], order[first + 1])}{named}"

    def _without_time(self, error: str, events: pa.Table, index: int) -> str:
        """What to do about a row without event time, if the function failed for a None."""
        if "None" not in error or not self._spec.routed.event_time or events[EVENT_TIME][index].is_valid:
            return ""
        column = self._spec.event_times.get(self._source(events, index) or "")
        which = f"its column '{column}' is null" if column else "it came with none"
        return (
            f"; this row has no event time ({which}), so ctx.timestamp() is None: put the time into the input, leave "
            "such rows out before key_by, or let the function say what None means"
        )

    def _row_text(self, events: pa.Table, index: int) -> str:
        row: dict[str, object] = {}
        for one in self._spec.routed.inputs:
            for name, column in zip(one.names, one.columns, strict=True):
                value = shown(events[column], index)
                if value is not None or len(self._spec.routed.inputs) == 1:
                    row[name] = value
        return json.dumps(row, default=str)


def _waited_row(waited: WaitedElement) -> pa.Table:
    kind = OutputType.of(waited.type)
    return to_table([waited.value], kind.columns, scalar=kind.scalar).combine_chunks()


def _kind(events: pa.Table, index: int) -> str:
    (kind,) = kinds_of(events.slice(index, 1))
    return "" if kind is RowKind.INSERT else f", {kind}"


def unparsable(packed: str, labels: dict[str, tuple[str, ...]]) -> tuple[str, Letter]:
    """The source of a row that could not be parsed, and its letter; ``packed`` is of the column REFUSED."""
    source, file, row, *encoded = packed.split("\n")
    data, *said = map(b64decode, encoded)
    text = text_or_bytes(data)
    error, shown_row = (part.decode() for part in said) if said else ("", "")
    return source, {
        "position": f"source '{source}', {place_of(labels, source, int(file), int(row))}",
        "error": error or UNPARSABLE,
        "traceback": "",
        "row": shown_row or (text if isinstance(text, str) else json.dumps(text)),
        "source": source,
        "data": data,
    }


def sink_letter(rows: pa.Table, index: int, *, sink: str, error: str, position: str) -> Letter:
    """The letter of a row that a sink refuses, as it was about to be staged; it can be sent to that sink again."""
    batch = rows.slice(index, 1).combine_chunks().to_batches()[0]
    return {
        "position": position,
        "error": error,
        "traceback": "",
        "row": row_text(rows, index),
        "sink": sink,
        "schema": batch.schema.serialize().to_pybytes(),
        "data": batch.serialize().to_pybytes(),
    }


def row_text(rows: pa.Table, index: int) -> str:
    """A row for people, as JSON."""
    return json.dumps({name: shown(rows[name], index) for name in rows.column_names}, default=str)


def bad_file(source: str, bad: BadFile) -> Letter:
    """The letter of a file that cannot be read: its path, and why."""
    return {
        "subtask": 0,
        "position": f"source '{source}', {bad.uri}",
        "error": f"{BAD_FILE}: {bad.error}",
        "traceback": "",
        "row": bad.uri,
        "source": source,
    }


def letters_table(letters: list[Letter]) -> pa.Table:
    """Letters as rows of the table of dead letters; what one does not say is null."""
    return pa.Table.from_pylist(letters, DEAD_LETTERS_SCHEMA)


def place_of(labels: dict[str, tuple[str, ...]], source: str, file: int, row: int) -> str:
    names = labels.get(source, ())
    return f"{names[file] if file < len(names) else f'file {file}'}, row {row}"
