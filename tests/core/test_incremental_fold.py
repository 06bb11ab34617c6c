"""Folds that go on: the same result as from the beginning, at the cost of what is new."""

from __future__ import annotations

import gc
import hashlib
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.state.state_schema import StateSchema
from state_engine.sources.base import summary
from tests.core.checkpoints.rows import checkpoint, operator


class Word:
    """An object that is itself only, as elements of positions and rows of paths are."""

    def __init__(self, text: str) -> None:
        self.text = text


def words(texts: str) -> list[Word]:
    return [Word(text) for text in texts]


class Joined:
    """A fold of words that records which of them were taken in."""

    def __init__(self, most: int = 8, *, weakly: bool = False) -> None:
        self.taken = ""
        self.fold: IncrementalFold[Word, str] = IncrementalFold(self._step, "", most=most, weakly=weakly)

    def _step(self, so_far: str, new: Sequence[Word]) -> str:
        text = "".join(word.text for word in new)
        self.taken += text
        return so_far + text


@pytest.mark.parametrize("weakly", [False, True])
def test_goes_on_where_another_ended(weakly: bool) -> None:
    joined, all_words = Joined(weakly=weakly), words("ab")
    for more in ("", "c", "", "de"):
        all_words = [*all_words, *words(more)]
        assert joined.fold.of(all_words) == "".join(word.text for word in all_words)
    assert joined.taken == "abcde"


def test_what_failed_is_no_beginning_of_what_comes_in_its_place() -> None:
    joined, begun = Joined(), words("ab")
    assert joined.fold.of(begun) == "ab"
    assert joined.fold.of([*begun, *words("x")]) == "abx"
    assert joined.fold.of([*begun, *words("c")]) == "abc"
    assert joined.taken == "abxc"


def test_several_by_turns() -> None:
    joined, left, right = Joined(), words("a"), words("x")
    for n in range(3):
        left, right = [*left, Word(str(n))], [*right, Word(str(n))]
        assert (joined.fold.of(left), joined.fold.of(right)) == ("a012"[: n + 2], "x012"[: n + 2])
    assert len(joined.taken) == len(left) + len(right)


def test_equal_is_not_the_same() -> None:
    texts: IncrementalFold[object, str] = IncrementalFold(
        lambda so_far, new: so_far + "".join(f"{one} " for one in new), ""
    )
    assert [texts.of([1, 2]), texts.of([True, 2]), texts.of([1.0, 2])] == ["1 2 ", "True 2 ", "1.0 2 "]


def test_a_beginning_of_what_is_known_is_folded_by_itself() -> None:
    joined, all_words = Joined(), words("abc")
    assert [joined.fold.of(all_words), joined.fold.of(all_words[:2]), joined.fold.of([])] == ["abc", "ab", ""]


def test_forgets_the_oldest() -> None:
    joined, first = Joined(most=2), words("a")
    for sequence in (first, words("b"), words("c"), first):
        joined.fold.of(sequence)
    assert joined.taken == "abca"


def test_keeps_no_sequence_alive() -> None:
    joined, all_words = Joined(weakly=True), words("abc")
    seen = weakref.ref(all_words[1])
    assert joined.fold.of(all_words) == "abc"
    del all_words
    gc.collect()
    assert seen() is None
    assert joined.fold.of(words("abc")) == "abc"
    assert joined.taken == "abcabc"


# -- what is folded so -------------------------------------------------------------------------------------------------


def element(split: str) -> dict[str, Any]:
    return {"split": split, "position": {"end": None}}


def digest(position: list[dict[str, Any]]) -> str:
    recorded: str = json.loads(summary(position))["digest"]
    whole = b"".join(json.dumps(one, sort_keys=True).encode() for one in position)
    assert recorded == hashlib.sha256(whole).hexdigest()[:16]
    return recorded


@pytest.mark.parametrize(
    "other", ["ac", "abbc", "bac", "ab"], ids=["a gap", "a repeat", "another order", "an early end"]
)
def test_the_digest_of_a_position_is_that_of_all_its_elements(other: str) -> None:
    by_split = {split: element(split) for split in "abc"}
    begun, whole, another = ([by_split[split] for split in splits] for splits in ("a", "abc", other))
    assert digest(begun) != digest(whole) != digest(another)


def test_earlier_states_are_all_forms_on_the_path() -> None:
    plain, with_ttl = StateSchema("n", "value", "long"), StateSchema("n", "value", "long", ttl="{}")
    renamed, beside = (
        StateSchema("m", "value", "long", stored_as="n"),
        StateSchema("o", "list", "long"),
    )
    path = [
        checkpoint(1, operators=[declaring("a", plain), declaring("b", renamed)]),
        checkpoint(2, 1, operators=[declaring("a", plain)]),
        checkpoint(3, 2, operators=[declaring("a", with_ttl, beside)]),
        checkpoint(4, 3, operators=[declaring("a", renamed)]),
    ]
    assert earlier_states("a", path[:2]) == {"n": [plain]}
    assert earlier_states("a", path) == {"n": [plain, with_ttl, renamed], "o": [beside]}
    without = [*path[:2], replace(path[2], operators=[])]
    assert [earlier_states(uid, without) for uid in "abc"] == [{"n": [plain]}, {"n": [renamed]}, {}]


def declaring(uid: str, *states: StateSchema) -> OperatorCheckpoint:
    return replace(operator(), uid=uid, states=list(states))
