"""A store with S3's interface, and a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import stores
from tests.support.moto import moto_server
from tests.support.store_proxy import StoreProxy, store_proxy


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """The proxy; drivers and executors that this process starts have the keys."""
    monkeypatch.setenv(stores.KEY, "an-id")
    monkeypatch.setenv(stores.SECRET, "a-secret-of-the-tests")
    with moto_server() as port, store_proxy(port) as proxy:
        yield proxy
