"""Settings with a root of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from state_engine.machine.settings import JobsSettings, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The jobs of this project on a root that is empty."""
    return Settings(root=str(tmp_path / "state"), jobs=JobsSettings(modules=["jobs"]))
