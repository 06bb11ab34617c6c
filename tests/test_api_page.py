"""The page of public names is that of the code: names, signatures, errors."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

import state_engine
from docs import api
from state_engine import errors

CALLED = (
    state_engine.StateEngine,
    state_engine.StateProcessor,
    state_engine.JobSavepoints,
    state_engine.JobPublished,
)


def test_the_page_is_written_from_the_code_of_today() -> None:
    assert api.PAGE.read_text() == api.page(), "a public name changed; run: python -m docs.api"


def test_every_exported_name_has_its_place() -> None:
    placed = Counter(name for _, names in api.GROUPS.values() for name in names)
    assert set(placed) == set(state_engine.__all__) - {"StatelakeError"}
    assert set(placed.values()) == {1}


@pytest.mark.parametrize("cls", CALLED, ids=lambda cls: cls.__name__)
def test_errors_that_a_call_names_are_errors_of_ours(cls: type) -> None:
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        named = set(re.findall(r"\b\w+Error\b", inspect.getdoc(function) or ""))
        assert named <= set(errors.__all__), name


def test_a_changed_signature_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: object, job: object, *, other: bool = False) -> None:
        """Run."""

    monkeypatch.setattr(state_engine.StateEngine, "run", run)
    assert "run(job: object, *, other: bool = False) -> None" in api.page()
    assert api.PAGE.read_text() != api.page()
