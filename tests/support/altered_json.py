"""Values of JSON with a part that somebody else put there: of another type, deep, huge, or not there."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

FOREIGN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "..", "a/../b", "9999-99-99", "\x00", "", "{", '{"ttl_ms": {}}']),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
    st.sampled_from(["@deep:70", "@deep:990", "@deep:100000"]),
)
"""What may stand anywhere in a text that is not to be believed."""


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A value of JSON, one part of which is another one, or is not there."""
    at = changed = json.loads(json.dumps(value))
    while True:
        place = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
        if isinstance(at[place], dict | list) and at[place] and draw(st.booleans()):
            at = at[place]
        elif draw(st.integers(0, 5)) == 0:
            del at[place]
            return changed
        else:
            at[place] = draw(FOREIGN)
            return changed


def as_text(value: Any) -> str:
    """As JSON, with what stands for deep values: Python's encoder would call itself for each of their levels."""
    return re.sub(r'"@deep:(\d+)"', lambda deep: "[" * int(deep[1]) + "]" * int(deep[1]), json.dumps(value))
