"""Fixtures of the fault tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.sites import SavedSite, SavedSites


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Faults are put into Spark's tasks, and the processes that run them are killed."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark_tasks)


@pytest.fixture(scope="session")
def saved_sites(tmp_path_factory: pytest.TempPathFactory) -> SavedSites:
    """Saves the site of each operation once, for all tests of a worker."""
    known: dict[str, SavedSite] = {}

    def saved_site(operation: str) -> SavedSite:
        if operation not in known:
            known[operation] = SavedSite.of(tmp_path_factory.mktemp("site"), operation)
        return known[operation]

    return saved_site
