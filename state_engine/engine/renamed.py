"""Names of versions before 0.2, each with what it is called now: using one is an error that says so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from state_engine.core.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

METHODS = {
    "bootstrap": "state_processor(job).bootstrap",
    "bootstrap_from_spark": "state_processor(job).bootstrap_from_spark",
    "change_key_type": "state_processor(job).change_key_type",
    "collect": "vacuum",
    "delete_savepoint": "savepoints(job).delete",
    "forget": "state_processor(job).erase_keys",
    "retain": "expire_checkpoints",
    "savepoint": "savepoints(job).create",
    "settle": "publish_pending",
    "sql_views": "list_views",
    "transform_state": "state_processor(job).transform_state",
    "verify_savepoint": "savepoints(job).verify",
}
"""Of ``StateEngine``."""

EXPORTS = {
    "CollectionReport": "VacuumReport",
    "Compaction": "CompactionReport",
    "Comparison": "ComparisonReport",
    "HeadMove": "RestoreReport",
    "Savepoint": "SavepointReport",
}
"""Of the package ``state_engine``."""


def renamed(owner: str, name: str, names: Mapping[str, str]) -> str:
    """What to say of a name that is not there.

    Example:
        >>> renamed("StateEngine", "collect", METHODS)
        "'StateEngine' has no attribute 'collect': it is called 'vacuum' now"
    """
    now = f": it is called '{names[name]}' now" if name in names else ""
    return f"'{owner}' has no attribute '{name}'{now}"


def renamed_parameters(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: a parameter that is given by a former name is an error that says the present one.

    Args:
        names: today's name by the former one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            for old in options.keys() & names.keys():
                raise ConfigurationError(
                    f"{function.__name__} has no parameter '{old}': it is called '{names[old]}' now"
                )
            return function(*args, **options)

        return call

    return decorate
