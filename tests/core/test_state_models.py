"""Random operations on every state, against plain Python, with checkpoints and restores in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.ttl import StateTtlConfig
from tests.core.models import KINDS, StateModel, ops_of
from tests.core.steps import Steps, ttl, with_ttl

CONFIGS: dict[str, StateTtlConfig | None] = {
    "no ttl": None,
    "on write": ttl(),
    "on read": ttl(on_read=True),
    "on write, shows expired": ttl(shows_expired=True),
    "on read, shows expired": ttl(on_read=True, shows_expired=True),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=40)
@given(data=st.data())
def test_random_operations_equal_the_model(
    kind: str, config: StateTtlConfig | None, data: st.DataObject
) -> None:
    steps = Steps(with_ttl(KINDS[kind].make(), config), restoring=False)
    models: dict[int, StateModel] = {}
    now = 0
    for op, key, wait, checkpoint in data.draw(ops_of(kind)):
        now += wait
        model = models.setdefault(key, StateModel(KINDS[kind], config))
        found = steps.at(now, lambda s, op=op: KINDS[kind].apply(s, op), key=key)
        assert found == model.apply(op, now), (op, key, now)
        if checkpoint:
            steps.checkpoint()
    stored = steps.checkpoint().get("s", {})
    assert {k: kept for k, m in models.items() if (kept := m.stored()) is not None} == stored
