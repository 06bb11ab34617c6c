"""Writes the page of all metrics from the list in the code: ``python -m docs.metrics`` writes it.

A test compares the page with the list.
"""

from __future__ import annotations

from pathlib import Path

from state_engine.telemetry.metrics import JOB, METRICS, Metric, prometheus_label

PAGE = Path(__file__).parent / "reference" / "metrics.md"
_HEADER = """# Metrics

Written by `python -m docs.metrics` from the list in the code, and compared with it by a test. `statelake metrics`
prints them, with `--format prometheus` for the text-file collector. The [guide](../guides/monitoring.md) says which to
watch. Each has the label `{job}`, too. Counters add up all micro-batches that were committed on `main`; a restore does
not set them back.

| metric | in Prometheus | unit | labels | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    return _HEADER.format(job=prometheus_label(JOB)) + "".join(map(_row, METRICS))


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{prometheus_label(name)}`" for name in metric.attributes)
    unit = f"`{metric.unit}`" if metric.unit else ""
    return f"| `{metric.name}` | `{metric.prometheus_name}` | {unit} | {labels} | {metric.about} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
