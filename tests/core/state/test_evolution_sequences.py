"""Any sequence of supported changes: entries written under any of the older schemas read as converting them by hand.

A record's fields come, go, come back, are renamed by an alias and widened, at the top, in elements of lists and in
values of maps. Values are written under each schema in turn, each in the form of its own file, and at the end all are
read under the last one, as a subtask reads the files of a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.state.evolution import evolve
from state_engine.core.types.every_type import DictType, ListType, StructType, TypeInformation
from state_engine.core.types.stored_form import conform, grown
from state_engine.core.types.type_parsing import to_type
from state_engine.core.types.type_text import type_to_text

_NAMES = ("a", "b", "c", "d", "a__2")
_WIDTHS = ("tinyint", "smallint", "int", "bigint")


@dataclass
class _Field:
    """A field of the model: which one it is, whatever it is called."""

    number: int
    name: str
    width: int
    alias: str | None = None


@dataclass
class _Model:
    """A record by hand: its fields now, and a value per written row, by the number of the field."""

    fields: list[_Field] = field(default_factory=list)
    made: int = 0
    rows: list[dict[int, int | None]] = field(default_factory=list)

    def add(self, name: str, width: int) -> None:
        self.made += 1
        self.fields.append(_Field(self.made, name, width))

    def free(self) -> list[str]:
        return [n for n in _NAMES if n not in {f.name for f in self.fields} | {f.alias for f in self.fields}]

    def record(self) -> StructType:
        kinds = [to_type(_WIDTHS[f.width], parameter="p") for f in self.fields]
        aliases = {f.name: f.alias for f in self.fields if f.alias is not None}
        return StructType([f.name for f in self.fields], kinds, aliases=aliases)

    def expected(self) -> list[tuple[int | None, ...]]:
        return [tuple(row.get(f.number) for f in self.fields) for row in self.rows]


def _step(data: st.DataObject, model: _Model) -> None:
    """One deployment: some supported changes at once. A name goes to another field in a later deployment only."""
    before = {f.name for f in model.fields}
    for one in model.fields:
        one.alias = None
        one.width = data.draw(st.integers(one.width, len(_WIDTHS) - 1))
    for one in model.fields:
        new_name = data.draw(st.none() | st.sampled_from(sorted(set(model.free()) - before) or [""]))
        if new_name:
            one.name, one.alias = new_name, one.name
    for one in list(model.fields):
        if len(model.fields) > 1 and data.draw(st.integers(0, 3)) == 0:
            model.fields.remove(one)
    for name in data.draw(st.lists(st.sampled_from(_NAMES), max_size=2, unique=True)):
        if name not in before | {f.name for f in model.fields}:
            model.add(name, data.draw(st.integers(0, len(_WIDTHS) - 1)))
    model.fields = data.draw(st.permutations(model.fields))


_SHAPES = {
    "record": (lambda r: r, lambda v: v),
    "list": (ListType, lambda v: [v, None]),
    "map": (lambda r: DictType(to_type(str, parameter="p"), r), lambda v: {"k": v}),
    "nested": (lambda r: StructType(["in"], [ListType(r)]), lambda v: ([v],)),
}


@given(data=st.data(), shape=st.sampled_from(sorted(_SHAPES)))
def test_what_older_schemas_wrote_reads_as_converting_it_by_hand(data: st.DataObject, shape: str) -> None:
    wrap, put = _SHAPES[shape]
    model, files = _Model(), list[pa.Array]()
    for name in data.draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True)):
        model.add(name, data.draw(st.integers(0, len(_WIDTHS) - 1)))
    written: TypeInformation = wrap(model.record())
    texts, column = [type_to_text(written)], written.storage
    for deployment in range(data.draw(st.integers(1, 5))):
        if deployment:
            _step(data, model)
            written = evolve(texts[-1], wrap(model.record()), earlier=texts).type
            texts.append(type_to_text(written))
            column = grown(column, written.storage)  # one table holds them all
        rows = data.draw(
            st.lists(st.tuples(*[st.none() | st.integers(-100, 100) for _ in model.fields]), max_size=2)
        )
        model.rows += [dict(zip((f.number for f in model.fields), row, strict=True)) for row in rows]
        files.append(written.to_arrow([put(row) for row in rows], storage=True))

    last = evolve(texts[-1], wrap(model.record()), earlier=texts)
    read = [value for file in files for value in last.type.from_arrow(last.read(file))]
    assert read == [put(row) for row in model.expected()]
    again = [conform(last.read(file), column) for file in files]
    assert [v for file in again for v in last.type.from_arrow(last.read(file))] == read
