"""The year of flights is read from its package once: a table never changes, and every feed is written from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from jobs import flights_data


@pytest.fixture(scope="package", autouse=True)
def read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights_data, "read_flights", cache(flights_data.read_flights))
        yield
