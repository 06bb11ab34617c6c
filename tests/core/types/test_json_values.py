"""Values as JSON texts: their form, a round trip, and equal texts for equal values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.json_values import from_json, to_json, type_text
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type
from tests.core.types.type_samples import Point, Sample, samples


def text_of(kind: Any, value: Any) -> str:
    declared = to_type(kind, parameter="p")
    return to_json(declared, [declared.normalise(value)])[0]


@given(data=st.data(), sample=samples())
def test_values_of_every_type_come_back(data: st.DataObject, sample: Sample) -> None:
    kind, strategy = sample
    values = [kind.normalise(v) for v in data.draw(st.lists(strategy, max_size=4))]

    texts = to_json(kind, values)

    assert from_json(kind, texts) == values
    assert to_json(kind, from_json(kind, texts)) == texts
    for text in texts:
        json.loads(text, parse_constant=pytest.fail)  # NaN and Infinity are not JSON


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (int, -5, "-5"),
        (bool, True, "true"),
        (str, 'a"ü', '"a\\"ü"'),
        (float, 1.5, "1.5"),
        (float, float("nan"), '"NaN"'),
        (float, float("inf"), '"Infinity"'),
        (float, float("-inf"), '"-Infinity"'),
        (bytes, b"\x00\xff", '"AP8="'),
        (date, date(2013, 1, 2), '"2013-01-02"'),
        (pa.timestamp("us", "UTC"), datetime(2013, 1, 2, 3, tzinfo=UTC), '"2013-01-02T03:00:00Z"'),
        (pa.timestamp("us"), datetime(2013, 1, 2, 3), '"2013-01-02T03:00:00"'),
        (pa.decimal128(5, 2), Decimal("1.5"), '"1.50"'),
        (list[int], [1, None], "[1, null]"),
        (dict[str, int], {"b": 1, "a": None}, '[{"key": "b", "value": 1}, {"key": "a", "value": null}]'),
        (Point, Point(1, None), '{"x": 1, "label": null}'),
    ],
)
def test_texts_are_pinned(kind: Any, value: Any, text: str) -> None:
    """A change here changes the format of stored roots."""
    assert text_of(kind, value) == text


def test_a_widened_type_reads_what_was_written_before() -> None:
    narrow, wide = to_type(pa.int8(), parameter="p"), to_type(pa.int64(), parameter="p")
    assert (type_text(narrow), type_text(wide)) == ("tinyint", "bigint")
    assert from_json(wide, to_json(narrow, [-128, 127])) == [-128, 127]


def test_a_value_that_does_not_fit_any_more_is_refused() -> None:
    narrow = to_type(pa.int8(), parameter="p")
    assert from_json(narrow, ["127"]) == [127]
    with pytest.raises(ValueTypeError, match="300"):
        from_json(narrow, ["300"])


def test_fields_are_known_by_name() -> None:
    """A field may have been added, dropped or moved since the text was written, at any depth."""
    now = to_type("struct<c: date, inner: array<struct<y: int, z: string>>, a: bigint>", parameter="p")
    assert from_json(now, ['{"a": 1, "b": 2, "inner": [{"x": 1, "y": 2}, null]}']) == [
        (None, [(2, None), None], 1)
    ]


def test_undeclared_elements_say_so() -> None:
    assert type_text(PlainType()) == "plain"
    assert to_json(PlainType(), [(1,)]) == ('{"$tuple": [1]}',)
    assert from_json(PlainType(), ['{"$tuple": [1]}']) == [(1,)]
