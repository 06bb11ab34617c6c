"""Results that must be equal before any time counts."""

from __future__ import annotations

from benchmarks.workload import Results


class UnequalResultsError(Exception):
    """Two engines do not agree: whatever time they take means nothing."""


def check(name: str, results: Results, expected: Results) -> None:
    """Compare all outputs as multisets, and the whole state; raises UnequalResultsError."""
    missing, extra = expected.outputs - results.outputs, results.outputs - expected.outputs
    if missing or extra:
        raise UnequalResultsError(
            f"{name}: {missing.total()} outputs are missing, {extra.total()} are wrong or too many; for example "
            f"missing {missing.most_common(3)}, wrong {extra.most_common(3)}"
        )
    differ = [k for k in {*expected.state, *results.state} if expected.state.get(k) != results.state.get(k)]
    if differ:
        shown = [(k, expected.state.get(k), results.state.get(k)) for k in sorted(differ)[:3]]
        raise UnequalResultsError(
            f"{name}: the state of {len(differ)} keys is wrong; for example (key, expected, actual) {shown}"
        )
