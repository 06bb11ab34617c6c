"""Digests of positions: the same as from the beginning, at the cost of what is new."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from state_engine.sources import position_digest
from state_engine.sources.position_digest import PositionDigests


def elements(*splits: str) -> list[dict[str, Any]]:
    return [{"split": split, "position": {"end": None}} for split in splits]


def from_beginning(position: list[dict[str, Any]]) -> str:
    return hashlib.sha256(b"".join(json.dumps(e, sort_keys=True).encode() for e in position)).hexdigest()


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits of the elements that were encoded, in order."""
    seen: list[str] = []

    class Counting:
        @staticmethod
        def dumps(element: dict[str, Any], *, sort_keys: bool) -> str:
            seen.append(element["split"])
            return json.dumps(element, sort_keys=sort_keys)

    monkeypatch.setattr(position_digest, "json", Counting)
    return seen


def test_goes_on_where_another_ended(encoded: list[str]) -> None:
    digests, position = PositionDigests(), elements("a", "b")
    for more in ([], elements("c"), [], elements("d", "e")):
        position = [*position, *more]
        assert digests.of(position) == from_beginning(position)
    assert encoded == ["a", "b", "c", "d", "e"]


def test_an_attempt_that_failed_is_no_beginning(encoded: list[str]) -> None:
    digests, begun = PositionDigests(), elements("a", "b")
    digests.of(begun)
    digests.of([*begun, *elements("dropped")])
    again = [*begun, *elements("c")]
    assert digests.of(again) == from_beginning(again)
    assert encoded == ["a", "b", "dropped", "c"]


def test_several_sources_by_turns(encoded: list[str]) -> None:
    digests, left, right = PositionDigests(), elements("a"), elements("x")
    for n in range(3):
        left, right = [*left, *elements(f"a{n}")], [*right, *elements(f"x{n}")]
        assert [digests.of(left), digests.of(right)] == [from_beginning(left), from_beginning(right)]
    assert len(encoded) == len(left) + len(right)


@pytest.mark.parametrize(
    "other",
    [elements("a", "c"), elements("a", "b", "b", "c"), elements("b", "a", "c"), elements("a", "b")],
    ids=["a gap", "a repeat", "another order", "an early end"],
)
def test_another_position_has_another_digest(other: list[dict[str, Any]]) -> None:
    digests = PositionDigests()
    position = elements("a", "b", "c")
    assert digests.of(position) != digests.of(other) == from_beginning(other)


def test_equal_elements_that_were_read_again_have_the_same_digest() -> None:
    digests = PositionDigests()
    assert digests.of(elements("a", "b")) == digests.of(elements("a", "b"))


def test_of_nothing() -> None:
    assert PositionDigests().of([]) == from_beginning([])
