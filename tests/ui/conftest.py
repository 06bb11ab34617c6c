"""One server and one browser for all tests of a file, which follow one another as a person's clicks do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.ui.browser import find_chromium, opened
from tests.ui.dagster_pages import Ui
from tests.ui.pictures import Album
from tests.ui.server import Site, Tables, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIRST_DAYS = (1, 2)
TAKE = "--screenshots"


def pytest_addoption(parser: pytest.Parser) -> None:
    """pytest asks here where it is called with this directory, as `make screenshots` does."""
    parser.addoption(TAKE, action="store_true", help="take the pictures of the documentation anew")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Looked for before anything is started."""
    return find_chromium()


@pytest.fixture(scope="session")
def album(request: pytest.FixtureRequest) -> Album:
    """Takes pictures where `make screenshots` asks for them."""
    return Album(takes=bool(request.config.getoption(TAKE, default=False)))


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
def page(chromium: str) -> Iterator[Page]:
    with opened(chromium) as page:
        yield page


@pytest.fixture(scope="module")
def ui(page: Page, album: Album, site: Site) -> Iterator[Ui]:
    with serving(site) as address:
        yield Ui(page, address, album)


@pytest.fixture(autouse=True)
def _shown_at_a_failure(page: Page) -> Iterator[None]:
    """Whatever is in sight when a test ends is kept in its output, which pytest prints of failures only."""
    yield
    print(f"{page.url}\n{page.inner_text('body')}")
