"""Names: one spelling everywhere, so that no path and no quoting can be smuggled in."""

from __future__ import annotations

import pytest

from state_engine.core.errors import InvalidNameError
from state_engine.core.names import check_name


@pytest.mark.parametrize("name", ["a", "plane_delays", "x9", "a_", "a" * 100])
def test_good_names_are_given_back(name: str) -> None:
    assert check_name(name, what="job") == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "_a", "9a", "a-b", "a b", "a/b", "../a", "a.b", "é", "a\n", "a" * 101, "ａ", None, 5, b"a"],
)
def test_others_are_refused_and_told_how_to_look(name: object) -> None:
    with pytest.raises(InvalidNameError, match="cannot name a job: use lower-case letters"):
        check_name(name, what="job")
