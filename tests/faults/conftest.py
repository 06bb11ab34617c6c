"""Fixtures of the fault tests."""

from __future__ import annotations

import pytest

from tests.faults.ground import Ground, Grounds


@pytest.fixture(scope="session")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Grounds:
    """Makes the ground of each operation once, for all tests of a worker."""
    known: dict[str, Ground] = {}

    def ground(operation: str) -> Ground:
        if operation not in known:
            known[operation] = Ground.of(tmp_path_factory.mktemp("site"), operation)
        return known[operation]

    return ground
