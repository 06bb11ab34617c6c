"""What Prometheus reads: its own parser finds the points again, and names keep its rules and those of OpenTelemetry."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from docs import metrics as page_of_metrics
from state_engine.telemetry.metrics import JOB, METRICS, Metric, Point, by_metric, prometheus_label
from state_engine.telemetry.prometheus import exposition

UNITS = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The numbers that the parser finds, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


LABELS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60).map(float)


@given(st.data())
def test_the_parser_of_prometheus_finds_each_number_again(data: st.DataObject) -> None:
    points = {}
    for metric in data.draw(st.lists(st.sampled_from(METRICS), max_size=6)):
        attributes = {JOB: data.draw(LABELS)} | {name: data.draw(LABELS) for name in metric.attributes}
        labels = frozenset((prometheus_label(k), v) for k, v in attributes.items())
        points[metric.prometheus_name, labels] = Point(metric, data.draw(NUMBERS), attributes)
    assert read(exposition(points.values())) == {at: one.value for at, one in points.items()}


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, 0.1, 2.0**53, -3.0])
def test_numbers_lose_nothing(value: float) -> None:
    [read_back] = read(exposition([Point(METRICS[0], value, {JOB: "j"})])).values()
    assert read_back == value
    [nothing] = read(exposition([Point(METRICS[0], math.nan, {JOB: "j"})])).values()
    assert math.isnan(nothing)


@pytest.mark.parametrize("label", ['C:\\new "shop"', "two\nlines", "\\", "\\n", '\\"', "", "{}=,"])
def test_labels_are_escaped(label: str) -> None:
    [(_, labels)] = read(exposition([Point(METRICS[0], 1, {JOB: label})]))
    assert dict(labels) == {prometheus_label(JOB): label}


def test_a_family_stands_together_with_its_help_and_kind() -> None:
    points = [Point(one, 1, {JOB: job}) for job in ("a", "b") for one in METRICS]
    text = exposition(points)
    families = list(text_string_to_metric_families(text))
    assert [(f.name, f.type, f.documentation) for f in families] == [
        (one.prometheus_name.removesuffix("_total") if one.kind == "counter" else one.prometheus_name,
         one.kind, one.about) for one in METRICS
    ]  # fmt: skip
    assert all(len(family.samples) == 2 for family in families)
    assert text.endswith("\n")
    assert exposition([]) == ""


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_names_keep_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", metric.name), "OpenTelemetry: parts with dots"
    assert "total" not in metric.name, "OpenTelemetry: no suffix of a kind"
    assert re.fullmatch(r"s|By|1|\{[a-z]+\}|", metric.unit), "UCUM"
    name = metric.prometheus_name
    assert re.fullmatch(r"[a-z_:][a-z0-9_:]*", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert name.removesuffix("_total").endswith(UNITS.get(metric.unit, "")), (
        "Prometheus: the base unit in the name"
    )
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", prometheus_label(one)) for one in metric.attributes)
    assert metric.about
    assert not metric.about.endswith(".")


def test_no_two_metrics_share_a_name_and_none_is_the_begin_of_another() -> None:
    names = [one.name for one in METRICS]
    assert len({*names, *(one.prometheus_name for one in METRICS)}) == 2 * len(names)
    assert [a for a in names for b in names if b.startswith(f"{a}.")] == []


def test_points_stand_in_the_order_of_the_list() -> None:
    points = [Point(one, 1, {}) for one in reversed(METRICS)]
    assert list(by_metric(points)) == list(METRICS)


def test_the_page_of_metrics_is_written_from_the_list() -> None:
    assert page_of_metrics.PAGE.read_text() == page_of_metrics.page(), "run: python -m docs.metrics"
