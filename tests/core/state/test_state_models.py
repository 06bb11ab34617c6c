"""Random operations on every state, against plain Python, with checkpoints and restores in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.state.ttl import StateTtlConfig
from tests.core.state.models import CONFIGS, KINDS, check_random_operations, ops_of
from tests.core.state.steps import Steps, with_ttl


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=40)
@given(data=st.data())
def test_random_operations_equal_the_model(
    kind: str, config: StateTtlConfig | None, data: st.DataObject
) -> None:
    steps = Steps(with_ttl(KINDS[kind].make(), config), restoring=False)
    check_random_operations(kind, config, steps, data.draw(ops_of(kind)))
