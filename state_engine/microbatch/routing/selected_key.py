"""Keys that a function makes of every element: evaluated in Python where the rows are routed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.types.beyond_python import undecodable
from state_engine.core.types.columns import elements
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.job.graph import KEY_COLUMN, OperatorNode, SelectedKey
from state_engine.microbatch.routing.routed import KEY_REFUSAL, RoutedInput, selected_name
from state_engine.sources.row_kinds import with_kinds_of


@dataclass(frozen=True)
class KeyFunction:
    """Makes the key of every row of one input."""

    get_key: Callable[[Any], Any]
    key_type: TypeInformation
    payload: tuple[str, ...]
    scalar: bool
    declared: StructType | None

    @classmethod
    def of(cls, one: RoutedInput, operator: OperatorNode) -> KeyFunction | None:
        key = operator.inputs[one.place].key
        if not isinstance(key, SelectedKey):
            return None
        payload = tuple(one.frame.user_columns)
        return cls(key.selector.get_key, key.key_type, payload, one.scalar, one.fitting)

    @property
    def code(self) -> list[Any]:
        """What holds code of the user."""
        return [self.get_key, self.key_type, self.declared]

    def add_to(self, rows: pa.Table) -> pa.Table:
        """Rows with the columns of the key and, where the function raised, the reason."""
        keys: list[Any] = [None] * rows.num_rows
        reasons: list[str | None] = [None] * rows.num_rows
        bad = undecodable({name: rows[name] for name in self.payload})  # the subtask refuses it
        good = [row for row in range(rows.num_rows) if row not in bad] if bad else range(rows.num_rows)
        readable = rows.take(pa.array(good, pa.int64())) if bad else rows
        given = elements(readable, self.payload, scalar=self.scalar, declared=self.declared) if good else []
        given = with_kinds_of(readable, given)
        for row, element in zip(good, given, strict=True):
            try:
                key = self.get_key(element)
                keys[row] = None if key is None else self.key_type.normalise(key)
            except MemoryError:  # no fault of the row
                raise
            except Exception as error:  # a user's function may raise anything
                reasons[row] = f"the key selector raised {type(error).__name__}: {error}"
        for place, column in enumerate(DeclaredKey.of(KEY_COLUMN, self.key_type).columns(keys)):
            rows = rows.append_column(selected_name(place), column)
        return rows.append_column(KEY_REFUSAL, pa.array(reasons, pa.string()))
