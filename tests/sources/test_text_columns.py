"""Whole columns of texts are the values that the definition gives, one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.text.date_patterns import zone_of
from state_engine.sources.text.text_columns import ColumnReader, csv_column, json_column
from state_engine.sources.text.text_values import JsonNumber, TextRules

KINDS = ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(38,0)", "decimal(4,4)",
         "boolean", "string", "date", "timestamp", "timestamp_ntz"]  # fmt: skip
TEXTS = [
    "0", "-0", "+1", "127", "128", "-129", "2147483648", "9223372036854775807", "9223372036854775808",
    "999999999999999999",
    "1.5", "-1.50", "1.", ".5", "0.1", "1e3", "1E-7", "1e99", "1e308", "1e309", "16777217", "9007199254740993",
    "0.30000000000000004", "123456789012345.678901234567890123456789", "1234567.89", "9999999.99", "99999999.99",
    "1.005",
    "NaN", "nan", "Infinity", "-inf", "true", "False", "", " 1", "1 ", "1\n", "٣", "0x1f", "1_0", "é", "\udce9",
    "2024-01-05", "2024-1-5", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "1582-10-10", "12024-01-05",
    "2024-01-05T10:00:00Z", "2024-01-05 10:00:00", "2024-01-05T10:00:00.123456", "2024-01-05T10:00:00.1Z",
    "2024-01-05T24:00:00", "2024-01-05T10:60:00", "2024-01-05T10:00:60Z", "2024-01-05T10:00:00.1234567Z",
    "2024-01-05T10:00", "2024-01-05T10:00:00+02:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "1582-10-10T00:00:00", "2024-01-05\n", "10:00",
]  # fmt: skip


def value_of(reader: ColumnReader, text: Any) -> Any:
    """What the definition gives; the error where it refuses."""
    try:
        return None if text is None else reader.read(text)
    except ValueTypeError as error:
        return f"refused: {error}"


def check(reader: ColumnReader, texts: list[Any]) -> None:
    array, faults = reader.array(texts)
    assert array.type == reader.kind.arrow
    for place, (text, value) in enumerate(zip(texts, reader.kind.from_arrow(array), strict=True)):
        expected = value_of(reader, text)
        if isinstance(expected, str) and expected.startswith("refused: "):
            assert value is None
            assert faults[place] == f"column 'c': {expected.removeprefix('refused: ')}"
        elif isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(value)
        else:
            assert (value, place in faults) == (expected, False), text
            assert not isinstance(expected, float) or math.copysign(1, value) == math.copysign(1, expected)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_text_alone_and_all_together(kind: str, zone: str) -> None:
    declared, rules = to_type(kind, parameter="c"), TextRules(zone=zone_of(zone))
    for text in [*TEXTS, None]:
        check(csv_column("c", declared, rules), [text, None])
        check(json_column("c", declared, rules), [text])
        if text is not None:
            check(json_column("c", declared, rules), [JsonNumber(text), None, JsonNumber("7")])
    check(csv_column("c", declared, rules), TEXTS)
    check(json_column("c", declared, rules), [True, None, False])
    check(json_column("c", declared, rules), [{"a": 1}, [1]] if kind == "string" else [{}, []])


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(
    texts=st.lists(st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True))
)
def test_any_numbers(kind: str, texts: list[str]) -> None:
    declared, rules = to_type(kind, parameter="c"), TextRules()
    check(csv_column("c", declared, rules), texts)
    check(json_column("c", declared, rules), list(map(JsonNumber, texts)))


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
@settings(deadline=None)
@given(
    texts=st.lists(
        st.from_regex(
            r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?Z?)?",
            fullmatch=True,
        )
    )
)
def test_any_times(kind: str, texts: list[str]) -> None:
    check(csv_column("c", to_type(kind, parameter="c"), TextRules()), texts)
