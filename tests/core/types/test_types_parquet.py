"""Every type through a real Parquet file: values come back as declared, in the storage type and in the declared one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import state_engine
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import Row
from state_engine.core.types.type_parsing import to_type
from state_engine.core.types.types_namespace import Types
from tests.core.types.type_samples import LEAVES, Sample, Visit, samples

_MEGABYTE = 2**20
Through = Callable[[pa.Array], pa.Array]


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Through:
    """Writes a column into a file, in several row groups, and reads it again."""
    path = tmp_path_factory.mktemp("types") / "column.parquet"

    def write_and_read(column: pa.Array) -> pa.Array:
        pq.write_table(pa.table({"v": column}), path, row_group_size=3)
        return pq.read_table(path)["v"].combine_chunks()

    return write_and_read


def _check(kind: TypeInformation, values: list[Any], through: Through, *, storage: bool) -> None:
    normal = [None if v is None else kind.normalise(v) for v in values]
    array = through(kind.to_arrow(normal, storage=storage))
    assert array.type == (kind.storage if storage else kind.arrow)
    back = kind.from_arrow(array)
    assert back == normal
    assert [type(v) for v in back] == [type(v) for v in normal]


@given(data=st.data(), sample=samples(), storage=st.booleans())
def test_nested_types(data: st.DataObject, sample: Sample, storage: bool, through: Through) -> None:
    kind, strategy = sample
    _check(kind, data.draw(st.lists(st.none() | strategy, max_size=7)), through, storage=storage)


@pytest.mark.parametrize("name", LEAVES)
@settings(max_examples=8)
@given(data=st.data())
def test_each_type(data: st.DataObject, name: str, through: Through) -> None:
    kind, strategy = LEAVES[name]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=7))
    for storage in (True, False):
        _check(kind, values, through, storage=storage)


EMPTY = [
    (Types.LIST(int), []),
    (Types.MAP(str, int), {}),
    (Types.LIST(Types.LIST(Types.MAP(str, int))), [[], [{}], None]),
    (Types.MAP(str, Types.LIST(str)), {"": [], "n": None}),
    (Types.ROW_NAMED(["a", "b"], [list[int], dict[str, int]]), Row(a=[], b={})),
    (Types.ROW_NAMED(["a", "b"], [list[int], dict[str, int]]), Row(a=None, b=None)),
    (Types.TUPLE([Types.ROW([int])]), (None,)),
    (to_type(Visit, parameter="p"), Visit("", [])),
    (Types.STRING(), ""),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b""),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), set()),
]


@pytest.mark.parametrize(("kind", "value"), EMPTY, ids=lambda v: str(v))
@pytest.mark.parametrize("storage", [True, False], ids=["storage", "declared"])
def test_what_is_empty_is_neither_null_nor_gone(
    kind: TypeInformation, value: Any, storage: bool, through: Through
) -> None:
    for values in ([value], [value, None, value], [None], []):
        _check(kind, values, through, storage=storage)


LARGE = [
    (Types.STRING(), "é" * (_MEGABYTE // 2)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), bytes(range(256)) * (_MEGABYTE // 256)),
    (Types.LIST(Types.LONG()), list(range(_MEGABYTE // 8))),
    (Types.MAP(str, Types.DOUBLE()), {str(i): i / 3 for i in range(_MEGABYTE // 16)}),
    (
        Types.ROW_NAMED(["a"], [Types.LIST(Types.TUPLE([str, Types.CHAR()]))]),
        Row(a=[("x" * 30, "y")] * 2**15),
    ),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), frozenset(range(_MEGABYTE // 8))),
]


@pytest.mark.parametrize(("kind", "value"), LARGE, ids=lambda v: str(v)[:40])
def test_a_value_of_a_megabyte(kind: TypeInformation, value: Any, through: Through) -> None:
    _check(kind, [value, None, value], through, storage=True)


def test_pickles_are_read_in_one_place_only() -> None:
    package = Path(state_engine.__file__).parent
    uses = re.compile(r"^\s*(from|import)\s+(pickle|cloudpickle|dill|marshal|shelve|joblib)\b", re.MULTILINE)
    readers = {str(f.relative_to(package)) for f in package.rglob("*.py") if uses.search(f.read_text())}
    # the second is of functions on their way to workers of the same run, and the third writes pickles into a test file;
    # neither reads what was stored
    assert readers == {"core/types/pickled_type.py", "spark/shipped_code.py", "replay/python_literals.py"}
    assert "pickle.load" not in (package / "replay/python_literals.py").read_text().replace(
        'f"pickle.loads(', ""
    )
