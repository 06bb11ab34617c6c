"""A job of 200 micro-batches for many runners at once, and its results by a plain loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from state_engine import DataStream, StatefulJob
from tests.faults.workloads import LETTERS, PAIR, REFUSED, Picky, Seen, Workload, sums


def rows_of(count: int) -> list[tuple[str, int]]:
    """So many rows of the one input; some are refused."""
    return [("abcdefgh"[i * i % 7], (i * 7 + 3) % 13) for i in range(count)]


ROWS = rows_of(200)
SINKS = ("delta", "files", "sql")


def _build(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    events = job.from_collection(ROWS, PAIR, name="events", max_rows_per_batch=cut)
    return dict.fromkeys(SINKS, sums(events, "k", "sums", Picky()))


MANY = Workload("many", _build, ("sums",), SINKS, letters=True)


def expected(rows: Sequence[tuple[str, int]] = ROWS, sinks: Sequence[str] = SINKS) -> Seen:
    """What readers see when all rows are consumed, each once and in order."""
    totals: dict[str, int] = {}
    remainders: dict[str, dict[int, int]] = {}
    numbers: dict[str, list[int]] = {}
    outputs, letters = [], []
    for key, n in rows:
        if n == REFUSED:
            letters.append(("sums", f'{{"k": "{key}"}}', f'{{"k": "{key}", "n": {n}}}'))
            continue
        totals[key] = totals.get(key, 0) + n
        counts = remainders.setdefault(key, {})
        counts[n % 3] = counts.get(n % 3, 0) + 1
        if n % 5 == 4:
            del counts[n % 3]
        numbers.setdefault(key, []).append(n)
        outputs.append((key, totals[key]))
    states: Mapping[str, Mapping[str, Any]] = {"sum": totals, "remainders": remainders, "all": numbers}
    state = {(name, key): value for name, of in states.items() for key, value in of.items() if value != {}}
    return Seen(dict.fromkeys(sinks, sorted(outputs)) | {LETTERS: sorted(letters)}, {"sums": state})
