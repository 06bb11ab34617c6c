"""Declared types as text: read back as the same type, different where values would be read differently."""

from __future__ import annotations

from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.ttl import StampedType
from state_engine.core.types.every_type import PickledType, StructType
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type
from state_engine.core.types.type_text import StoredPickleType, shown_storage, type_from_text, type_to_text
from state_engine.core.types.types_namespace import Types
from tests.core.types.type_samples import LEAVES, Point, Sample, samples


@given(sample=samples())
def test_a_text_is_read_back_as_a_type_with_the_same_text_and_storage(sample: Sample) -> None:
    kind, _ = sample
    again = type_from_text(type_to_text(kind))
    assert type_to_text(again) == type_to_text(kind)
    assert again.storage == kind.storage
    assert again.arrow == kind.arrow


STORED_AS = [
    (Types.CHAR(), "character", pa.string()),
    (Types.BIG_INT(), "big_integer", pa.decimal128(38, 0)),
    (Types.INSTANT(), "instant", pa.timestamp("us", "UTC")),
    (Types.SQL_TIME(), "time_of_day", pa.int64()),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), "pickled", pa.binary()),
    (Types.SHORT(), "smallint", pa.int64()),
    (Types.FLOAT(), "float", pa.float64()),
    (Types.TUPLE([Types.SQL_TIME()]), "struct<`f0`: time_of_day>", pa.struct([("f0", pa.int64())])),
]


@pytest.mark.parametrize(("kind", "text", "storage"), STORED_AS, ids=lambda v: str(v))
def test_the_text_says_what_was_declared_and_the_stored_type_follows(
    kind: object, text: str, storage: pa.DataType
) -> None:
    assert type_to_text(kind) == text  # type: ignore[arg-type]
    assert type_from_text(text).storage == storage


def test_types_that_read_values_differently_have_different_texts() -> None:
    texts = {name: type_to_text(kind) for name, (kind, _) in LEAVES.items()}
    same = [{a, b} for (a, one), (b, other) in combinations(texts.items(), 2) if one == other]
    # a zone is how an instant is shown, not what it is
    assert same == [{"timestamp", "timestamp in Tokyo"}]


def test_the_class_of_a_record_is_not_part_of_it() -> None:
    plain = StructType(("x", "label"), (Types.LONG(), Types.STRING()))
    assert type_to_text(to_type(Point, parameter="p")) == type_to_text(plain)


def test_type_names_of_stored_rows_are_no_ddl_for_users() -> None:
    for word in ("character", "big_integer", "instant", "time_of_day", "pickled"):
        with pytest.raises(ConfigurationError):
            to_type(f"a {word}", parameter="p")


def test_a_record_of_pickles_never_reads_one() -> None:
    stored = Types.PICKLED_BYTE_ARRAY(allow_pickle=True).to_arrow([{1}], storage=True)
    kind = type_from_text("pickled")
    assert isinstance(kind, StoredPickleType)
    assert not isinstance(kind, PickledType)
    assert kind.from_arrow(stored) == stored.to_pylist()


@pytest.mark.parametrize(
    ("text", "like", "names"),
    [
        ("struct<a: int, b: int>", "struct<c as a: int>", ["c", "b"]),
        (
            "struct<a: int, b: int>",
            "struct<b as a: int>",
            ["b", "b_"],
        ),  # the b of the one is not that of the other
        ("struct<c as a: int>", "struct<a: int>", ["a"]),
        ("struct<a: int>", "struct<a as a__2: int>", ["a"]),
        ("struct<a: int>", "map<string, int>", ["a"]),
        ("struct<c as a: int>", None, ["c"]),
    ],
)
def test_fields_are_called_as_another_text_calls_them(text: str, like: str | None, names: list[str]) -> None:
    assert shown_storage(text, like=like).names == names
    inside = shown_storage(f"map<string, array<{text}>>", like=like and f"map<string, array<{like}>>")
    assert inside.item_type.value_type.names == names


def test_types_without_a_column_have_no_text() -> None:
    for kind in (PlainType(), StampedType(Types.LONG())):
        with pytest.raises(ConfigurationError, match="no column"):
            type_to_text(kind)


@pytest.mark.parametrize("text", ["", "time_of_day time_of_day time_of_day", "array<instants>"])
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        type_from_text(text)
