"""``RegularJoin``: all rows of one key of two streams, whenever they come, and what becomes of it as either changes.

Mirrors ``StreamingJoinOperator`` and ``StreamingSemiAntiJoinOperator`` of Flink's table runtime. Other than there, a
row that was never there cannot be taken back, and the row of a pair that is taken back is the one that came out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from state_engine.core.functions.co_functions import KeyedCoProcessFunction
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import never_added
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig, TtlTime
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.joins.joined_rows import RowResults
from state_engine.operators.joins.keyed_join import ONLY_LEFT, How, KeyedJoin
from state_engine.operators.joins.row_identity import row_identity
from state_engine.operators.retraction import takes_back, without_kind

Alone = Literal["never", "unmatched", "matched"]
"""When a row of one side comes out by itself: in pairs only, while it has no partner, or while it has one."""


@dataclass(frozen=True)
class RegularSettings:
    """What a regular join does.

    Attributes:
        emits_changes: whether results are taken back; without, they are inserts.
        ttl, right_ttl: how long rows of either stream stay; None for ever.
    """

    how: How = "inner"
    emits_changes: bool = True
    ttl: StateTtlConfig | None = None
    right_ttl: StateTtlConfig | None = None

    holds_back_ms = None

    @property
    def shape(self) -> str:
        return f"regular join, {self.how}"

    @property
    def sees_time(self) -> bool:
        """Whether rows go by event time."""
        given = [ttl for ttl in (self.ttl, self.right_ttl) if ttl is not None]
        return any(ttl.get_ttl_time_characteristic() is TtlTime.EventTime for ttl in given)


class _Entry(NamedTuple):
    """A row that is kept once, however often it came.

    Attributes:
        matches: how many rows of the other side it is paired with; None where nobody asks.
    """

    identity: bytes
    row: Any
    times: int
    matches: int | None

    def repeated(self, kind: RowKind, output: Any) -> list[Any]:
        return [(kind, output)] * self.times


class _Side:
    def __init__(
        self, name: str, row_type: TypeInformation, ttl: StateTtlConfig | None, alone: Alone
    ) -> None:
        self.alone, self.expires = alone, ttl is not None
        self._row_type = row_type
        kept = StructType(["row", "times", "matches"], [row_type, BIGINT, BIGINT])
        self._descriptor = SortedMapStateDescriptor(name, bytes, kept)
        if ttl is not None:
            self._descriptor.enable_time_to_live(ttl)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = runtime_context.get_sorted_map_state(self._descriptor)
        self._normal, self._identity = self._row_type.compiled(), row_identity(self._row_type)

    def entries(self) -> list[_Entry]:
        return [_Entry(identity, *kept) for identity, kept in self._rows.items()]

    def entry_of(self, value: Any) -> _Entry:
        """What is kept of a row; of one that is not there, no time."""
        row = self._normal(without_kind(value))
        identity = self._identity(row)
        kept = self._rows.get(identity)
        return _Entry(identity, row, 0, None) if kept is None else _Entry(identity, *kept)

    def keep(self, entry: _Entry, *, times: int, matches: int | None) -> None:
        if times:
            self._rows.put(entry.identity, (entry.row, times, matches))
        else:
            self._rows.remove(entry.identity)

    def shows(self, entry: _Entry) -> bool:
        """Whether the results have the row by itself."""
        if self.alone == "never":
            return False
        return bool(entry.matches) == (self.alone == "matched")


class RegularJoin(KeyedJoin[RegularSettings]):
    """Pairs each row with all existing rows of its key of the other stream, for ever, or for a time to live.

    Both streams may change. The results are the join of the existing rows: where a partner comes, the row
    beside nulls is deleted and the pair inserted; where the last partner goes, the other way around. An inner join
    gives pairs the kind of the row that makes them, as semi and anti joins give it to their rows. A row that is there
    several times counts as often. A null part of a key equals no other.

    State: ``left`` and ``right``, sorted maps ``identity → struct<row, times, matches>``: one entry
    a key and different row, of all existing rows. ``matches`` counts the partners of a row that may come out by
    itself. With a time to live, a row goes this long after it was written last. Its results stay then, and
    taking it back changes nothing.

    Raises, of a row, when it is processed:
        RetractionError: it is taken back, and is not there.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.operators.joins.joined_rows import JoinedRows
        >>> from state_engine.testing import KeyedHarness
        >>> rows = to_type("k string, n bigint", parameter="rows")
        >>> results = JoinedRows(rows, rows, take=["n"], suffix="_right", join="join")
        >>> join = RegularJoin(rows, rows, results, RegularSettings("left"))
        >>> harness = KeyedHarness(join, key_by=lambda row: row[0], changing=True)
        >>> changes = harness.process_pairs([(1, ("a", 1)), (2, ("a", 2))])
        >>> [(str(kind), row) for kind, row in changes]
        [('+I', ('a', 1, None)), ('-D', ('a', 1, None)), ('+I', ('a', 1, 2))]
        >>> changes = harness.process2([(RowKind.DELETE, ("a", 2))])
        >>> [(str(kind), row) for kind, row in changes]
        [('-D', ('a', 1, 2)), ('+I', ('a', 1, None))]
    """

    accepts_changes = True
    _results: RowResults

    def _keep(self, left_type: TypeInformation, right_type: TypeInformation) -> None:
        settings, how = self._settings, self._settings.how
        self.emits_changes, self.sees_time = settings.emits_changes, settings.sees_time
        left: Alone = (
            "matched" if how == "semi" else "unmatched" if how in ("left", "full", "anti") else "never"
        )
        right: Alone = "unmatched" if how in ("right", "full") else "never"
        self._left = _Side("left", left_type, settings.ttl, left)
        self._right = _Side("right", right_type, settings.right_ttl, right)
        self._has_pairs = how not in ONLY_LEFT
        self._pads = how in ("left", "right", "full")

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._left.open(runtime_context)
        self._right.open(runtime_context)

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Changes by a left row, as it comes or goes."""
        return self._element(self._left, self._right, value, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Changes by a right row, as it comes or goes."""
        return self._element(self._right, self._left, value, ctx)

    def _element(self, own: _Side, other: _Side, value: Any, ctx: KeyedContext) -> Iterable[Any]:
        may_match = self._may_match(ctx)
        if not may_match and own.alone != "unmatched":
            return []
        entry, kind = own.entry_of(value), ctx.row_kind()
        partners = other.entries() if may_match else []
        if not takes_back(kind):
            changes = self._added(own, other, entry, partners, kind)
        elif entry.times:
            changes = self._taken_back(own, other, entry, partners, kind)
        elif own.expires:
            changes = []
        else:
            raise never_added(value, what="join")
        return changes if self.emits_changes else [output for _, output in changes]

    def _added(
        self, own: _Side, other: _Side, entry: _Entry, partners: list[_Entry], kind: RowKind
    ) -> list[Any]:
        of_own = RowKind.INSERT if self._pads else kind
        if own.alone != "never" and not entry.times:
            entry = entry._replace(matches=sum(partner.times for partner in partners))
        own.keep(entry, times=entry.times + 1, matches=entry.matches)
        changes = list[Any]()
        for partner in partners:
            changes += self._matched(other, partner, 1, kind)
            changes += self._pairs(own, entry, partner, of_own)
        if own.shows(entry):
            changes.append((of_own, self._alone(own, entry)))
        return changes

    def _taken_back(
        self, own: _Side, other: _Side, entry: _Entry, partners: list[_Entry], kind: RowKind
    ) -> list[Any]:
        of_own = RowKind.DELETE if self._pads else kind
        own.keep(entry, times=entry.times - 1, matches=entry.matches)
        changes = list[Any]()
        for partner in partners:
            changes += self._pairs(own, entry, partner, of_own)
            changes += self._matched(other, partner, -1, kind)
        if own.shows(entry):
            changes.append((of_own, self._alone(own, entry)))
        return changes

    def _matched(self, side: _Side, entry: _Entry, by: int, kind: RowKind) -> list[Any]:
        """Count a partner of a row more or less; what that changes of the row by itself."""
        if side.alone == "never":
            return []
        assert entry.matches is not None
        after = entry._replace(matches=entry.matches + by)
        side.keep(after, times=after.times, matches=after.matches)
        if side.shows(entry) == side.shows(after):
            return []
        changed = RowKind.INSERT if side.shows(after) else RowKind.DELETE
        return entry.repeated(kind if side.alone == "matched" else changed, self._alone(side, entry))

    def _pairs(self, own: _Side, entry: _Entry, partner: _Entry, kind: RowKind) -> list[Any]:
        if not self._has_pairs:
            return []
        left, right = (entry, partner) if own is self._left else (partner, entry)
        return partner.repeated(kind, self._results.row(left.row, right.row))

    def _alone(self, side: _Side, entry: _Entry) -> Any:
        return self._results.row(*((entry.row, None) if side is self._left else (None, entry.row)))
