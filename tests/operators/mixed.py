"""A run whose batches go per element and over columns in turn, on the same state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from state_engine import OutputTag
from state_engine.core.errors import InternalError
from state_engine.core.functions.vectorized_functions import PerElement, vectorized_form
from state_engine.core.types.row import Row, RowKind
from state_engine.testing import KeyedHarness

SIZES = (1, 3, 10, 40)
"""Of batches."""


def streams(number: int, more: int = 4) -> pytest.MarkDecorator:
    """So many random streams in all rings together; a test of several cases has its share of a thousand in each.

    Args:
        more: so many in the first two rings.
    """
    parts = [
        range(1),
        pytest.param(range(1, more), marks=pytest.mark.more),
        pytest.param(range(more, number), marks=pytest.mark.long),
    ]
    return pytest.mark.parametrize("seeds", parts, ids=["few", "more", "many"])


def state_of(harness: KeyedHarness) -> dict[str, Any]:
    """Entries of all states, those of timers too, without keys that have none."""
    entries = harness.snapshot().keyed.entries
    left = {name: {k: v for k, v in of.items() if v != {}} for name, of in entries.items()}
    return {name: of for name, of in left.items() if of}


def kinds_of(outputs: list[Row]) -> list[RowKind]:
    return [output.get_row_kind() for output in outputs]


def text_of(value: Any) -> Any:
    """What is equal if values are, and NaN equal to NaN, and -0.0 not to 0.0."""
    if isinstance(value, dict):
        return sorted((repr(key), text_of(of)) for key, of in value.items())
    return repr(value)


def forms_of(examples: Mapping[str, Callable[[], Any]]) -> pytest.MarkDecorator:
    """Each example per element, and over columns where the function that is made for it has such a form.

    A test that takes ``name`` and ``columns``, the share of batches that go over columns.
    """
    over_columns = [name for name, make in examples.items() if vectorized_form(make()) is not None]
    assert over_columns
    elements = [pytest.param(name, 0.0, id=name) for name in examples]
    columns = [
        pytest.param(name, 1.0, id=f"{name}, columns", marks=pytest.mark.more) for name in over_columns
    ]
    return pytest.mark.parametrize(("name", "columns"), elements + columns)


class Mixed:
    """Goes on per element or over columns, batch by batch, restored for each at another parallelism.

    Args:
        make: the function per element.
        options: of a harness, for a parallelism.
        late: the side output of late rows.
        columns: the share of batches that go over columns, if columns can compute them.
        pairs: whether rows are pairs of an input and an element.

    Attributes:
        runs: how many batches went per element, and how many over columns.
        outputs: of all batches.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        rng: random.Random,
        options: Callable[[int], dict[str, Any]],
        *,
        late: OutputTag | None = None,
        columns: float = 1.0,
        pairs: bool = False,
    ) -> None:
        self.make, self.rng, self.options, self.tag, self.columns = make, rng, options, late, columns
        self.process_of = KeyedHarness.process_pairs if pairs else KeyedHarness.process
        self.stored: Any = None
        self.late: list[Any] = []
        self.outputs: list[Any] = []
        self.runs: Counter[str] = Counter()

    def process(self, rows: Sequence[Any], **given: Any) -> list[Any]:
        if self.rng.random() < self.columns:
            try:
                outputs = self._run(vectorized_form(self.make()), rows, **given)
                self.runs["columns"] += 1
                return outputs
            except InternalError as error:
                if not isinstance(error.__cause__, PerElement):
                    raise
        self.runs["elements"] += 1
        return self._run(self.make(), rows, **given)

    def _run(
        self, function: Any, rows: Sequence[Any], *, watermark: int | None = None, **given: Any
    ) -> list[Any]:
        assert function is not None
        chosen = self.options(self.rng.choice([1, 2, 7]))
        if self.stored is None:
            harness = KeyedHarness(function, **chosen)
        else:
            harness = KeyedHarness.restored(function, self.stored, **chosen)
        if watermark is not None:
            harness.set_watermark(watermark)
        outputs = self.process_of(harness, rows, **given)
        self.stored, self.state = harness.snapshot(), state_of(harness)
        self.times = harness.output_timestamps
        self.outputs += outputs
        if self.tag is not None:
            self.late += harness.side_output(self.tag)
        return outputs


def types_of_join(columns: str, *, pairs: bool) -> dict[str, Any]:
    """Types of a harness for a join of two streams of the same columns, which puts out pairs or left rows."""
    right = [f"{name}_right {kind}" for name, kind in (column.split() for column in columns.split(", "))]
    both = ", ".join([columns, *right])
    return {"input_type": (columns, columns), "output_type": both if pairs else columns}


def check_equal(
    make: Callable[[], Any],
    rows: Sequence[Any],
    rng: random.Random,
    options: Callable[..., dict[str, Any]],
    *,
    late: OutputTag | None = None,
    share: float = 1.0,
    kinds: bool = False,
    backend: Any = None,
    but: Collection[str] = (),
    pairs: bool = False,
    sizes: Sequence[int] = SIZES,
) -> Mixed:
    """Run both ways over one cut of the rows; outputs, their times, late rows, state and timers are equal each time.

    Args:
        options: of a harness, for a parallelism and a backend.
        share: of batches over columns.
        kinds: whether outputs have kinds.
        backend: of the run per element.
        but: states that need not be equal.
        sizes: of batches.
    """
    elements = KeyedHarness(make(), **options(1, backend))
    mixed, at = Mixed(make, rng, options, late=late, columns=share, pairs=pairs), 0
    while at <= len(rows):
        size = rng.choice(sizes)
        batch, at = rows[at : at + size], at + size
        drain = at > len(rows)
        outputs = mixed.process(batch, drain=drain)
        wanted = mixed.process_of(elements, batch, drain=drain)
        assert text_of(outputs) == text_of(wanted)
        if kinds:
            assert kinds_of(outputs) == kinds_of(wanted)
        assert mixed.times == elements.output_timestamps
        if late is not None:
            assert text_of(mixed.late) == text_of(elements.side_output(late))
        assert text_of(_without(mixed.state, but)) == text_of(_without(state_of(elements), but))
    return mixed


def _without(state: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: of for name, of in state.items() if name not in names}
