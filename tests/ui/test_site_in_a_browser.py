"""The documentation in a real browser: as a reader walks through it, wide and narrow, light and dark.

Nothing comes from another host, nothing fails to load, nothing is logged as an error, on no page.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.building import built_site
from tests.ui.browser import HEIGHT, WIDTH
from tests.ui.pictures import Album

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Response

pytestmark = [pytest.mark.ui, pytest.mark.timeout(1800)]

WINDOW = {"width": WIDTH, "height": HEIGHT}
PHONE = {"width": 390, "height": 844}
STEPS = 10


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and does not log each of them."""

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@dataclass
class Site:
    """The pages below one address, and what went wrong on them."""

    page: Page
    address: str
    built: Path
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on(
            "request", lambda request: self._note(not self._ours(request.url), f"asks {request.url}")
        )
        self.page.on("requestfailed", lambda request: self._note(True, f"fails {request.url}"))
        self.page.on("response", self._answered)
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self._note(True, str(error)))

    @property
    def pages(self) -> list[str]:
        """Paths of all pages but decisions, of which one stands for all."""
        every = sorted(
            str(p.relative_to(self.built)) for p in self.built.rglob("*.html") if p.name != "404.html"
        )
        return [path for path in every if not re.match(r"decisions/0(?!001)", path)]

    def go(self, path: str) -> None:
        """Open a page and wait until nothing loads any more."""
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_load_state("networkidle")

    def heading(self) -> str:
        return self.page.locator("h1").inner_text().removesuffix("¶").strip()

    def undrawn(self) -> list[str]:
        broken = "all => all.filter(one => !(one.complete && one.naturalWidth > 0)).map(one => one.src)"
        return list(self.page.locator("img").evaluate_all(broken))

    def too_wide(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def _ours(self, url: str) -> bool:
        return url.startswith((f"{self.address}/", "data:", "blob:"))

    def _answered(self, response: Response) -> None:
        self._note(response.status >= 400, f"{response.status} {response.url}")

    def _logged(self, message: ConsoleMessage) -> None:
        self._note(message.type in ("error", "warning"), f"logs {message.text}")

    def _note(self, wrong: bool, what: str) -> None:
        if wrong:
            self.wrong.append(f"{self.page.url}: {what}")


@pytest.fixture(scope="module")
def site(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    built = built_site(tmp_path_factory.mktemp("docs") / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(page, f"http://127.0.0.1:{server.server_port}", built)
        server.shutdown()


@pytest.fixture(autouse=True)
def _nothing_goes_wrong(site: Site) -> Iterator[None]:
    site.wrong.clear()
    site.page.set_viewport_size(WINDOW)
    yield
    assert site.wrong == []


def test_the_front_page_says_what_it_is_in_one_screen(site: Site, album: Album) -> None:
    site.go("index.html")
    assert (site.page.title(), site.heading()) == ("Statelake", "Statelake")
    assert site.undrawn() == []
    for text in ("Scheduled PySpark jobs that remember.", "For whom?", "What it is not."):
        box = site.page.get_by_text(text).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < HEIGHT
    album.picture(site.page, "site-front")


def test_a_reader_walks_from_the_front_page_through_the_tutorial(site: Site, album: Album) -> None:
    site.go("index.html")
    article = site.page.locator("article")
    article.get_by_role("link", name="Get started", exact=True).click()
    assert site.heading() == "Get started"
    article.get_by_role("link", name="the tutorial").click()
    for number in range(1, STEPS + 1):
        site.page.get_by_role("link", name=re.compile(f"^Next: {number}\\.")).click()
        site.page.wait_for_load_state("networkidle")
        assert site.heading().startswith(f"{number}. ")
        assert site.undrawn() == []
        if number == 4:
            album.picture(site.page, "site-tutorial")


def test_a_guide_and_the_reference_lead_to_their_sections(site: Site) -> None:
    site.go("guides/dagster.html")
    assert site.page.locator("article img").count() >= 5
    assert site.undrawn() == []
    site.go("reference/errors.html#configurationerror")
    entry = site.page.locator("#configurationerror")
    assert entry.inner_text().startswith("ConfigurationError")
    assert 0 <= (entry.bounding_box() or {"y": -1})["y"] < HEIGHT
    site.go("reference/names/describing-a-job.html")
    assert site.page.get_by_role("heading", name="StatefulJob").first.is_visible()


def test_the_search_finds_pages_without_another_host(site: Site) -> None:
    site.go("index.html")
    box = site.page.get_by_role("textbox", name="Search")
    box.click()
    box.press_sequentially("when does a timer fire")
    result = site.page.locator(".md-search-result__link").first
    result.wait_for()
    assert "timer" in result.inner_text().lower()
    result.click()
    site.page.wait_for_load_state("networkidle")
    assert site.page.locator("mark").first.is_visible()


def test_every_page_draws_its_pictures_and_fits_a_window_and_a_phone(site: Site) -> None:
    assert len(site.pages) > 70
    problems: dict[str, object] = {}
    for path in site.pages:
        site.page.set_viewport_size(WINDOW)
        site.go(path)
        wide = site.too_wide()
        site.page.set_viewport_size(PHONE)
        if (seen := (site.undrawn(), wide, site.too_wide())) != ([], 0, 0):
            problems[path] = seen
    assert problems == {}


def test_a_phone_shows_pictures_in_a_size_that_can_be_read_and_the_navigation_behind_a_button(
    site: Site,
) -> None:
    site.page.set_viewport_size(PHONE)
    site.go("writing/timers.html")
    picture = site.page.locator("article img").first.bounding_box()
    assert picture is not None
    assert picture["width"] > 1.5 * PHONE["width"]
    site.page.locator("label.md-header__button[for=__drawer]").click()
    drawer = site.page.locator(".md-sidebar--primary")
    drawer.get_by_text("Writing jobs").filter(visible=True).first.wait_for()


def test_the_dark_palette_keeps_text_readable(site: Site) -> None:
    site.go("writing/timers.html")
    site.page.locator("label[title=Dark]").click()
    assert site.page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    backgrounds = site.page.locator("article img").evaluate_all("all => all.map(one => one.src)")
    assert backgrounds
    assert site.undrawn() == []
    site.page.locator("label[title=Light]").click()
