"""One walk over Arrow types: every form of a type that is made along it says the same, and can be read back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given

from state_engine.core.types.ddl import ddl_text, parse_ddl
from state_engine.core.types.spark_types import spark_type
from state_engine.core.types.type_parsing import arrow_type, from_spark_json
from state_engine.core.types.type_text import type_from_text, type_to_text
from state_engine.core.types.walk import converter, walked
from tests.core.types.test_type_parsing import arrow_types


@given(arrow_types())
def test_every_text_of_a_type_says_the_same(kind: pa.DataType) -> None:
    declared = arrow_type(kind)
    assert declared.arrow == kind
    assert parse_ddl(ddl_text(kind)).arrow == kind
    assert from_spark_json(spark_type(kind)).arrow == kind
    assert type_to_text(declared) == ddl_text(kind)
    assert type_from_text(ddl_text(kind)).arrow == kind


@given(arrow_types())
def test_a_walk_that_changes_nothing_gives_the_type(kind: pa.DataType) -> None:
    again = walked(
        kind,
        leaf=lambda part: part,
        record=lambda part, types: pa.struct([(f.name, t) for f, t in zip(part, types, strict=True)]),
        sequence=lambda _, element: pa.list_(element),
        mapping=lambda _, key, value: pa.map_(key, value),
    )
    assert again == kind


def test_values_are_turned_where_they_have_no_parts() -> None:
    kind = pa.struct(
        [("a", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.struct([("x", pa.int64())])))]
    )
    value = {"a": [1, None], "m": [("k", {"x": 2}), ("l", None)]}

    def twice(part: pa.DataType) -> Any:
        return lambda one: one * 2

    turn = converter(kind, twice, entries=lambda _, pairs: dict(pairs))
    assert turn(value) == {"a": [2, None], "m": {"kk": {"x": 4}, "ll": None}}
    assert turn(None) is None
    assert turn({"a": None}) == {"a": None, "m": None}
