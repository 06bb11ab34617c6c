"""Settings with a root of their own, and a small job under Dagster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from state_engine.machine.settings import JobsSettings, Settings
from tests.dagster.sites import Site


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The jobs of this project on a root that is empty."""
    return Settings(root=str(tmp_path / "state"), jobs=JobsSettings(modules=["jobs"]))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The example of five pairs with a Dagster instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Site(tmp_path, instance)
