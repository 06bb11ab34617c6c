"""One server and one browser for all tests of a file, which follow one another as a person's clicks do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.browser import find_chromium, opened
from tests.ui.dagster_pages import Ui
from tests.ui.server import Site, Tables, serving

FIRST_DAYS = (1, 2)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Looked for before anything is started."""
    return find_chromium()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two days of flights are there."""
    new = Site(tmp_path_factory.mktemp("ui"))
    new.lay_out()
    new.arrive(*FIRST_DAYS)
    return new


@pytest.fixture(scope="module")
def tables(site: Site) -> Tables:
    return Tables(site)


@pytest.fixture(scope="module")
def ui(chromium: str, site: Site) -> Iterator[Ui]:
    """A browser at a server; where a test fails, what the page showed is printed with the failure."""
    with serving(site) as address, opened(chromium) as page:
        yield Ui(page, address)


@pytest.fixture(autouse=True)
def _shown_at_a_failure(request: pytest.FixtureRequest, ui: Ui) -> Iterator[None]:
    """Whatever is in sight when a test ends is kept in its output, which pytest prints of failures only."""
    yield
    print(f"{ui.page.url}\n{ui.page.inner_text('body')}")
