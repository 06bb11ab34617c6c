"""What the figures are to reach, workload by workload, and what is known to be the floor where one is missed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks import micro_batches
from benchmarks.figures import Figures
from benchmarks.large_state import keys_name, timers_name
from benchmarks.parts import rolling_features as features
from benchmarks.parts.catch_up import BASELINE, THIS
from benchmarks.parts.growth import ONE, OPERATORS, TWO, compaction_name
from benchmarks.parts.windows import open_name

Figure = Callable[[Mapping[str, Figures]], float | None]
"""One number of the figures of all parts; None where it was not measured."""


@dataclass(frozen=True)
class Target:
    """A figure and its limit.

    Attributes:
        workload: which one, by its name in the list of parts.
        what: the figure, in words.
        figure: computes it.
        sense: whether the limit is the least or the most; ``reported`` has none.
        limit: of the figure.
        unit: of both.
        floor: what a profile shows to take the time, with the decision that says more.
    """

    workload: str
    what: str
    figure: Figure
    sense: Literal["≥", "≤", "reported"]
    limit: float = 0.0
    unit: str = "×"
    floor: str = ""

    def verdict(self, value: float | None) -> str:
        """Whether the target is met, or by how much it is missed.

        Example:
            >>> Target("A", "a ratio", lambda figures: None, "≥", 10).verdict(8)
            'missed by 20 %'
            >>> Target("A", "bytes", lambda figures: None, "≤", 0).verdict(12)
            'missed by 12 ×'
        """
        if value is None:
            return "not measured"
        if self.sense == "reported":
            return "reported"
        short = self.limit - value if self.sense == "≥" else value - self.limit
        if short <= 0:
            return "met"
        return (
            f"missed by {short / self.limit:.0%}".replace("%", " %")
            if self.limit
            else (f"missed by {short:,.0f} {self.unit}")
        )


def ratio(part: str, comparison: str, over: str, under: str) -> Figure:
    """The median of one series, divided by that of another one."""

    def figure(figures: Mapping[str, Figures]) -> float | None:
        above, below = (median_s(part, comparison, name)(figures) for name in (over, under))
        return above / below if above is not None and below is not None else None

    return figure


def median_s(part: str, comparison: str, name: str) -> Figure:
    """The median of a series, in seconds."""

    def figure(figures: Mapping[str, Figures]) -> float | None:
        of_part = figures.get(part)
        return of_part.comparisons[comparison].median_s(name) if of_part else None

    return figure


def fact(part: str, name: str, *, per: str | None = None) -> Figure:
    """A number of a part, divided by another one of the same part if that is asked for."""

    def figure(figures: Mapping[str, Figures]) -> float | None:
        if part not in figures:
            return None
        facts = figures[part].facts
        return facts[name].value / (facts[per].value if per else 1)

    return figure


def rate(part: str, comparison: str, name: str) -> Figure:
    """How many events, or keys, a series has in a second."""

    def figure(figures: Mapping[str, Figures]) -> float | None:
        seconds = median_s(part, comparison, name)(figures)
        if seconds is None:
            return None
        return (
            next(one.events for one in figures[part].comparisons[comparison].series if one.name == name)
            / seconds
        )

    return figure


_ELEMENTS = (
    "Two subtasks of 500,000 events take 0.9 s of processor time each, half of it in calls for each element."
)
_WINDOWS = (
    "Each entry of an open window is read, folded and written, with its timer. Of the processor time of the subtasks "
    "half reads and folds what is stored, a sixth writes, a sixth computes, and the rest reads and routes the events."
)
_COPIES = (
    "Each of 128 files is looked at and its local copy searched, 0.2 to 1.5 ms a file; the first micro-batches after a "
    "compaction decode the whole base."
)
_START = (
    "Two thirds of the processor time are Java's: its start, Spark's session, code compiled at every start; "
    "Python on the driver and in workers takes the rest. The command imports the job and the engine, "
    "0.7 s of processor time, before it starts Java and not beside it."
)
_LISTINGS = (
    "A run looks at all input files before its micro-batch and after it. A thousand of them, each in a directory of "
    "its own as here, take 10 to 18 ms at first, most of it in the system, and half as much or less after that; the "
    "rest are walks over the rows of checkpoints."
)
_AGGREGATE = (
    "A subtask with 500,000 rows spends 24 % of its time on writing changes, 21 % on the aggregate, 15 % on reading "
    "state and 13 % on reading and routing all rows. Outputs take 10 % and numbers for keys 10 %. Two compactions take "
    "a seventh of the processor time of the whole run (decision 0040)."
)
_PARQUET = "Every entry is read, sorted and written again: Parquet on two cores."
_CORES = (
    "Planning and commits are one after the other, whatever the cores. Of a micro-batch of A over columns that is 0.15 "
    "of 0.47 s of processor time with 1,000,000 events, and 0.15 of 2.5 s with five times as many."
)


def _growth(few: int, many: int, *sizes: int) -> tuple[Target, ...]:
    """Those of G: a micro-batch on many keys against few, their compaction, and two cores against one."""
    batches = tuple(
        Target(
            "G",
            f"{name}, {events:,} events: on {many:,} keys ÷ on {few:,}",
            ratio("G", f"{name}_{events}", keys_name(many, events), keys_name(few, events)),
            "≤",
            2,
            floor=_COPIES,
        )
        for name in OPERATORS
        for events in sizes
    )
    compactions = tuple(
        Target(
            "G",
            f"{name}: {compaction_name(many)}",
            rate("G", f"{name}_compaction", compaction_name(many)),
            "≥",
            1_000_000,
            "keys/s",
            floor=_PARQUET,
        )
        for name in OPERATORS
    )
    memory = tuple(
        Target(
            "G",
            f"{name}: memory of a worker on {many:,} keys ÷ on {few:,}",
            fact("G", f"{name}_memory_{many}", per=f"{name}_memory_{few}"),
            "reported",
        )
        for name in OPERATORS
    )
    cores = tuple(
        Target("G", f"{what}: one core ÷ two", ratio("G", name, ONE, TWO), "≥", 1.7, floor=_CORES)
        for name, what in (
            ("columns", "A over columns"),
            ("large_columns", "the same, 5,000,000 events"),
            ("totals", "C"),
        )
    )
    return batches + compactions + memory + cores


TARGETS = (
    Target(
        "A",
        "`transformWithState_rows` ÷ `statelake`",
        ratio("A", "full", "transformWithState_rows", "statelake"),
        "≥",
        10,
        floor=_ELEMENTS,
    ),
    Target(
        "A",
        "`flink_sql_rocksdb` ÷ `statelake`",
        ratio("A", "full", "flink_sql_rocksdb", "statelake"),
        "≥",
        1,
        floor=_ELEMENTS,
    ),
    Target(
        "A", "`pyflink` ÷ `statelake`", ratio("A", "full", "pyflink", "statelake"), "≥", 100, floor=_ELEMENTS
    ),
    Target(
        "A",
        "`statelake_columns` ÷ `polars`",
        ratio("A", "full", "statelake_columns", "polars"),
        "≤",
        4,
        floor="polars commits nothing and has no second process. What remains beside the function of a "
        "micro-batch is Spark's stage, planning and commits, which do not depend on the rows.",
    ),
    Target(
        "A",
        "`flink_sql` (heap) ÷ `statelake_columns`",
        ratio("A", "full", "flink_sql", "statelake_columns"),
        "reported",
    ),
    Target(
        "B",
        "`transformWithState_rows` ÷ `statelake`",
        ratio("B", "full", "transformWithState_rows", "statelake"),
        "≥",
        30,
        floor="Each new key is a call of Python, an entry of the changelog and no output; see A for calls.",
    ),
    Target(
        "C",
        "`flink_sql_files` (heap, the same files in and out) ÷ `statelake`",
        ratio("C", "full", "flink_sql_files", "statelake"),
        "≥",
        2,
        floor=_AGGREGATE,
    ),
    Target(
        "C",
        "`flink_sql_totals` (heap, makes its events and drops its results) ÷ `statelake`",
        ratio("C", "full", "flink_sql_totals", "statelake"),
        "≥",
        2,
        floor=_AGGREGATE + " Flink's job reads and writes nothing.",
    ),
    Target(
        "C",
        "most memory of a worker after 10 micro-batches ÷ after one",
        fact("C", "memory_last", per="memory_first"),
        "≤",
        1.5,
        floor="A worker holds its share of a micro-batch and of the state that it touches.",
    ),
    Target(
        "W",
        "windows: `statelake_per_element` ÷ `statelake`",
        ratio("W", "hours", "statelake_per_element", "statelake"),
        "≥",
        5,
        floor=_WINDOWS,
    ),
    Target(
        "W",
        "windows: `statelake` ÷ `polars`",
        ratio("W", "hours", "statelake", "polars"),
        "≤",
        4,
        floor=_WINDOWS,
    ),
    Target(
        "W",
        "windows: Spark's `groupBy(window)` ÷ `statelake`",
        ratio("W", "hours", "spark", "statelake"),
        "≥",
        2,
        floor=_WINDOWS,
    ),
    Target(
        "W",
        "sessions: Spark's `session_window` ÷ `statelake`",
        ratio("W", "sessions", "spark", "statelake"),
        "≥",
        2,
        floor=_WINDOWS,
    ),
    Target(
        "W",
        "1,000 rows: on 1,000,000 open sessions ÷ on 10,000",
        ratio("W", "open", open_name(1_000_000), open_name(10_000)),
        "≤",
        1.5,
        floor=_COPIES,
    ),
    Target(
        "D",
        "10,000 events: on 10,000,000 keys ÷ on 100,000",
        ratio("D", "sizes", keys_name(10_000_000, 10_000), keys_name(100_000, 10_000)),
        "≤",
        2,
        floor=_COPIES,
    ),
    Target(
        "D",
        "1,000 events on 1,000,000 keys, warm",
        median_s("D", "warm", keys_name(1_000_000, 1_000)),
        "≤",
        0.35,
        "s",
        floor=_COPIES,
    ),
    Target(
        "T",
        "1,000,000 pending timers ÷ 10,000",
        ratio("T", "sizes", timers_name(1_000_000), timers_name(10_000)),
        "≤",
        1.2,
        floor=_COPIES,
    ),
    Target(
        "T",
        "10,000,000 pending timers ÷ 10,000",
        ratio("T", "sizes", timers_name(10_000_000), timers_name(10_000)),
        "≤",
        1.5,
        floor=_COPIES,
    ),
    Target(
        "M",
        "bytes of a changed entry: one of a map ÷ all of it",
        fact("M", "one", per="every"),
        "≤",
        10,
        floor="With one entry, the key and the hash of its row are not shared; columns of many rows compress better.",
    ),
    Target(
        "S",
        "`statelake` ÷ `transformWithState_rows`",
        ratio("S", "wall", "statelake", "transformWithState_rows"),
        "≤",
        1,
        floor=_START,
    ),
    Target(
        "S", "start of the process to commit", median_s("S", "wall", "statelake"), "≤", 6, "s", floor=_START
    ),
    Target(
        "U",
        "batches a second ÷ those of 0.1.0",
        ratio("U", "full", BASELINE, THIS),
        "≥",
        2,
        floor="The processor time of a micro-batch of 1,000 events keeps two cores busy: half of it is Java's, which "
        "commits to four tables, runs one Spark job and compiles itself; a quarter is the driver's.",
    ),
    Target(
        "micro_batches",
        "median of the last 50 ÷ that of the first 50",
        ratio("micro_batches", "edges", micro_batches.LAST, micro_batches.FIRST),
        "≤",
        1.2,
        floor=_LISTINGS,
    ),
    Target(
        "micro_batches",
        "sum of the last 50 ÷ that of the first 50",
        fact("micro_batches", "ratio"),
        "≤",
        1.2,
        floor=_LISTINGS,
    ),
    Target(
        "F",
        "a row with features of 30 days ÷ of an hour",
        ratio("F", "spans", features.MONTH, features.HOUR),
        "≤",
        2,
        floor="A row merges the tiles of its span, 16 to 64 of each length.",
    ),
    Target(
        "F",
        "entries of a key with features of 30 days",
        fact("F", "entries"),
        "≤",
        100,
        "entries",
        floor="There are at most 66 tiles of each length.",
    ),
    *_growth(10_000_000, 100_000_000, 1_000, 100_000),
    Target(
        "operations",
        "bytes below the keyed tables that a rescale writes",
        fact("operations", "rescale_bytes"),
        "≤",
        0,
        "bytes",
    ),
    Target(
        "operations",
        "compaction",
        rate("operations", "full", "compaction"),
        "≥",
        1_000_000,
        "keys/s",
        floor=_PARQUET,
    ),
)
"""All of them, in the order of the page."""
