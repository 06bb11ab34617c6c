"""Random operations on every state, against plain Python, with checkpoints and restores in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.state.ttl import Stamped, StateTtlConfig
from tests.core.state.models import CONFIGS, KINDS, StateModel, check_random_operations, ops_of, steps_of

EVERY_KIND = pytest.mark.parametrize("kind", list(KINDS))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@EVERY_KIND
@settings(max_examples=40)
@given(data=st.data())
def test_random_operations_equal_the_model(
    kind: str, config: StateTtlConfig | None, data: st.DataObject
) -> None:
    steps = steps_of(kind, config, restoring=data.draw(st.booleans()))
    check_random_operations(kind, config, steps, data.draw(ops_of(kind)))


@pytest.mark.parametrize("config", [CONFIGS["on write"], CONFIGS["on read"]], ids=["on write", "on read"])
@EVERY_KIND
@settings(max_examples=20)
@given(data=st.data())
def test_time_to_live_is_turned_on_and_off(kind: str, config: StateTtlConfig, data: st.DataObject) -> None:
    """What was stored without it lives until it is written, or read where reads renew; without it nothing expires."""
    models, stored, now = dict[int, StateModel](), dict[Any, Any](), 0
    for new in (None, config, None):
        steps = steps_of(kind, new)
        shape = steps.descriptors[0].shape
        steps.stored = {"s": {key: items_of(shape, of, timed=new is not None) for key, of in stored.items()}}
        for key, model in models.items():
            entries = [(name, value, None) for name, value, _ in model.entries]
            models[key] = StateModel(KINDS[kind], new, entries)
        now = check_random_operations(kind, new, steps, data.draw(ops_of(kind)), models, now)
        stored = steps.stored.get("s", {})


def items_of(shape: str, stored: Any, *, timed: bool) -> Any:
    """What is stored, with times that nobody knows or without any."""

    def item(value: Any) -> Any:
        value = value.value if isinstance(value, Stamped) else value
        return Stamped(value, None) if timed else value

    if shape == "value":
        return item(stored)
    return list(map(item, stored)) if shape == "list" else {key: item(value) for key, value in stored.items()}
