"""Points as text in Prometheus' format of exposition, version 0.0.4: what a text-file collector reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from state_engine.telemetry.metrics import Point, by_metric, prometheus_label


def exposition(points: Iterable[Point]) -> str:
    r"""The text: of each metric its meaning, its kind and its numbers.

    Example:
        >>> from state_engine.telemetry.metrics import JOB, ROWS_IN, SOURCE
        >>> print(exposition([Point(ROWS_IN, 4.0, {JOB: "sums", SOURCE: 'the "inbox"'})]), end="")
        # HELP statelake_rows_in_total Rows that came from a source
        # TYPE statelake_rows_in_total counter
        statelake_rows_in_total{statelake_job="sums",statelake_source="the \"inbox\""} 4
    """
    lines = []
    for metric, own in by_metric(points).items():
        name = metric.prometheus_name
        lines += [f"# HELP {name} {_help(metric.about)}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels(point.attributes)} {_number(point.value)}" for point in own]
    return "".join(f"{line}\n" for line in lines)


def _labels(attributes: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{prometheus_label(k)}="{_escaped(v)}"' for k, v in attributes.items()) + "}"


def _escaped(value: str) -> str:
    return _help(value).replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    """As Go reads it, without loss."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
