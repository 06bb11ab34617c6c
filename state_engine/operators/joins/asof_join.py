"""``AsOfJoin``: each row of a stream with the version of another one that is in force at its time.

Mirrors Flink's ``TemporalRowTimeJoinOperator``. Other than there, a row that is too late never comes out with the
version that happens to be there: it is late, as in all operators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.co_functions import KeyedCoProcessFunction
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import Row, RowKind, row_of_kind
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.joins.column_asof_join import ColumnAsOfJoin
from state_engine.operators.joins.joined_rows import JoinedRows, Kept
from state_engine.operators.joins.keyed_join import KeyedJoin
from state_engine.operators.lateness import Lateness, LateRows, time_of
from state_engine.operators.waiting import WaitingRows

VERSIONS = "versions"
"""Name of the state with the right rows, by their times."""
AsOfEmit = Literal["final", "at_once"]
"""When a left row comes out: when all versions of its time have come, or at once, with what has come before it."""


@dataclass(frozen=True)
class AsOfSettings:
    """What an as-of join does.

    Attributes:
        tolerance_ms: how old a version may be, included; None for any age.
        exact: whether a version of the time of a row counts.
        inner: whether rows without version are left out.
        left: for how long left rows are taken, and where later ones go.
        ttl: how long a version stays; None for ever, where no newer one comes.

    Raises:
        ConfigurationError: the tolerance is below 0.
    """

    tolerance_ms: int | None = None
    exact: bool = True
    inner: bool = False
    left: Lateness = field(default_factory=Lateness)
    emit: AsOfEmit = "final"
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        if self.tolerance_ms is not None and self.tolerance_ms < 0:
            raise ConfigurationError(f"tolerance must be 0 or more, not {self.tolerance_ms} ms")

    @property
    def timers_yield(self) -> bool:
        """Whether rows come out later than they came."""
        return self.emit == "final"

    @property
    def holds_back_ms(self) -> int:
        """By how much outputs may be behind the watermark."""
        return self.left.ms

    @property
    def shape(self) -> str:
        age = "any age" if self.tolerance_ms is None else f"tolerance {self.tolerance_ms}"
        return f"as-of join, {age}, {self.emit}, {self.left.form}"


class AsOfJoin(KeyedJoin[AsOfSettings]):
    """Puts beside each left row the newest right row of its key that is not newer than it.

    Of right rows of one time the later one in the total order counts. The right stream may change: an insert and an
    update are versions, and a delete ends the version before its time. The old row of an update ends it in the same
    way, unless its time has a version: if an update gives a row another key, the old key has none then.

    A left row of time ``t`` is too late once the watermark, the smaller one of both streams, is ``t + lateness`` or
    more. A right one that late counts as late, too (an update once), but still is the version for left rows that come
    out later. A null part of a key equals no other.

    State: ``versions``, a sorted map ``time → row``, null where a version has ended: those above ``watermark -
    lateness`` and the newest one that is not, unless it is older than the tolerance. A key keeps one version for ever,
    or for ``ttl``. ``waiting`` holds the left rows above ``watermark - lateness``, unless they come out at once.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.operators.joins.joined_rows import JoinedRows
        >>> from state_engine.testing import KeyedHarness
        >>> rows = to_type("k string, at bigint", parameter="rows")
        >>> results = JoinedRows(rows, rows, take=["at"], suffix="_right", join="join_asof")
        >>> join = AsOfJoin(rows, rows, results, AsOfSettings(tolerance_ms=9))
        >>> harness = KeyedHarness(join, key_by=lambda row: row[0], timestamp_of=lambda row: row[1])
        >>> harness.process_pairs([(1, ("a", 10)), (2, ("a", 8)), (2, ("a", 11)), (1, ("a", 30))])
        []
        >>> harness.drain()
        [('a', 10, 8), ('a', 30, None)]
    """

    accepts_changes = True
    shows = (VERSIONS, "valid_from")

    def _keep(self, left_type: TypeInformation, right_type: TypeInformation) -> None:
        settings = self._settings
        self._waiting = WaitingRows(left_type, settings.left)
        self._late, self._late_version = LateRows(settings.left.late_to), LateRows(None)
        self._descriptor = SortedMapStateDescriptor(VERSIONS, BIGINT, StructType(["row"], [right_type]))
        if settings.ttl is not None:
            self._descriptor.enable_time_to_live(settings.ttl)

    def vectorized(self) -> ColumnAsOfJoin | None:
        """The join over columns, of rows of columns that come out at once."""
        settings, kind = self._settings, self._descriptor.value_type
        assert isinstance(kind, StructType)
        if (
            settings.emit != "at_once"
            or settings.ttl is not None
            or not isinstance(kind.types[0], StructType)
        ):
            return None
        if not isinstance(self._results, JoinedRows):
            return None
        return ColumnAsOfJoin(
            self._descriptor, self._results, settings.left, tolerance_ms=settings.tolerance_ms,
            exact=settings.exact, inner=settings.inner, record_key=self._record_key,
        )  # fmt: skip

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._late.open(runtime_context)
        self._late_version.open(runtime_context)
        self._versions = runtime_context.get_sorted_map_state(self._descriptor)
        if self._settings.emit == "final":
            self._waiting.open(runtime_context)

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Let a left row wait, or give it its version."""
        watermark = ctx.current_watermark()
        self._drop_versions(watermark)
        if self._settings.emit == "final":
            return self._waiting.add(value, ctx)
        at = time_of(ctx)
        if self._settings.left.is_over(at, watermark):
            return self._late.outputs(value, ctx)
        return self._joined(ctx, Kept(at, value))

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Keep a version, or the end of one; a late one too, for left rows that come out later."""
        at, watermark, kind = time_of(ctx), ctx.current_watermark(), ctx.row_kind()
        if kind is not RowKind.UPDATE_BEFORE:
            if self._settings.left.is_over(at, watermark):
                self._late_version.outputs(value, ctx)
            self._versions.put(at, (_version(value, kind),))
        elif not self._versions.contains(at):
            self._versions.put(at, (None,))
        self._drop_versions(watermark)
        return []

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        """The left rows whose versions have all come."""
        for at, row in self._waiting.due(timestamp, ctx):
            yield from self._joined(ctx, Kept(at, row))
        self._drop_versions(timestamp)

    def _joined(self, ctx: KeyedContext, row: Kept) -> list[Any]:
        version = self._version_at(row.at) if self._may_match(ctx) else None
        if version is None and self._settings.inner:
            return []
        return self._results.of(row, version)

    def _version_at(self, at: int) -> Kept | None:
        """The version that is in force at a time; None where there is none, or it has ended."""
        settings = self._settings
        newest = self._newest(at + 1 if settings.exact else at)
        if newest is None or newest.row is None:
            return None
        too_old = settings.tolerance_ms is not None and at - newest.at > settings.tolerance_ms
        return None if too_old else newest

    def _newest(self, before: int) -> Kept | None:
        last = next(iter(deque(self._versions.head_items(before), maxlen=1)), None)
        return None if last is None else Kept(last[0], last[1][0])

    def _drop_versions(self, watermark: int) -> None:
        """Drop the versions that no left row can be given: those are above ``watermark - lateness``."""
        if watermark == MIN_TIMESTAMP:
            return
        first_row = watermark - self._settings.left.ms + 1
        older = [at for at, _ in self._versions.head_items(first_row)]
        tolerance_ms = self._settings.tolerance_ms
        if older and (tolerance_ms is None or first_row - older[-1] <= tolerance_ms):
            older.pop()
        for at in older:
            self._versions.remove(at)


def _version(row: Any, kind: RowKind) -> Any:
    """The version that a right row is, as an insert; None where it ends one."""
    if kind is RowKind.DELETE:
        return None
    return row_of_kind(row, RowKind.INSERT) if isinstance(row, Row) else row
