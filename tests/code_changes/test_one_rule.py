"""What a run refuses, a plan refuses with the same text, and the other way round.

The tests of the misuse table and of the guide about evolution that run changed jobs are run again here, and each of
their micro-batches is held to the plan before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.code_changes.planning import Held
from tests.engine.test_migration import *  # noqa: F403
from tests.microbatch.test_shapes import *  # noqa: F403
from tests.microbatch.test_unasked_states import *  # noqa: F403

pytestmark = pytest.mark.more
del test_where_open_cannot_be_tried_the_micro_batch_says_it  # noqa: F821 - its function fails once, in the plan's trial


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    if request.node.originalname == "test_what_does_not_fit_is_refused":
        known = "another type of key" not in request.node.name  # rows show that
        assert held.plans > held.refusals >= known, "nothing was compared"
