"""Charts of asset metadata, read back from the SVG in the Markdown."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from state_engine.dagster.pictures import bars, durations_and_lag, lines, state_sizes
from tests.dagster.test_status import row

SVG = "{http://www.w3.org/2000/svg}"


def drawn(markdown: str) -> tuple[list[str], str]:
    """The paths of an image, and all its text."""
    match = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([^)]*)\)", markdown)
    assert match is not None
    tree = ElementTree.fromstring(base64.b64decode(match[1]))
    text = " ".join(t for node in tree.iter(f"{SVG}text") for t in node.itertext())
    return [path.attrib["d"] for path in tree.iter(f"{SVG}path")], text


def test_a_bar_is_as_high_as_its_share_and_nothing_is_drawn_for_nothing() -> None:
    [path], text = drawn(bars("a <b>", [10, 0, 5]))
    assert [float(h) for h in re.findall(r"v-([0-9.]+)", path)] == [100, 50]
    assert text == "a <b> 3 in all, most 10"


def test_very_many_values_share_bars() -> None:
    [path], text = drawn(bars("groups", [1] * 1000))
    assert path.count("M") == 125
    assert "1,000 in all, most 8" in text


@pytest.mark.parametrize("values", [[], [0, 0]], ids=str)
def test_nothing_is_a_picture_too(values: list[float]) -> None:
    paths, _ = drawn(bars("empty", values))
    assert paths == [""]


def test_lines_have_gaps_and_scales_of_their_own() -> None:
    paths, text = drawn(lines("t", {"a": [1, None, 2], "b": [1000, 500, 0]}, ends=("from", "to")))
    assert [path.count("M") for path in paths] == [2, 1]
    assert "a: 2, most 2" in text
    assert "b: 0, most 1,000" in text
    assert "from → to" in text


def test_a_history_shows_durations_lag_and_the_size_of_the_state() -> None:
    path = [
        replace(row(i), durations_ms={"plan": 500, "execute": 1000 * i}, clock_ms=9000, watermark_ms=1000 * i)
        for i in range(1, 4)
    ]
    paths, text = drawn(durations_and_lag(path))
    assert len(paths) == 2
    assert "seconds: 3.50, most 3.50" in text
    assert "event-time lag, s: 6, most 8" in text
    picture, sizes = state_sizes(path)
    assert sizes == [(1, 1), (2, 2), (3, 3)]
    assert "checkpoint 1 → 3" in drawn(picture)[1]
    assert durations_and_lag([]) == ""
