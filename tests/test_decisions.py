"""The index of decisions lists all of them, with numbers that are theirs alone."""

from __future__ import annotations

from docs.decisions.index import INDEX, index


def test_the_index_is_what_the_records_say() -> None:
    assert INDEX.read_text() == index(), "write it anew: python -m docs.decisions.index"
