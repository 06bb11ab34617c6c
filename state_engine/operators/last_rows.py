"""``LastRow``: the last row of each key, as a table with a primary key holds it (SCD 1).

What is behind keyed sinks: the state is published as a table. Plays the part of the state in Flink's
``SinkUpsertMaterializer``, and with a sequence that of a sink whose database compares versions. Decision 0065.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from state_engine.core.argument_checks import checked_function
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.row import Row, RowKind
from state_engine.core.types.type_information import TypeLike
from state_engine.operators.column_last_rows import ColumnLastRow
from state_engine.operators.column_order import are_compared
from state_engine.operators.keyed_rows import GONE, KeyedRows, same

ROW, DELETED = "row", "deleted"
"""Names of the states: the last row, which is what is published, and the sequence of a deletion."""


class LastRow(KeyedProcessFunction):
    """Keeps the last row of each key in the value state ``row``; emits nothing.

    Without ``sequence`` the last row is the last one in the total order:

    * An insert or update is stored, and a delete removes what is stored.
    * An ``update_before`` removes the stored row if it is equal to it. Behind it comes the ``update_after``: of the
      same key, which stores the new row, or of another key, and then this one no longer has a row. An
      ``update_before`` of another row is outdated, and ignored.

    With ``sequence`` it is the row with the greatest sequence, of several the last one in the total order; rows may
    arrive in any order. Deletes and ``update_before`` then are rows like others, of "no row": they remain as their
    sequence in the state ``deleted``, so that an older row which arrives later does not bring back the key.

    A change feed is whole at the end of each of its commits. Where a micro-batch ends between an ``update_before`` and
    its ``update_after``, the row is absent from the checkpoint between them, and there again in the next one.

    Args:
        row_type: type of the elements.
        key: the columns that the stream is keyed by; the state holds the others. Empty where a function gives the key.
        sequence: columns that order the rows of a key, compared from the first to the last; not of the key.
        of_changes: whether the sequence is one of changes, such as a position in a database's log. Then of one sequence
            a row counts before a deletion, because a change that replaces a row has both, and what arrives again
            changes nothing.
        ttl: lets rows expire. Their sequence goes with them, so an older row may then be stored again.
        deleted_ttl: lets the sequences of deletions expire, by default never. It should be longer than rows can be
            late.

    Raises:
        ConfigurationError: a column is unknown, has no order, or belongs to the key; no column is left.
        ValueTypeError: of a row, when it is processed: it has not this type, or no sequence.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> last = LastRow("id bigint, city string, at bigint", key=["id"], sequence="at")
        >>> harness = KeyedHarness(last, key_by=lambda row: row.id)
        >>> harness.process([Row(id=1, city="Turin", at=5), Row(id=1, city="Rome", at=3)])
        []
        >>> harness.state("row")
        {1: Row(city='Turin', at=5)}
    """

    accepts_changes = True

    @checked_function
    def __init__(
        self,
        row_type: TypeLike,
        *,
        key: Iterable[str] = (),
        sequence: str | Sequence[str] | None = None,
        of_changes: bool = False,
        ttl: StateTtlConfig | None = None,
        deleted_ttl: StateTtlConfig | None = None,
    ) -> None:
        key = tuple(key)
        self._rows = KeyedRows(row_type, apart=key, operator="LastRow")
        self._sequence = (sequence,) if isinstance(sequence, str) else tuple(sequence or ())
        self._of_changes = of_changes
        in_key = [name for name in self._sequence if name in key]
        if in_key:
            raise ConfigurationError(f"LastRow: the sequence {in_key} is part of the key: it orders nothing")
        if deleted_ttl is not None and not self._sequence:
            raise ConfigurationError(
                "LastRow: deleted_ttl needs a sequence: without, nothing is kept of deletions"
            )
        self._row_descriptor = _descriptor(ROW, self._rows.kept, ttl)
        if self._sequence:
            self._sequence_type = self._rows.in_order(self._sequence, what="sequence")
            self._deleted_descriptor = _descriptor(DELETED, self._sequence_type, deleted_ttl)

    def vectorized(self) -> ColumnLastRow | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        states = self.states_over_columns
        return None if states is None or self._of_changes else ColumnLastRow(*states, sequence=self._sequence)

    @property
    def states_over_columns(self) -> tuple[ValueStateDescriptor, ValueStateDescriptor | None] | None:
        """The states of rows and of deletions; None where columns would not do the same.

        That is where columns do not compare as rows do, and where what is kept expires.
        """
        kept, deleted = self._rows.kept, self._deleted_descriptor if self._sequence else None
        expires = any(one is not None and one.ttl is not None for one in (self._row_descriptor, deleted))
        if expires or not are_compared(kept) or not are_compared(kept, self._sequence, nan=False):
            return None
        return self._row_descriptor, deleted

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states; without a sequence there is only one."""
        self._row = runtime_context.get_state(self._row_descriptor)
        if self._sequence:
            self._deleted = runtime_context.get_state(self._deleted_descriptor)
            self._place = key_order(self._sequence_type).encode

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> None:
        """Store the row, remove the stored one, or leave it."""
        row, kind = self._rows.normal(value), ctx.row_kind()
        if self._sequence:
            self._by_sequence(row, gone=kind in GONE)
        elif kind not in GONE:
            self._row.update(self._rows.kept_of(row))
        elif kind is RowKind.DELETE or same(self._row.value(), self._rows.kept_of(row)):
            self._row.clear()

    @property
    def kept(self) -> Row | None:
        """What is kept of the last row of the current key."""
        row: Row | None = self._row.value()
        return row

    def forget(self) -> None:
        """Clear what is kept of the current key."""
        self._row.clear()
        if self._sequence:
            self._deleted.clear()

    def _by_sequence(self, row: Row, *, gone: bool) -> None:
        sequence = self._rows.values(row, self._sequence, what="sequence")
        stored = self._row.value()
        last = self._deleted.value() if stored is None else tuple(stored[name] for name in self._sequence)
        if last is not None:
            new, old = self._place(sequence), self._place(last)
            again = self._of_changes and new == old and (gone or stored is not None)
            if new < old or again:
                return
        if gone:
            self._row.clear()
            self._deleted.update(sequence)
        else:
            self._row.update(self._rows.kept_of(row))
            if stored is None:
                self._deleted.clear()


def _descriptor(name: str, kind: TypeLike, ttl: StateTtlConfig | None) -> ValueStateDescriptor:
    descriptor = ValueStateDescriptor(name, kind)
    if ttl is not None:
        descriptor.enable_time_to_live(ttl)
    return descriptor
