"""Rules for Prometheus and the dashboard for Grafana: each metric that they name is printed, with these labels."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from state_engine.monitoring.job_status import State
from state_engine.telemetry.metrics import JOB, METRICS, prometheus_label
from tests.support.guides import GUIDES
from tests.telemetry.promql import named

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"
RULES = yaml.safe_load((EXAMPLES / "prometheus_rules.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
BOARD = json.loads((EXAMPLES / "grafana_dashboard.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
LABELS = {one.prometheus_name: {prometheus_label(name) for name in (JOB, *one.attributes)} for one in METRICS}
OF_OTHERS = {"node_textfile_mtime_seconds": {"file"}}
"""What node_exporter says of the files that it reads."""
DURATION = re.compile(r"\d+[smhdw]")


def check(expression: str) -> None:
    known = LABELS | OF_OTHERS
    metrics = named(expression)
    grouped = metrics.pop("")
    assert metrics.keys() <= known.keys(), "a metric that nobody prints"
    assert metrics, "no metric at all"
    for metric, labels in metrics.items():
        assert labels <= known[metric], f"{metric} has no such label"
    assert all(any(label in known[metric] for metric in metrics) for label in grouped)
    counted = {one for one in metrics if one.endswith("_total")}
    rated = set(re.findall(r"(?:rate|increase)\((\w+)", expression))
    assert counted == rated, "a counter is shown as a rate, and nothing else is"
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda one: one["alert"])
def test_an_alert_names_metrics_and_labels_that_there_are(alert: dict[str, Any]) -> None:
    check(alert["expr"])
    assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert DURATION.fullmatch(alert.get("for", "1m"))
    assert alert["labels"]["severity"] in ("page", "ticket")
    metrics = named(alert["expr"])
    grouped = metrics.pop("")
    left = grouped or set.intersection(*(({**LABELS, **OF_OTHERS})[one] for one in metrics))
    shown = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert shown <= left, "the summary names a label that the result does not have"
    for states in re.findall(r'statelake_health=~?"([^"]*)"', alert["expr"]):
        assert set(states.split("|")) <= set(get_args(State))


def test_every_state_that_is_wrong_has_an_alert() -> None:
    texts = [text for one in ALERTS for text in re.findall(r'statelake_health=~?"([^"]*)"', one["expr"])]
    assert {state for text in texts for state in text.split("|")} == {*get_args(State)} - {"ok", "never_ran"}


def test_alerts_have_names_of_their_own_and_the_guide_gives_a_reason_for_each() -> None:
    names = [one["alert"] for one in ALERTS]
    assert len(set(names)) == len(names) > 10
    reasons = re.findall(r"^\| `(Statelake\w+)` \|", (GUIDES / "monitoring.md").read_text(), re.MULTILINE)
    assert sorted(reasons) == sorted(names)


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_a_panel_names_metrics_and_labels_that_there_are(title: str, expression: str) -> None:
    check(expression)
    assert 'statelake_job=~"$job"' in expression


def test_the_dashboard_is_one() -> None:
    assert (BOARD["title"], BOARD["uid"]) == ("Statelake", "statelake")
    assert BOARD["schemaVersion"] >= 36
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "job"}
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["job"]["query"])
    assert asked is not None
    assert asked[2] in LABELS[asked[1]]
    assert len({one["id"] for one in PANELS}) == len({one["title"] for one in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert {"type", "gridPos", "datasource", "fieldConfig", "targets", "description"} <= panel.keys()
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        ids = [one["refId"] for one in panel["targets"]]
        assert len(set(ids)) == len(ids)
        for target in panel["targets"]:
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            metrics = named(target["expr"])
            grouped = metrics.pop("")
            assert legend <= (grouped or set.intersection(*(LABELS[one] for one in metrics)))


def test_panels_lie_on_the_grid_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


@pytest.mark.parametrize(
    ("expression", "metrics"),
    [
        ("rate(a_total[5m]) / ignoring (x) group_left sum by (y) (b)", {"a_total", "b"}),
        ("a > 1e9 and b unless c", {"a", "b", "c"}),
        ('a{b="c"} offset 1h', {"a"}),
        ("avg_over_time(sum(a)[7d:1h])", {"a"}),
        ("time() - a", {"a"}),
    ],
)
def test_names_are_found(expression: str, metrics: set[str]) -> None:
    assert named(expression).keys() - {""} == metrics
