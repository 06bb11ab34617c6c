"""Metrics of functions: counters, gauges, meters and distributions, in groups.

Every subtask has its own for one micro-batch; ``summed`` puts those of an operator together, and the checkpoint keeps
them as numbers by name. Mirror the interfaces of these names in ``org.apache.flink.metrics``, in PyFlink's spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name, stored_name

_MIN, _MAX = ":min", ":max"


class Counter:
    """A number that goes up and down; summed over subtasks."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add to it."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Take from it."""
        self._count -= n

    def get_count(self) -> int:
        """The number by now."""
        return self._count

    def values(self) -> dict[str, float]:
        """What a checkpoint keeps, by suffix."""
        return {"": float(self._count)}


class Meter:
    """Counts events of a micro-batch; rates follow from its duration, which the checkpoint knows."""

    def __init__(self) -> None:
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        self._count += value

    def get_count(self) -> int:
        return self._count

    def values(self) -> dict[str, float]:
        """What a checkpoint keeps, by suffix."""
        return {"": float(self._count)}


class Gauge:
    """A number that is asked for at the end of the micro-batch; summed over subtasks."""

    def __init__(self, get_value: Callable[[], float]) -> None:
        self.get_value = get_value

    def values(self) -> dict[str, float]:
        """What a checkpoint keeps, by suffix."""
        return {"": float(self.get_value())}


class Distribution:
    """Number, sum, least and greatest of the values it was given."""

    def __init__(self) -> None:
        self._count, self._sum = 0, 0.0
        self._least: float | None = None
        self._greatest: float | None = None

    def update(self, value: float) -> None:
        """Take in one value."""
        self._count += 1
        self._sum += value
        self._least = value if self._least is None else min(self._least, value)
        self._greatest = value if self._greatest is None else max(self._greatest, value)

    def values(self) -> dict[str, float]:
        """What a checkpoint keeps, by suffix: ``:count``, ``:sum`` and, where there is a value, ``:min``, ``:max``."""
        summary = {":count": float(self._count), ":sum": float(self._sum)}
        if self._least is not None and self._greatest is not None:
            summary |= {_MIN: float(self._least), _MAX: float(self._greatest)}
        return summary


Metric = Counter | Meter | Gauge | Distribution


class MetricGroup:
    """Metrics by name, and groups of them: a name in a group is ``group.name``.

    Asking twice for a name gives the same metric; for another kind of metric it raises ConfigurationError.

    Example:
        >>> group = MetricGroup()
        >>> group.counter("refused").inc(2)
        >>> group.add_group("delays").distribution("minutes").update(5)
        >>> group.values()
        {'delays.minutes:count': 1.0, 'delays.minutes:sum': 5.0, 'delays.minutes:min': 5.0, 'delays.minutes:max': 5.0, \
'refused': 2.0}
    """

    def __init__(self, *, scope: tuple[str, ...] = (), metrics: dict[str, Metric] | None = None) -> None:
        self._scope = scope
        self._metrics: dict[str, Metric] = {} if metrics is None else metrics

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group within this one; with ``extra``, a key group and within it the value group of that name."""
        names = (name,) if extra is None else (name, extra)
        scope = (*self._scope, *(check_name(n, what="metric group") for n in names))
        return MetricGroup(scope=scope, metrics=self._metrics)

    def counter(self, name: str) -> Counter:
        """A counter."""
        metric: Counter = self._get(name, Counter, Counter)
        return metric

    def gauge(self, name: str, obj: Callable[[], float]) -> None:
        """A gauge, whose number a callable gives; the newest callable counts."""
        gauge: Gauge = self._get(name, Gauge, lambda: Gauge(obj))
        gauge.get_value = obj

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """A meter. The time span is taken for PyFlink's sake: a micro-batch is the span of its meters."""
        metric: Meter = self._get(name, Meter, Meter)
        return metric

    def distribution(self, name: str) -> Distribution:
        """A distribution."""
        metric: Distribution = self._get(name, Distribution, Distribution)
        return metric

    def get_metric_identifier(self, metric_name: str) -> str:
        """The full name of a metric of this group."""
        return self._full(metric_name)

    def values(self) -> dict[str, float]:
        """All numbers of all groups by now, by name."""
        return {
            name + suffix: value
            for name, metric in sorted(self._metrics.items())
            for suffix, value in metric.values().items()
        }

    def _get(self, name: str, kind: type, make: Callable[[], Any]) -> Any:
        known = self._known(name)
        if known is None:
            known = self._metrics[self._full(name)] = make()
        elif not isinstance(known, kind):
            raise ConfigurationError(
                f"the metric '{self._full(name)}' is a {type(known).__name__.lower()} already and cannot become a "
                f"{kind.__name__.lower()}; give it another name"
            )
        return known

    def _known(self, name: str) -> Metric | None:
        return self._metrics.get(self._full(name))

    def _full(self, name: str) -> str:
        return ".".join((*self._scope, check_name(name, what="metric")))


def summed(subtasks: Iterable[dict[str, float]]) -> dict[str, float]:
    """The metrics of an operator from those of its subtasks: sums, and the least and greatest of distributions.

    Example:
        >>> summed([{"rows": 1.0, "delay:max": 5.0}, {"rows": 2.0, "delay:max": 3.0}])
        {'delay:max': 5.0, 'rows': 3.0}
    """
    total: dict[str, float] = {}
    for values in subtasks:
        for name, value in values.items():
            combine = min if name.endswith(_MIN) else max if name.endswith(_MAX) else _add
            total[name] = combine(total[name], value) if name in total else value
    return dict(sorted(total.items()))


def _add(a: float, b: float) -> float:
    return a + b


def metric_scope(uid: str) -> str:
    """What the names of an operator's metrics begin with: its uid, where no dot in it blurs where that ends."""
    return stored_name(uid) if "." in uid else uid
