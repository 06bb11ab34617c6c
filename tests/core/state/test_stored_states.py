"""The match of declared and stored states: names, former names, names in use again, and refusals."""

from __future__ import annotations

import pytest

from state_engine.core.errors import ConfigurationError, InvalidNameError, StateMigrationError
from state_engine.core.state.descriptors import (
    TIMERS,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.stored_states import StoredStates, kept_states
from state_engine.core.time.timers import TimersDescriptor

SUM = StateSchema("sum", "value", "bigint")


def value(name: str, former: str | None = None, kind: str = "bigint") -> StateDescriptor:
    descriptor = ValueStateDescriptor(name, kind)
    return descriptor if former is None else descriptor.renamed_from(former)


def stored(*recorded: StateSchema, used: tuple[str, ...] = (), dropped: tuple[str, ...] = ()) -> StoredStates:
    return StoredStates("o", {s.name: s for s in recorded}, {name: [SUM] for name in used}, dropped=dropped)


def after(states: StoredStates, *declared: StateDescriptor) -> list[StateSchema]:
    """The states that the next checkpoint holds."""
    now = [recorded_schema(states.of(descriptor).descriptor) for descriptor in declared]
    return kept_states(states.recorded.values(), now, dropped=states.dropped)


@pytest.mark.parametrize(
    "descriptor",
    [
        ValueStateDescriptor("s", "a int"),
        ListStateDescriptor("s", "a int"),
        MapStateDescriptor("s", int, "a int"),
    ],
    ids=lambda d: d.kind,
)
def test_a_state_is_found_by_its_name_or_its_former_one(descriptor: StateDescriptor) -> None:
    schema = recorded_schema(descriptor)
    same = stored(schema).of(descriptor)
    assert (same.descriptor.stored_as, same.changes) == ("s", ())
    assert same.read is not None
    assert same.descriptor.column_type == descriptor.column_type

    descriptor.name = "t"
    renamed = stored(schema).of(descriptor.renamed_from("s"))
    assert (renamed.descriptor.stored_as, renamed.descriptor.name) == ("s", "t")
    assert renamed.changes == ("state 's' is renamed to 't'",)
    assert after(stored(schema), descriptor) == [StateSchema("t", schema.kind, schema.type, "", "s")]


def test_a_state_that_nobody_stored_starts_empty() -> None:
    other = stored(SUM).of(value("other"))
    assert (other.descriptor.stored_as, other.read) == ("other", None)
    assert stored().of(value("total", "sum")).read is None


def test_a_rename_may_be_repeated_chained_and_forgotten() -> None:
    total = after(stored(SUM), value("total", "sum"))
    assert total == [StateSchema("total", "value", "bigint", "", "sum")]
    for again in (value("total", "sum"), value("total")):
        assert after(stored(*total), again) == total
    assert after(stored(*total), value("whole", "total")) == [
        StateSchema("whole", "value", "bigint", "", "sum")
    ]


def test_a_new_state_may_bear_the_old_name_of_another() -> None:
    total = after(stored(SUM), value("total", "sum"))
    for declared in ([value("total", "sum"), value("sum")], [value("sum"), value("total", "sum")]):
        both = {s.name: s.stored_as for s in after(stored(*total), *declared)}
        assert both == {"total": "sum", "sum": "2__sum"}
        kept = stored(*after(stored(*total), *declared))
        assert {s.name: s.stored_as for s in after(kept, *declared)} == both


def test_a_state_that_is_declared_no_more_is_kept_until_it_is_given_up() -> None:
    assert after(stored(SUM), value("other"))[0] == SUM
    assert [s.name for s in after(stored(SUM, dropped=("sum",)), value("other"))] == ["other"]


def test_what_was_given_up_does_not_come_back() -> None:
    assert stored(used=("sum",)).of(value("sum")).descriptor.stored_as == "2__sum"
    twice = stored(used=("sum", "2__sum")).of(value("sum"))
    assert (twice.descriptor.stored_as, twice.read) == ("3__sum", None)
    # names that users give cannot be those
    assert ValueStateDescriptor("2__sum", int).stored_as != "2__sum"


def test_two_states_cannot_become_one() -> None:
    with pytest.raises(StateMigrationError, match=r"renamed from 'sum', and the checkpoint holds both"):
        stored(SUM, StateSchema("total", "value", "bigint")).of(value("total", "sum"))
    for first, second in (("sum", "total"), ("total", "sum")):
        former = {"total": "sum", "sum": None}
        states = stored(SUM)
        states.of(value(first, former[first]))
        with pytest.raises(StateMigrationError, match="both name the stored state 'sum'"):
            states.of(value(second, former[second]))


def test_a_renamed_state_may_not_change_its_type() -> None:
    with pytest.raises(StateMigrationError, match="state 'total' is stored as bigint, the function declares"):
        stored(SUM).of(value("total", "sum", "string"))


def test_what_is_declared_is_not_given_up() -> None:
    with pytest.raises(StateMigrationError, match=r"declared by the function and dropped by drop_states"):
        stored(SUM, dropped=("sum",)).of(value("sum"))


def test_a_former_name_is_another_name() -> None:
    with pytest.raises(ConfigurationError, match="from its own name"):
        value("sum", "sum")
    with pytest.raises(InvalidNameError):
        value("sum", "")


def test_timers_are_stored_under_their_own_name() -> None:
    """The reserved name of timers; no declared name is stored under it."""
    assert stored().of(TimersDescriptor()).descriptor.stored_as == TIMERS
