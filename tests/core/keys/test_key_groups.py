"""Key groups: Flink's vectors, and that every key group is on exactly one subtask at any parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.keys.key_groups import (
    KeyGroupRange,
    assign_to_key_group,
    default_max_parallelism,
    key_group_of_hash,
    key_group_range,
    subtask_for_key_group,
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int]:
    """A max parallelism and a parallelism that fits it."""
    max_parallelism = draw(st.integers(1, 400) | st.sampled_from([4096, 32767, 32768]))
    return max_parallelism, draw(st.integers(1, min(max_parallelism, 400)) | st.just(max_parallelism))


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (171, 256), (172, 512), (1000, 2048), (30000, 32768), (32768, 32768)],
)
def test_default_max_parallelism(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("max_parallelism", "expected"),
    [
        (128, [(0, 42), (43, 85), (86, 127)]),
        (128, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
        (13, [(0, 3), (4, 6), (7, 9), (10, 12)]),
    ],
)
def test_ranges_are_flinks(max_parallelism: int, expected: list[tuple[int, int]]) -> None:
    p = len(expected)
    assert [key_group_range(max_parallelism, p, i) for i in range(p)] == [KeyGroupRange(*e) for e in expected]


@given(layouts())
def test_every_key_group_is_on_exactly_one_subtask(layout: tuple[int, int]) -> None:
    max_parallelism, parallelism = layout
    ranges = [key_group_range(max_parallelism, parallelism, subtask) for subtask in range(parallelism)]
    assert [group for owned in ranges for group in owned] == list(range(max_parallelism))
    sizes = {len(owned) for owned in ranges}
    assert max(sizes) - min(sizes) <= 1


@given(layouts())
def test_range_and_owner_are_inverse(layout: tuple[int, int]) -> None:
    max_parallelism, parallelism = layout
    for subtask in range(parallelism):
        for group in key_group_range(max_parallelism, parallelism, subtask):
            assert subtask_for_key_group(max_parallelism, parallelism, group) == subtask


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 32768))
def test_every_hash_has_a_key_group(key_hash: int, max_parallelism: int) -> None:
    group = key_group_of_hash(key_hash, max_parallelism)
    assert 0 <= group < max_parallelism
    assert (key_hash - group) % max_parallelism == 0


def test_keys_are_assigned_by_their_canonical_hash() -> None:
    assert assign_to_key_group(1, 128) == -7001672635703045582 % 128 == 50
    assert assign_to_key_group(("EWR", None, "TYS"), 32768) == 2074395026301774323 % 32768
    assert assign_to_key_group(0.0, 128) == assign_to_key_group(-0.0, 128) == assign_to_key_group(False, 128)


def test_a_range_knows_its_groups() -> None:
    owned = KeyGroupRange(3, 5)
    assert list(owned) == [3, 4, 5]
    assert len(owned) == 3
    assert (2 in owned, 3 in owned, 5 in owned, 6 in owned, "3" in owned) == (False, True, True, False, False)
    for bad in [(-1, 2), (3, 2)]:
        with pytest.raises(ValueError, match="start <= end"):
            KeyGroupRange(*bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: default_max_parallelism(0), "parallelism must be 1 … 32768, got 0"),
        (lambda: default_max_parallelism(32769), "parallelism must be 1 … 32768, got 32769"),
        (lambda: assign_to_key_group(1, 0), "max_parallelism must be 1 … 32768, got 0"),
        (lambda: assign_to_key_group(1, 32769), "max_parallelism must be 1 … 32768, got 32769"),
        (lambda: key_group_range(4, 5, 0), "parallelism 5 is greater than max parallelism 4"),
        (lambda: key_group_range(4, 0, 0), "parallelism must be at least 1, not 0"),
        (lambda: key_group_range(65536, 2, 0), "max_parallelism must be 1 … 32768, got 65536"),
        (lambda: key_group_range(4, 2, 2), r"subtask must be 0 … 1 \(parallelism 2\), got 2"),
        (lambda: key_group_range(4, 2, -1), "subtask must be 0 … 1"),
        (lambda: subtask_for_key_group(4, 5, 0), "parallelism 5 is greater than max parallelism 4"),
        (lambda: subtask_for_key_group(4, 2, 4), "key_group must be 0 … 3"),
        (lambda: subtask_for_key_group(4, 2, -1), "key_group must be 0 … 3"),
    ],
)
def test_bad_arguments_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
