"""``TimePartitions``: a job in slices of event time, one after the other; and ``Partition``: one of them.

Partitions lie side by side without a gap. Days begin at local midnight, so that one has 23 or 25 hours where the clock
is changed; hours are hours of real time. Keys are spelled as Dagster spells them: ``2013-01-02``, ``2013-01-02-05:00``,
and ``2013-11-03-01:00-0500`` for the second of two hours that a clock shows the same. Flink has no counterpart: its
tumbling windows cut the data of an operator, and not the runs of a job. Decision 0016.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from state_engine.core.errors import ConfigurationError, PartitionOrderError
from state_engine.core.time.local_times import EPOCH, instants, local_time, milliseconds_of, zone_of

HOUR_MS = 3_600_000
LATE = ("warn", "ignore", "next")
_EVERY = ("day", "hour")
_DAY_KEY = re.compile(r"\d{4}-\d\d-\d\d")
_HOUR_KEY = re.compile(r"(\d{4}-\d\d-\d\d-\d\d:\d\d)([+-]\d{4})?")


@dataclass(frozen=True)
class Partition:
    """One slice of event time.

    Attributes:
        start_ms, end_ms: milliseconds since 1970 in UTC; the end is exclusive.
    """

    key: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class TimePartitions:
    """How a job is cut into time partitions.

    Args:
        column: that holds the event time of a row, a timestamp or a date; of every source, or by the source's name.
            Values without a time zone count as UTC, as event time does.
        every: ``day`` or ``hour``.
        start: key of the first partition; for hours, a day stands for its midnight.
        end: key of the first partition that no longer is one; None for no end.
        timezone: whose days these are.
        late: what becomes of rows that appear in a source after their partition was run. They are counted in any case;
            ``warn``: and logged; ``ignore``: no more; ``next``: and taken with the partition that is run next.
        nulls: rows without event time belong to no partition: ``fail``, or ``ignore`` them.

    Raises:
        ConfigurationError: something of this is none.

    Example:
        >>> days = TimePartitions("at", start="2013-03-09", timezone="America/New_York")
        >>> [(p.key, (p.end_ms - p.start_ms) // 3_600_000) for p in days.between("2013-03-09", "2013-03-11")]
        [('2013-03-09', 24), ('2013-03-10', 23), ('2013-03-11', 24)]
    """

    column: str | Mapping[str, str]
    every: Literal["day", "hour"] | str = "day"
    start: str = ""
    end: str | None = None
    timezone: str = "UTC"
    late: Literal["warn", "ignore", "next"] | str = "warn"
    nulls: Literal["fail", "ignore"] | str = "fail"

    def __post_init__(self) -> None:
        _check("every", self.every, _EVERY)
        _check("late", self.late, LATE)
        _check("nulls", self.nulls, ("fail", "ignore"))
        for name, given in (
            ("start", self.start),
            ("end", "" if self.end is None else self.end),
            ("timezone", self.timezone),
        ):
            if not isinstance(given, str):
                raise ConfigurationError(f"{name} of TimePartitions must be text, not {given!r}")
        self.zone  # noqa: B018 - reading it finds it
        if not self.start:
            raise ConfigurationError("TimePartitions need the start of the first one: start='2013-01-01'")
        begin, end_ms = self._bound(self.start), self._end_ms()
        if end_ms is not None and end_ms <= begin.start_ms:
            raise ConfigurationError(
                f"partitions begin with {self.start} and end before {self.end}: there are none"
            )

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return zone_of(self.timezone)

    def column_of(self, source: str) -> str:
        """The column of a source; raises ConfigurationError where none is named."""
        if isinstance(self.column, str):
            return self.column
        if source not in self.column:
            raise ConfigurationError(
                f"source '{source}': partitions name the columns of {sorted(self.column)}, and every source of a "
                "job in time partitions needs one"
            )
        return self.column[source]

    # -- finding partitions ----------------------------------------------------------------------------------------

    def first(self) -> Partition:
        """The first one."""
        return self._bound(self.start)

    def at(self, key: str) -> Partition:
        """The partition of a key; raises ConfigurationError where there is none."""
        partition = self._of_key(key)
        end_ms = self._end_ms()
        if partition is None or partition.start_ms < self.first().start_ms:
            raise ConfigurationError(
                f"there is no partition {key!r}: keys look like {self.first().key!r}, which is the first one"
            )
        if end_ms is not None and partition.end_ms > end_ms:
            raise ConfigurationError(f"there is no partition {key!r}: they end before {self.end}")
        return partition

    def starting_at(self, start_ms: int) -> Partition | None:
        """The partition that begins at an instant; None behind the last one.

        Raises:
            ConfigurationError: none begins there: the job was sliced differently before.
        """
        partition, end_ms = self._containing(start_ms), self._end_ms()
        if partition.start_ms != start_ms:
            raise ConfigurationError(
                f"no partition of every {self.every} in {self.timezone} begins at {instant(start_ms)}, where the last "
                "one ended: the job was sliced differently before. Declare it as it was"
            )
        return None if end_ms is not None and partition.end_ms > end_ms else partition

    def after(self, partition: Partition) -> Partition | None:
        """The one that follows; None behind the last one."""
        return self.starting_at(partition.end_ms)

    def next_of(self, last_end_ms: int | None) -> Partition | None:
        """The one to be run next, from where the last one that was run ended; None: none was."""
        return self.first() if last_end_ms is None else self.starting_at(last_end_ms)

    @property
    def interval(self) -> timedelta:
        """How often there is a new one."""
        return timedelta(days=1) if self.every == "day" else timedelta(hours=1)

    def waiting(self, last_end_ms: int | None, *, now_ms: int, most: int) -> list[Partition]:
        """Those that are over and were not run, in order, the next one first.

        Args:
            last_end_ms: where the last one that was run ended; None: none was.
            now_ms: in milliseconds since 1970.
            most: no more than so many.

        Example:
            >>> days = TimePartitions("at", start="2013-11-02")
            >>> now_ms = 1_383_652_800_000  # noon of November 5
            >>> [day.key for day in days.waiting(None, now_ms=now_ms, most=10)]
            ['2013-11-02', '2013-11-03', '2013-11-04']
        """
        complete: list[Partition] = []
        following = self.next_of(last_end_ms)
        while following is not None and following.end_ms <= now_ms and len(complete) < most:
            complete.append(following)
            following = self.after(following)
        return complete

    def before(self, partition: Partition) -> Partition | None:
        """The one in front; None for the first."""
        if partition.start_ms <= self.first().start_ms:
            return None
        return self._containing(partition.start_ms - 1)

    def between(self, first: str, last: str) -> list[Partition]:
        """Partitions from one key to another one, both included.

        Raises:
            ConfigurationError: there is no such partition, or the last is in front of the first.
        """
        begin, end = self.at(first), self.at(last)
        if end.start_ms < begin.start_ms:
            raise ConfigurationError(f"partition {last} is before {first}: swap them")
        return self.from_to(begin, end.end_ms)

    def from_to(self, begin: Partition | None, end_ms: int) -> list[Partition]:
        """Partitions from one on, as far as they are over at an instant."""
        partitions = []
        while begin is not None and begin.end_ms <= end_ms:
            partitions.append(begin)
            begin = self.after(begin)
        return partitions

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _end_ms(self) -> int | None:
        return None if self.end is None else self._bound(self.end).start_ms

    def _bound(self, key: str) -> Partition:
        """The partition of a declared key; a day stands for its first hour."""
        partition = self._of_key(key)
        if partition is None and self.every == "hour" and (day := self._of_day(key)) is not None:
            partition = self._hour(day.start_ms)  # where clocks are put forward at midnight, that is 01:00
        if partition is None:
            looks = "2013-01-01" if self.every == "day" else "2013-01-01 or 2013-01-01-05:00"
            raise ConfigurationError(
                f"{key!r} is not a start of {self.every}s in {self.timezone}: they look like {looks}"
            )
        return partition

    def _of_key(self, key: str) -> Partition | None:
        if self.every == "day":
            return self._of_day(key)
        try:
            match = _HOUR_KEY.fullmatch(key)
            local = datetime.strptime(match[1], "%Y-%m-%d-%H:%M") if match else None
        except (ValueError, OverflowError):
            return None
        if local is None or local.minute:
            return None
        both = (self._hour(milliseconds_of(local.replace(tzinfo=self.zone, fold=fold))) for fold in (0, 1))
        return next((one for one in both if one.key == key), None)

    def _of_day(self, key: str) -> Partition | None:
        try:
            day = self._day(date.fromisoformat(key)) if _DAY_KEY.fullmatch(key) else None
        except (ValueError, OverflowError):
            return None
        return day if day is not None and day.end_ms > day.start_ms else None

    def _containing(self, at_ms: int) -> Partition:
        if self.every == "hour":
            first_ms = self.first().start_ms
            return self._hour(first_ms + (at_ms - first_ms) // HOUR_MS * HOUR_MS)
        day = self._local(at_ms).date()
        # where a clock is put back over midnight, the end of a day may be shown after the next one began
        near = (self._day(day + timedelta(days=d)) for d in (0, 1, -1))
        return next(p for p in near if p.start_ms <= at_ms < p.end_ms)

    def _day(self, day: date) -> Partition:
        return Partition(day.isoformat(), self._midnight_ms(day), self._midnight_ms(day + timedelta(days=1)))

    def _midnight_ms(self, day: date) -> int:
        return instants(datetime(day.year, day.month, day.day), self.zone)[0]

    def _hour(self, start_ms: int) -> Partition:
        local = self._local(start_ms)
        if local.minute:
            raise ConfigurationError(
                f"in {self.timezone} clocks are not changed by whole hours: hours there cannot be partitions; use "
                "every='day', or timezone='UTC'"
            )
        key = local.strftime("%Y-%m-%d-%H:%M")
        return Partition(key + local.strftime("%z") if local.fold else key, start_ms, start_ms + HOUR_MS)

    def _local(self, at_ms: int) -> datetime:
        return local_time(at_ms, self.zone)


def order_refusal(
    partitions: TimePartitions, asked: Partition, *, last: Partition | None, job: str
) -> PartitionOrderError | None:
    """Why a partition cannot be run now; None where it is the next one, or the very last that was run.

    Args:
        last: that was run on the path of the head; None where none was.
    """
    if last is not None and asked.end_ms == last.end_ms:
        return None
    following = partitions.next_of(last.end_ms if last else None)
    if last is not None and asked.end_ms < last.end_ms:
        return PartitionOrderError(
            f"job '{job}': partition {asked.key} was run already, the last one is {last.key}: to run it again, with "
            f"those after it, use engine.backfill(job, '{asked.key}', '{last.key}')"
        )
    if following is None or asked.start_ms != following.start_ms:
        ended = f"the last one that was run is {last.key}" if last else "none was run yet"
        first = f"run {following.key} first" if following else "there is none after it"
        return PartitionOrderError(
            f"job '{job}': partition {asked.key} needs the state at the end of the one before it, and {ended}: {first}"
        )
    return None


def instant(at_ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S UTC")


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} of TimePartitions must be one of {', '.join(known)}, not {value!r}")
