"""Supported changes of types, with values of the old type and what they are in the new one, in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from state_engine.core.types.every_type import DictType, FloatType, ListType, StructType, TypeInformation
from tests.core.types.type_samples import LEAVES, Sample, decimals, integers, samples


@dataclass
class Evolved:
    """A type, a later one, values of the first, and what each of them is in the later one."""

    old: TypeInformation
    new: TypeInformation
    values: st.SearchStrategy[Any]
    convert: Callable[[Any], Any]


def _same(sample: Sample) -> Evolved:
    return Evolved(sample[0], sample[0], sample[1], lambda v: v)


def _widening(old: Sample, new: Sample) -> Evolved:
    return Evolved(old[0], new[0], old[1], lambda v: v)


_WIDENINGS = [
    _widening(integers(8), integers(16)), _widening(integers(8), integers(64)), _widening(integers(32), integers(64)),
    _widening(LEAVES["float"], (FloatType(pa.float64()), st.nothing())), _widening(decimals(5, 2), decimals(9, 2)),
    _widening(decimals(30, 4), decimals(38, 4)),
]  # fmt: skip
_KEYS = [_same(LEAVES["string"]), _same(LEAVES["date"]), *_WIDENINGS[:3], _WIDENINGS[4]]


def _listed(inner: Evolved) -> Evolved:
    values = st.lists(st.none() | inner.values, max_size=3)
    return Evolved(
        ListType(inner.old), ListType(inner.new), values, lambda v: [converted(inner, e) for e in v]
    )


def _mapped(key: Evolved, inner: Evolved) -> Evolved:
    values = st.dictionaries(key.values, st.none() | inner.values, max_size=3)
    return Evolved(
        DictType(key.old, inner.old),
        DictType(key.new, inner.new),
        values,
        lambda v: {k: converted(inner, e) for k, e in v.items()},
    )


# made once: making a recursive strategy takes longer than drawing from it
_FIELDS = st.lists(samples(), max_size=2)


@st.composite
def _records(draw: st.DrawFn, inner: st.SearchStrategy[Evolved]) -> Evolved:
    kept = draw(st.lists(inner, min_size=1, max_size=3))
    dropped, added = draw(_FIELDS), draw(_FIELDS)
    old = [(f"kept{i}", e.old, e.values) for i, e in enumerate(kept)]
    old += [(f"gone{i}", kind, values) for i, (kind, values) in enumerate(dropped)]
    new: list[tuple[str, TypeInformation, Evolved | None]] = [
        (f"kept{i}", e.new, e) for i, e in enumerate(kept)
    ]
    new += [(f"more{i}", kind, None) for i, (kind, _) in enumerate(added)]
    old, new = draw(st.permutations(old)), draw(st.permutations(new))
    at = {name: i for i, (name, _, _) in enumerate(old)}

    def convert(value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if e is None else converted(e, value[at[name]]) for name, _, e in new)

    return Evolved(
        StructType([n for n, _, _ in old], [t for _, t, _ in old]),
        StructType([n for n, _, _ in new], [t for _, t, _ in new]),
        st.tuples(*[st.none() | values for _, _, values in old]),
        convert,
    )


def converted(inner: Evolved, value: Any) -> Any:
    """A value of the old type, or None, as one of the new type."""
    return None if value is None else inner.convert(value)


def evolutions() -> st.SearchStrategy[Evolved]:
    """Supported changes of any type, at any depth."""
    leaves = st.sampled_from([*_WIDENINGS, *(_same(sample) for sample in LEAVES.values())])
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(_listed, inner) | st.builds(_mapped, st.sampled_from(_KEYS), inner) | _records(inner)
        ),
        max_leaves=4,
    )
