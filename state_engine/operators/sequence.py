"""``Sequences``: rows of a key that follow each other, step by step, within some time.

Mirrors what Flink's ``CepOperator`` does for a pattern of ``next`` or ``followedBy`` with ``within``, and its skip
strategies ``SKIP PAST LAST ROW`` and none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.time.local_times import instant
from state_engine.core.types.every_type import ListType, StructType, TypeInformation
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.key_values import key_values
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.lateness import Lateness, check_time, plus
from state_engine.operators.places import number_behind
from state_engine.operators.waiting import WaitingRows

PARTIAL, TIMES, STEPS = "partial", "times", "steps"
"""Name of the state; its field with the times of steps; the column with the number of those that were reached."""
BEGIN = StructType(["began_at", "began_n"], [BIGINT, BIGINT])
"""The key of the state: the place of the first row, as ``PLACE``, in columns of a table that shows it."""


@dataclass(frozen=True)
class Step:
    """A step of a sequence; ``step(…)`` makes it.

    Attributes:
        name: of the column ``<name>_at``.
        where: whether a row is of the step; None for a value of the column that steps are compared with.
        value: this value.
    """

    name: str
    where: Callable[[Any], bool] | None = None
    value: Any = None


def step(name: str, where: Callable[[Any], bool]) -> Step:
    """A step of ``keyed.sequence(…)``: the rows that a function chooses.

    Args:
        name: of the column with the time of the step, ``<name>_at``.
        where: says of a row whether it is of the step.

    Raises:
        ConfigurationError: the name is not a text, or the function cannot be called.

    Example:
        >>> step("large", where=lambda row: row.cents > 10_000).name
        'large'
    """
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"step takes a name and a function of a row, not {name!r}")
    if not callable(where):
        raise ConfigurationError(f"step '{name}': where takes a function of a row, not {where!r}")
    return Step(name, where)


@dataclass(frozen=True)
class SequenceSettings:
    """What a sequence consists of.

    Attributes:
        by: the column that steps without function are compared with.
        within_ms: its last row comes less than this behind the first.
        strict: whether any other row of the key ends it.
        overlapping: whether rows may be of several.
        incomplete: whether those that run out of time come out as well.
        take: columns of the last row.

    Raises:
        ConfigurationError: these do not fit.
    """

    steps: tuple[Step, ...]
    within_ms: int
    by: str | None = None
    strict: bool = False
    overlapping: bool = False
    incomplete: bool = False
    take: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) < 2:
            raise ConfigurationError(
                "sequence takes two steps or more, as in sequence('view', 'buy', by='action', within='1 day'); for one "
                "take a filter"
            )
        if self.within_ms < 1:
            raise ConfigurationError(
                f"within of sequence must be longer than nothing, not {self.within_ms} ms"
            )
        compared = [one for one in self.steps if one.where is None]
        if compared and self.by is None:
            raise ConfigurationError(
                f"sequence: the step {compared[0].value!r} is a value of a column: say which, by='action', or give "
                f"step({compared[0].name!r}, where=…)"
            )
        if self.by is not None and not compared:
            raise ConfigurationError(
                f"sequence: no step is a value of the column by='{self.by}': leave by out"
            )

    @classmethod
    def of(cls, steps: Sequence[Any], within_ms: int, **more: Any) -> SequenceSettings:
        """The same of steps as they are given: values, or what ``step`` makes."""
        made = []
        for one in steps:
            if one is None:
                raise ConfigurationError(
                    "sequence: a step cannot be null, which no value is equal to: use step('missing', where=…)"
                )
            made.append(one if isinstance(one, Step) else Step(str(one), value=one))
        return cls(tuple(made), within_ms, **more)

    @property
    def columns(self) -> list[str]:
        """The columns with the times of steps; a name that comes again has a number."""
        seen: dict[str, count[int]] = {}
        names = []
        for one in self.steps:
            number = next(seen.setdefault(one.name, count(1)))
            names.append(f"{one.name}_at" if number == 1 else f"{one.name}_{number}_at")
        return names

    def shape(self, lateness: Lateness) -> str:
        flags = [name for name in ("strict", "overlapping", "incomplete") if getattr(self, name)]
        steps = [one.name if one.where is not None else one.value for one in self.steps]
        return " ".join(
            ["sequence", repr(steps), f"by {self.by}", f"within {self.within_ms}", *flags, lateness.form]
        )

    def columns_between(self) -> dict[str, TypeInformation]:
        """The columns that come out behind those of the key and before those taken from the last row.

        Raises:
            ConfigurationError: two have one name.
        """
        instant = to_type("timestamp", parameter="times of steps")
        names = [*self.columns, *([STEPS] if self.incomplete else [])]
        check_no_clash(names)
        return {name: BIGINT if name == STEPS else instant for name in names}


def check_no_clash(names: Sequence[str]) -> None:
    """Refuse columns that come out under one name. Raises ConfigurationError."""
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise ConfigurationError(
            f"sequence: two columns would be called '{twice[0]}': rename the step, or the column in a transform before "
            "key_by"
        )


class Sequences(KeyedProcessFunction):
    """Emits the times of rows that are a sequence: one of each step, in their order, within some time.

    Rows are taken by event time, those of one time by the total order, once the watermark is ``lateness`` behind them.
    A sequence takes the first row that fits its next step and skips others; a ``strict`` one ends with any other row of
    the key. Its last row comes less than ``within`` behind the first. A row is of one sequence, the one that began
    first: with its last row all others go. With ``overlapping`` they stay, and a row may be of several. With
    ``incomplete`` one that runs out of time comes out too, its event time that of its first row and ``within``, before
    the rows of this time are taken.

    State of a key: ``waiting``, the rows within the lateness, and ``partial``, the sequences that began, which are the
    rows of the first step ``within`` the watermark. They go with the watermark ``within + lateness`` behind the first
    row. Nulls are equal to no step.

    Args:
        row_type: type of the elements, rows with named columns.
        record_key: see ``key_values``.

    ``publish(table)`` shows ``partial``: ``began_at``, the time of the first row in milliseconds, ``began_n``, which
    counts the first rows of one time, ``times`` and the columns that are taken.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, one outside of the years 1 to 9999, or not this type.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> funnel = SequenceSettings.of(["view", "buy"], 60_000, by="action")
        >>> function = Sequences("user string, action string, at bigint", funnel, Lateness())
        >>> harness = KeyedHarness(function, key_by=lambda row: row[0], timestamp_of=lambda row: row[2])
        >>> harness.process([("ada", "buy", 5_000), ("ada", "view", 2_000)])
        []
        >>> [(user, viewed.second, bought.second) for user, viewed, bought in harness.drain()]
        [('ada', 2, 5)]
    """

    shows = (PARTIAL, None)

    def __init__(
        self, row_type: Any, settings: SequenceSettings, lateness: Lateness, *, record_key: bool = False
    ) -> None:
        self._rows = KeyedRows(row_type, apart=(), operator="sequence")
        self._settings, self._lateness, self._record_key = settings, lateness, record_key
        self.late_to, self.holds_back_ms = lateness.late_to, lateness.ms
        self.shape = settings.shape(lateness)
        self._rows.named([name for name in (settings.by, *settings.take) if name is not None])
        self._steps = [self._as_in_rows(one) for one in settings.steps]
        self._waiting = WaitingRows(self._rows.columns, lateness)
        taken = self._rows.only(settings.take) if settings.take else StructType([], [])
        partial = StructType([TIMES, *taken.names], [ListType(BIGINT), *taken.types])
        self._descriptor = SortedMapStateDescriptor(PARTIAL, BEGIN, partial)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)
        self._partial = runtime_context.get_sorted_map_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        check_time(ctx.timestamp())
        return self._waiting.add(self._rows.normal(value), ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Take the rows whose time has come; sequences that run out of time go."""
        outputs = []
        for at, row in self._waiting.due(timestamp, ctx):
            outputs += self._run_out(at, ctx)
            outputs += self._take(at, row, ctx)
        outputs += self._run_out(timestamp - self._lateness.ms, ctx)
        first = self._partial.first_entry()
        if first is not None:
            ctx.timer_service().register_event_time_timer(self._lateness.ends(self._end(first[0][0])))
        return outputs

    # -- inside ----------------------------------------------------------------------------------------------------

    def _as_in_rows(self, one: Step) -> Step:
        """A step with its value as rows have it. Raises ConfigurationError where none can be equal to it."""
        if one.where is not None or self._settings.by is None:
            return one
        kind = self._rows.only([self._settings.by]).types[0]
        try:
            return replace(one, value=kind.normalise(one.value))
        except ValueTypeError as error:
            raise ConfigurationError(
                f"sequence: the step {one.value!r} does not fit the column '{self._settings.by}', which has the type "
                f"{kind}: {error}"
            ) from None

    def _end(self, began: int) -> int:
        return plus(began, self._settings.within_ms)

    def _run_out(self, at: int, ctx: KeyedContext) -> list[Any]:
        """Drop the sequences that have no time left for a row of this time; what comes out of them."""
        outputs = []
        while (first := self._partial.first_entry()) is not None and self._end(first[0][0]) <= at:
            (began, _), (times, *taken) = first
            self._partial.remove(first[0])
            if self._settings.incomplete:
                outputs.append(Timestamped(self._output(times, taken, ctx), self._end(began)))
        return outputs

    def _take(self, at: int, row: Any, ctx: KeyedContext) -> list[Any]:
        """Let the row be the next step of sequences, or the first of another one; those that are complete."""
        settings, outputs = self._settings, list[Any]()
        taken = [row[name] for name in settings.take]
        for place, (times, *_) in list(self._partial.items()):
            if self._fits(row, self._steps[len(times)]):
                longer = [*times, at]
                if len(longer) < len(settings.steps):
                    self._partial.put(place, (longer, *taken))
                    continue
                outputs.append(Timestamped(self._output(longer, taken, ctx), at))
                if not settings.overlapping:
                    self._partial.clear()
                    return outputs
                self._partial.remove(place)
            elif settings.strict:
                self._partial.remove(place)
        if self._fits(row, self._steps[0]):
            self._partial.put((at, number_behind(self._partial, (at,))), ([at], *taken))
        return outputs

    def _fits(self, row: Any, one: Step) -> bool:
        if one.where is not None:
            return bool(one.where(row))
        return bool(row[self._settings.by] == one.value)

    def _output(self, times: Sequence[int], taken: Sequence[Any], ctx: KeyedContext) -> tuple[Any, ...]:
        settings = self._settings
        instants = [instant(at) for at in times] + [None] * (len(settings.steps) - len(times))
        reached = [len(times)] if settings.incomplete else []
        return (*key_values(ctx.get_current_key(), record=self._record_key), *instants, *reached, *taken)
