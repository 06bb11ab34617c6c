"""Rows that a subtask refused: where each came from, why, and the file of dead letters that they become.

A row is refused because it could not be parsed, because its key cannot be one, or because its function raised.
"""

from __future__ import annotations

import json

import pyarrow as pa

from state_engine.backends.delta.layout import DEAD_LETTERS_SCHEMA
from state_engine.core.keyed_operator import Refusal
from state_engine.runtime.routing import REFUSED
from state_engine.runtime.subtask_spec import SubtaskSpec

_UNPARSABLE = "SourceError: the row cannot be parsed with the declared schema"


class RefusedRows:
    """Collects refused rows of one subtask.

    Args:
        spec: of the operator.
        subtask: index.
    """

    def __init__(self, spec: SubtaskSpec, subtask: int) -> None:
        self._spec, self._subtask = spec, subtask
        self._rows: list[dict[str, object]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, refusal: Refusal, events: pa.Table) -> None:
        """Keep the element at ``refusal.index`` of ``events``."""
        told = self.explain(refusal, events)
        self._keep(told["key"], told["position"], refusal.error, refusal.traceback_text, told["row"])

    def add_unparsable(self, table: pa.Table) -> int:
        """Keep the rows that the source could not parse; their number."""
        found = table[REFUSED].drop_null().to_pylist()
        for packed in found:
            position, text = packed.split("\n", 1)
            file, row = position.split(",")
            where = f"source '{self._spec.source}', {self._place(int(file), int(row))}"
            self._keep(None, where, _UNPARSABLE, "", text)
        return len(found)

    def table(self) -> pa.Table:
        """All of them as rows of the table of dead letters."""
        return pa.Table.from_pylist(self._rows, DEAD_LETTERS_SCHEMA)

    def explain(self, refusal: Refusal, events: pa.Table) -> dict[str, str | None]:
        """What the driver needs for its error message."""
        index = refusal.index
        return {
            "class": "UserFunctionError",
            "cause": refusal.error,
            "key": None if refusal.key is None else repr(refusal.key),
            "position": None if index is None else self._position(events, index),
            "row": None if index is None else self._row_text(events, index),
            "traceback": refusal.traceback_text,
        }

    def _keep(
        self, key: str | None, position: str | None, error: str, traceback: str, row: str | None
    ) -> None:
        self._rows.append(
            {
                "operator": self._spec.uid,
                "subtask": self._subtask,
                "key": key,
                "position": position,
                "error": error,
                "traceback": traceback,
                "row": row,
            }
        )

    def _position(self, events: pa.Table, index: int) -> str:
        """Where an element came from: source, file and row, or the place in the total order."""
        spec = self._spec
        order = [events[c][index].as_py() for c in spec.routed.order]
        if spec.source is None:
            return f"an earlier operator, order {tuple(str(o) for o in order)}"
        if not spec.routed.positioned:
            return f"source '{spec.source}', order {tuple(str(o) for o in order[:-1])}"
        named = f", order {tuple(str(o) for o in order[:-2])}" if order[:-2] else ""
        return f"source '{spec.source}', {self._place(order[-2], order[-1])}{named}"

    def _place(self, file: int, row: int) -> str:
        label = self._spec.labels[file] if file < len(self._spec.labels) else f"file {file}"
        return f"{label}, row {row}"

    def _row_text(self, events: pa.Table, index: int) -> str:
        row = {c: events[c][index].as_py() for c in self._spec.routed.payload}
        return json.dumps(row, default=str)
