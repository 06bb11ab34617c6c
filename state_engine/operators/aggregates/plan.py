"""What declared aggregates are on a stream.

``plan`` binds them to its columns: which accumulators are kept of a key, in which states, and which columns come out.
It runs nothing: ``group_accumulators`` does, row by row, and ``column_plan`` by whole columns. Plays the part of
Flink's ``AggregateInfoList``. Decision 0065.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.aggregate_functions import defines_merge, defines_retract
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.types.every_type import StructType
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.aggregates.declarations import Aggregate, Reach
from state_engine.operators.aggregates.steps import AggregateStep, Fields, Result, step_of

STATE = "aggregates"
"""Name of the state with the accumulators of a key."""
ROWS = "rows"
"""Its first field: how many rows the key has."""


@dataclass(frozen=True)
class AggregatePlan:
    """What declared aggregates are on a stream.

    Attributes:
        steps: the accumulators that are kept; aggregates of one field share those that are the same.
    """

    steps: tuple[AggregateStep, ...]
    results: tuple[Result, ...]

    @property
    def state(self) -> ValueStateDescriptor:
        """The state with the number of rows and all accumulators; an accumulator is null where it missed rows."""
        names = [ROWS, *(step.name for step in self.steps)]
        types = [BIGINT, *(step.accumulator.accumulator_type for step in self.steps)]
        return ValueStateDescriptor(STATE, StructType(names, types))


def check_able(aggregates: Mapping[str, Aggregate], *, retract: bool, merge: bool, of: str) -> None:
    """Refuse aggregates that cannot do what a stream or its windows need.

    Args:
        of: why, for messages.

    Raises:
        ConfigurationError: one cannot.
    """
    for name, aggregate in aggregates.items():
        where, declared = f"aggregate {name}={aggregate}", aggregate.of_function
        if aggregate.reach != Reach():
            raise ConfigurationError(
                f"{where}: last and last_rows are for keyed.over(…), where each row comes out with the aggregates of "
                "the rows before it: leave them out, or use over"
            )
        if retract and aggregate.kind in _INSTEAD_OF_RETRACTION:
            raise ConfigurationError(
                f"{where} cannot take back the rows that are updated and deleted{of}: "
                f"{_INSTEAD_OF_RETRACTION[aggregate.kind]}"
            )
        if declared is None:
            continue
        needs = (
            "retract(self, value, accumulator)"
            if retract and not defines_retract(declared.function)
            else None
        )
        if merge and not defines_merge(declared.function):
            needs = "merge(self, acc_a, acc_b)"
        if needs is not None:
            raise ConfigurationError(f"{where} needs {needs} in {type(declared.function).__name__}{of}")


_INSTEAD_OF_RETRACTION = {
    **dict.fromkeys(
        ("first", "last", "min_by", "max_by"),
        "use top_n(1, by=…) on the keyed stream, which keeps all rows; or min_ and max_, which keep all values",
    ),
    "collect_list": "use collect_set, which keeps each value with its number; or an AggregateFunction with retract",
}


def plan(
    aggregates: Mapping[str, Aggregate],
    columns: StructType,
    *,
    scalar: bool = False,
    retract: bool = False,
    merge: bool = False,
) -> AggregatePlan:
    """The accumulators and columns of aggregates of a stream.

    Args:
        scalar: whether its elements are bare values of the one column.
        retract: whether rows are taken back: then extremes keep all values.

    Raises:
        ConfigurationError: an aggregate does not fit the columns, or cannot do what is needed.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.operators.aggregates.declarations import avg, count
        >>> payments = to_type("user string, amount bigint", parameter="payments")
        >>> made = plan({"n": count(), "mean": avg("amount")}, payments, retract=True)
        >>> [str(result.type) for result in made.results], made.state
        (['int64', 'double'], ValueStateDescriptor('aggregates', \
struct<rows: int64, avg_amount: struct<total: decimal128(38, 0), values: int64>>))
    """
    check_able(aggregates, retract=retract, merge=merge, of="")
    steps: dict[str, AggregateStep] = {}
    results = []
    for name, aggregate in aggregates.items():
        if aggregate.kind == "count" and aggregate.field is None:
            results.append(Result(name, BIGINT))
            continue
        fields = Fields(columns, scalar=scalar, where=f"aggregate {name}={aggregate}")
        step, result = step_of(name, aggregate, fields, retract=retract)
        if steps.setdefault(step.name, step).of != step.of:
            raise ConfigurationError(
                f"aggregate {name}={aggregate} and another one would be kept under one name, '{step.name}': rename one "
                "of the fields in a transform before"
            )
        results.append(replace(result, step=list(steps).index(step.name)))
    return AggregatePlan(tuple(steps.values()), tuple(results))
