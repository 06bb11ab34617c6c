"""The guide on monitoring: its example runs, and each metric that it names is one that is printed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from state_engine.core.functions.metrics import MetricGroup, metric_scope
from state_engine.telemetry.metrics import FUNCTION, FUNCTION_METRIC, METRICS, prometheus_label
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "monitoring.md"


def test_the_metric_of_a_function_has_the_name_that_the_guide_says() -> None:
    [code] = code_blocks(GUIDES / "monitoring.md", "python")  # its one example
    names: dict[str, Any] = {}
    exec(code, names)
    group = MetricGroup()
    names["open"](SimpleNamespace(), SimpleNamespace(get_metrics_group=lambda: group))
    [name] = group.values()
    labels = f'{prometheus_label(FUNCTION_METRIC)}="{metric_scope("totals")}.{name}"'
    assert f'{FUNCTION.prometheus_name}{{statelake_job="shop",{labels}}}' in GUIDE.read_text()


def test_the_guide_names_metrics_that_there_are() -> None:
    labels = {prometheus_label(name) for one in METRICS for name in one.attributes} | {"statelake_job"}
    named = set(re.findall(r"\bstatelake_[a-z_]+", GUIDE.read_text()))
    assert named - {one.prometheus_name for one in METRICS} - labels == set()
