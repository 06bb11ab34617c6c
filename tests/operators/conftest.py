"""The kind of a Row as the kind of its element, until the harness does so."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.operators.last_rows import LastRow
from state_engine.operators.scd2 import Scd2
from state_engine.operators.top_n import TopN


@pytest.fixture(autouse=True, scope="session")
def kinds_of_rows() -> None:
    for operator in (LastRow, Scd2, TopN):
        process = operator.process_element

        def with_kind(self: Any, value: Any, ctx: Any, process: Any = process) -> None:
            ctx._key.row_kind = getattr(value, "get_row_kind", lambda: ctx._key.row_kind)()
            process(self, value, ctx)

        operator.process_element = with_kind  # type: ignore[method-assign]
