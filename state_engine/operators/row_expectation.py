"""``RowExpectation``: a rule that each row of a stream must meet, and what becomes of the rows that break it.

It is judged over columns: no row becomes Python values. A row meets a rule only where the rule is true for it, as a
filter keeps a row only where its condition is true: a null breaks it. Plays the part of the expectations of Lakeflow's
pipelines; Flink has no such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.map_functions import FilterFunction
from state_engine.operators.sql_rule import SqlRule

Otherwise = Literal["fail", "dead_letter", "drop", "warn"]
"""What becomes of rows that break a rule."""
RowRuleLike = str | Callable[[pa.Table], Any]
"""A rule by row: SQL text, or a function from a table to a boolean column."""


class RowExpectation(FilterFunction):
    """A filter over columns, which counts.

    Args:
        rule: a condition on columns as SQL, or a function from the rows of a subtask to a boolean column.

    Example:
        >>> rule = RowExpectation("amount_positive", "amount > 0", "drop")
        >>> rule.text, rule.removes
        ('amount > 0', True)
        >>> rule.met(pa.table({"amount": [3, 0, None]})).tolist()
        [True, False, False]
    """

    sees_time = False

    def __init__(self, name: str, rule: RowRuleLike, otherwise: Otherwise) -> None:
        self.name, self.otherwise = name, otherwise
        with self._naming():
            self.rule = SqlRule.of(rule) if isinstance(rule, str) else rule

    @property
    def text(self) -> str:
        """The rule for people: its SQL, or the name of its function."""
        if isinstance(self.rule, SqlRule):
            return self.rule.text
        return f"{getattr(self.rule, '__name__', type(self.rule).__name__)}(rows)"

    @property
    def removes(self) -> bool:
        """Whether rows that break it do not go on."""
        return self.otherwise in ("drop", "dead_letter")

    def met(self, rows: pa.Table) -> np.ndarray[Any, Any]:
        """Which rows meet the rule.

        Raises:
            ConfigurationError: the rule cannot be judged over these columns.
            ValueTypeError: its function gave no boolean column of as many rows.
        """
        if not rows.num_rows:
            return np.zeros(0, bool)
        if isinstance(self.rule, SqlRule):
            with self._naming():
                verdicts = self.rule.judged(rows)
        else:
            verdicts = self._column(self.rule(rows), rows.num_rows)
        met: np.ndarray[Any, Any] = verdicts.fill_null(False).to_numpy(zero_copy_only=False)
        return met

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse a rule as SQL that does not fit the columns of a stream. Raises ConfigurationError."""
        if isinstance(self.rule, SqlRule):
            with self._naming():
                self.rule.judged(schema.empty_table())

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except ConfigurationError as error:
            raise ConfigurationError(f"expectation '{self.name}': {error}") from None

    def _column(self, given: Any, rows: int) -> pa.Array:
        column = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
        if not isinstance(column, pa.Array) or not pa.types.is_boolean(column.type) or len(column) != rows:
            what = (
                f"{counted(len(column), 'value')} of type {column.type}"
                if isinstance(column, pa.Array)
                else type(given).__name__
            )
            raise ValueTypeError(
                f"expectation '{self.name}': {self.text} gave {what} for {counted(rows, 'row')}: return a boolean "
                "pyarrow.Array with one value for each row"
            )
        return column
