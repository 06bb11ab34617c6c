"""Every public name of PyFlink is a name here, or the porting guide names its replacement.

``pyflink_names.json`` holds the classes of ``pyflink.datastream`` and of the modules it takes types and time from, in
version 2.3.0, with their public methods; of windows the classes alone.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from functools import cache, reduce
from pathlib import Path

import pytest

import state_engine

NAMES: dict[str, list[str]] = json.loads((Path(__file__).parent / "pyflink_names.json").read_text())
GUIDE = Path(__file__).parents[2] / "docs" / "porting.md"


def resolved(path: str) -> object | None:
    return reduce(lambda of, name: getattr(of, name, None), path.split("."), state_engine)  # type: ignore[arg-type, return-value]


@cache
def missing() -> list[str]:
    """Missing classes, and missing methods of the classes that exist."""
    classes = [name for name in NAMES if resolved(name) is None]
    methods = [f"{of}.{name}" for of, names in NAMES.items() if of not in classes for name in names]
    return [*classes, *(name for name in methods if resolved(name) is None)]


@cache
def listed() -> list[str]:
    """The first column of the table, with ``*`` for any text."""
    section = GUIDE.read_text().split("## Names of PyFlink that are not here")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_the_list_is_of_what_programs_use() -> None:
    assert {"DataStream", "KeyedStream", "ConnectedStreams", "BroadcastConnectedStream", "ValueState"} <= set(
        NAMES
    )
    assert {"KeyedProcessFunction.OnTimerContext", "StateTtlConfig.Builder", "Types", "TimerService"} <= set(
        NAMES
    )
    assert len(NAMES) > 140


@pytest.mark.parametrize("name", missing())
def test_a_name_that_is_not_here_is_in_the_guide(name: str) -> None:
    assert any(fnmatchcase(name, pattern) for pattern in listed())


@pytest.mark.parametrize("pattern", listed())
def test_what_the_guide_lists_is_a_name_of_pyflinks_that_is_not_here(pattern: str) -> None:
    assert any(fnmatchcase(name, pattern) for name in missing())
    methods = [f"{of}.{name}" for of, names in NAMES.items() for name in names]
    here = [n for n in [*NAMES, *methods] if n not in missing() and fnmatchcase(n, pattern)]
    assert [n for n in here if n.split(".")[0] not in missing()] == []
