"""What a job's outputs and states are expected to be, declared beside the job as plain data.

Each expectation is one of Great Expectations, by its name and arguments; that library is imported only where they are
checked. A suite is checked in one go. The columns of a state are its key columns, ``map_key`` of a map, and ``value``;
of a record, a column ``value_<field>`` for each field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from state_engine.core.argument_checks import checked_class
from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.job.job import OnBreach

Severity = Literal["error", "warn"]


@checked_class
@dataclass(frozen=True)
class OfSink:
    """The rows of a sink."""

    sink: str


@checked_class
@dataclass(frozen=True)
class OfState:
    """The entries of a keyed state at the head."""

    operator: str
    state: str


@checked_class
@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One expectation.

    Attributes:
        name: of the check; unique among those of the same sink or state.
        type: name of the expectation, for example ``expect_column_values_to_not_be_null``.
        arguments: of the expectation, for example ``{"column": "tailnum", "mostly": 0.99}``.
        about: for people.
        severity: how bad it is when it is not met.
        blocking: whether what is downstream waits for it.

    Raises:
        ConfigurationError: a part is not what it must be.
    """

    name: str
    type: str
    arguments: Mapping[str, Any]
    about: str = ""
    severity: Severity = "error"
    blocking: bool = False

    def __post_init__(self) -> None:
        where = f"expectation '{check_name(self.name, what='expectation')}'"
        check_choice(self.severity, get_args(Severity), what=f"{where}: severity")
        if not (isinstance(self.type, str) and re.fullmatch(r"expect_\w+", self.type)):
            raise ConfigurationError(
                f"{where}: type must name an expectation of Great Expectations, such as "
                f"'expect_column_values_to_not_be_null', not {self.type!r}"
            )
        if not isinstance(self.arguments, Mapping):
            raise ConfigurationError(
                f"{where}: arguments must be a mapping, such as {{'column': 'tailnum'}}, not {self.arguments!r}"
            )


@checked_class
@dataclass(frozen=True, kw_only=True)
class Suite:
    """What is expected of one sink or state.

    Attributes:
        name: of the suite; unique in the job.
        of: what is looked at.
        expectations: at least one.
        identified_by: columns that are shown of rows that are not as expected.
        gate: whether a micro-batch is judged by the suite before it is committed, by what it has staged for the sink,
            or the entries of the state that it changes: ``True`` or ``"stop"`` to commit nothing if an expectation of
            severity ``error`` is not met, ``"hold"`` to hold it, see ``StatefulJob.gate``. The suite reads all of them
            on the driver, as a pandas DataFrame.

    Raises:
        ConfigurationError: a part is not what it must be.
    """

    name: str
    of: OfSink | OfState
    expectations: tuple[Expectation, ...]
    identified_by: tuple[str, ...] = ()
    gate: bool | OnBreach = False

    def __post_init__(self) -> None:
        where = f"suite '{check_name(self.name, what='suite')}'"
        if not isinstance(self.of, OfSink | OfState):
            raise ConfigurationError(f"{where}: of must be OfSink(...) or OfState(...), not {self.of!r}")
        if not self.expectations or not all(isinstance(one, Expectation) for one in self.expectations):
            raise ConfigurationError(
                f"{where}: expectations must be a tuple of Expectation(...), at least one, not {self.expectations!r}"
            )
        names = [one.name for one in self.expectations]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(
                f"{where}: two expectations are named '{twice[0]}': each needs a name of its own"
            )
        if not isinstance(self.gate, bool):
            check_choice(self.gate, get_args(OnBreach), what=f"{where}: gate")
        if self.gate and all(one.severity == "warn" for one in self.expectations):
            raise ConfigurationError(
                f"{where}: a gate is broken by expectations of severity 'error', and it has none: give one, or leave "
                "gate out"
            )
