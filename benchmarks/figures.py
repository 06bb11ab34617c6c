"""What was measured, in one form: series of seconds, facts, and what their medians and spread are.

Every benchmark shows its series by ``Spread``, on a terminal and on the page alike; ``python -m benchmarks.all`` keeps
the figures of each part as JSON.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer


@dataclass(frozen=True)
class Spread:
    """The smallest, the middle and the largest of some values.

    Example:
        >>> Spread.of([3.0, 1.0, 2.5]).cells(2)
        ['1.00', '2.50', '3.00']
    """

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of values, of which there is at least one."""
        return cls(min(values), statistics.median(values), max(values))

    def cells(self, digits: int) -> list[str]:
        """The three, in this order, with so many digits behind the point."""
        return [f"{value:.{digits}f}" for value in (self.least, self.median, self.most)]

    def __str__(self) -> str:
        return f"median {self.median:.3f} s, from {self.least:.3f} to {self.most:.3f} s"


@dataclass(frozen=True)
class Timed:
    """Wall times of one engine, or of one size of the state.

    Attributes:
        name: of what was timed.
        seconds: of each counted round, in the order in which they ran.
        events: in a round; 0 where a rate says nothing.
        note: how it was measured, where that is not said for the whole table.
    """

    name: str
    seconds: list[float]
    events: int = 0
    note: str = ""

    @property
    def spread(self) -> Spread:
        """Of the seconds."""
        return Spread.of(self.seconds)


@dataclass(frozen=True)
class Comparison:
    """Series that were measured side by side.

    Attributes:
        title: what every round did.
        series: the first one is what the others are divided by.
        alike: whether all did the same, so that dividing says something.
    """

    title: str
    series: list[Timed]
    alike: bool = True

    def median_s(self, name: str) -> float | None:
        """Of a series; None where there is none of this name."""
        return next((one.spread.median for one in self.series if one.name == name), None)


@dataclass(frozen=True)
class Fact:
    """One number.

    Attributes:
        name: what it is.
        value: of it.
        unit: such as ``bytes`` or ``keys/s``.
    """

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Figures:
    """What one part measured.

    Attributes:
        comparisons: by a short name.
        facts: likewise.
        curves: numbers over a long run: a line each, by name.
        missing: what could not be measured, and why.
    """

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def chosen_of(text: str, names: Sequence[str], *, what: str) -> list[str]:
    """Names in a list with commas; all of them where it is empty.

    Raises:
        typer.BadParameter: one is not known.

    Example:
        >>> chosen_of("b, a", ["a", "b", "c"], what="part"), chosen_of("", ["a", "b"], what="part")
        (['b', 'a'], ['a', 'b'])
    """
    given = [name.strip() for name in text.split(",") if name.strip()] or list(names)
    if unknown := [name for name in given if name not in names]:
        raise typer.BadParameter(f"there is no {what} {unknown}; there are {', '.join(names)}")
    return given


def load_of_machine() -> str:
    """How many processes ran or waited, over the last one, five and fifteen minutes."""
    return "load of the machine {:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


def is_busy(load: float, cores: int) -> bool:
    """Whether a machine with that load has other work, so that figures are taken with care."""
    return load > 0.5 * cores


def wait_until_idle(most_s: float = 300.0) -> None:
    """Wait until the load of the last minute is that of an idle machine, or so many seconds are over.

    What ran before, another part of a benchmark for example, is in that load for a minute or two.
    """
    until = time.monotonic() + most_s
    while is_busy(os.getloadavg()[0], os.cpu_count() or 1) and time.monotonic() < until:
        time.sleep(5)
