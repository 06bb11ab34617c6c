"""One walk over Arrow types: every form of a type that is made along it says the same, and can be read back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.types.ddl import ddl_text, parse_ddl
from state_engine.core.types.spark_types import spark_type
from state_engine.core.types.type_parsing import arrow_type, from_spark_json
from state_engine.core.types.type_text import type_from_text, type_to_text
from state_engine.core.types.walk import converter, walked

LEAVES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(5, 2),
]  # fmt: skip
NAMES = st.sampled_from(["a", "b", "a b", "`", "at.time", "ü"])


def records(parts: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(NAMES, parts, min_size=1, max_size=3).map(lambda fields: pa.struct(fields.items()))


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.one_of(
        parts.map(pa.list_),
        st.tuples(st.sampled_from(LEAVES), parts).map(lambda both: pa.map_(*both)),
        records(parts),
    ),
    max_leaves=6,
)


@given(TYPES)
def test_every_text_of_a_type_says_the_same(kind: pa.DataType) -> None:
    declared = arrow_type(kind)
    assert declared.arrow == kind
    assert parse_ddl(ddl_text(kind)).arrow == kind
    assert from_spark_json(spark_type(kind)).arrow == kind
    assert type_to_text(declared) == ddl_text(kind)
    assert type_from_text(ddl_text(kind)).arrow == kind


@given(TYPES)
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
