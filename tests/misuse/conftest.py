"""Each micro-batch of these tests is held to the plan before it: what a run refuses, a plan refuses, and no more."""

from __future__ import annotations

import pytest

from tests.code_changes.planning import Held


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)
