"""Fixtures of the fault tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ground import Ground, Grounds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Faults are put into Spark's tasks, and the processes that run them are killed."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark_tasks)


@pytest.fixture(scope="session")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Grounds:
    """Makes the ground of each operation once, for all tests of a worker."""
    known: dict[str, Ground] = {}

    def ground(operation: str) -> Ground:
        if operation not in known:
            known[operation] = Ground.of(tmp_path_factory.mktemp("site"), operation)
        return known[operation]

    return ground
