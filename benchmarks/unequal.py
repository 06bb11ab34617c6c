"""Results that must be equal before any time counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.workload import Results


class UnequalResultsError(Exception):
    """Two engines do not agree: whatever time they take means nothing."""


def check(name: str, results: Results, expected: Results) -> None:
    """Compare all outputs as multisets, and the whole state; raises UnequalResultsError."""
    check_rows(name, "outputs", results.outputs, expected.outputs)
    check_by_key(name, "state", results.state, expected.state)


def check_rows(name: str, what: str, actual: Counter[Any], expected: Counter[Any]) -> None:
    """Compare rows, in no order; raises UnequalResultsError."""
    missing, extra = expected - actual, actual - expected
    if missing or extra:
        raise UnequalResultsError(
            f"{name}: {missing.total()} {what} are missing, {extra.total()} are wrong or too many; for example "
            f"missing {missing.most_common(3)}, wrong {extra.most_common(3)}"
        )


def check_by_key(name: str, what: str, actual: Mapping[int, Any], expected: Mapping[int, Any]) -> None:
    """Compare what each key has; raises UnequalResultsError."""
    differ = [key for key in {*expected, *actual} if expected.get(key) != actual.get(key)]
    if differ:
        shown = [(key, expected.get(key), actual.get(key)) for key in sorted(differ)[:3]]
        raise UnequalResultsError(
            f"{name} differs in the {what} of {len(differ)} keys; for example (key, expected, actual) {shown}"
        )
