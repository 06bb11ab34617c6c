"""Rows that a subtask refused: where each came from, why, and the file of dead letters that they become.

A row is refused because it could not be parsed, because its key cannot be one, or because its function raised.
"""

from __future__ import annotations

import json

import pyarrow as pa

from state_engine.backends.delta.layout import DEAD_LETTERS_SCHEMA
from state_engine.core.outputs import Refusal
from state_engine.runtime.frames import REFUSED, SOURCE
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

    def add_unparsable(self, table: pa.Table) -> dict[str, int]:
        """Keep the rows that sources could not parse; their number by source."""
        counts: dict[str, int] = {}
        for packed in table[REFUSED].drop_null().to_pylist():
            source, file, row, text = packed.split("\n", 3)
            where = f"source '{source}', {self._place(source, int(file), int(row))}"
            self._keep(None, where, _UNPARSABLE, "", text)
            counts[source] = counts.get(source, 0) + 1
        return counts

    def table(self) -> pa.Table:
        """All of them as rows of the table of dead letters."""
        return pa.Table.from_pylist(self._rows, DEAD_LETTERS_SCHEMA)

    def explain(self, refusal: Refusal, events: pa.Table) -> dict[str, str | None]:
        """What the driver needs for its error message."""
        index = refusal.index
        position = refusal.place if index is None else self._position(events, index)
        return {
            "class": "UserFunctionError",
            "cause": refusal.error,
            "key": None if refusal.key is None else repr(refusal.key),
            "position": position,
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
        spec, routed = self._spec, self._spec.routed
        assert routed is not None
        order = [events[c][index].as_py() for c in routed.order]
        source = events[SOURCE][index].as_py() if routed.sources else spec.source
        if source is None:
            return f"an earlier operator, order {tuple(str(o) for o in order)}"
        if not routed.positioned:
            shown = order if routed.sources else order[:-1]
            return f"source '{source}', order {tuple(str(o) for o in shown if o is not None)}"
        named = f", order {tuple(str(o) for o in order[:-2])}" if order[:-2] else ""
        return f"source '{source}', {self._place(source, order[-2], order[-1])}{named}"

    def _place(self, source: str, file: int, row: int) -> str:
        labels = self._spec.labels.get(source, ())
        return f"{labels[file] if file < len(labels) else f'file {file}'}, row {row}"

    def _row_text(self, events: pa.Table, index: int) -> str:
        assert self._spec.routed is not None
        row: dict[str, object] = {}
        for one in self._spec.routed.inputs:
            for name, column in zip(one.names, one.columns, strict=True):
                value = events[column][index].as_py()
                if value is not None or len(self._spec.routed.inputs) == 1:
                    row[name] = value
        return json.dumps(row, default=str)
