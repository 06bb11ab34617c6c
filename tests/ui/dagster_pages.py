"""Actions on the pages of Dagster: open assets, materialise, launch with configuration, backfill, follow runs.

Everything goes by what is written on a page, and nothing by the structure of its HTML; but the editor of configuration
and the buttons that are pictures have no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.ui.browser import HEIGHT, WIDTH
from tests.ui.pictures import Album

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

RUN_MS = 400_000
"""A run starts an interpreter and a Spark session first, on a machine that may be busy."""
TALL = 1340
ZOOM_OUT = 9
"""Clicks on the button."""


@dataclass(frozen=True)
class Ui:
    """The web interface at one address, in one page of a browser."""

    page: Page
    address: str
    album: Album
    location: str = "statelake"

    def __post_init__(self) -> None:
        # Dagster asks every new instance once. Something invisible may lie upon the button while it appears.
        self.page.add_locator_handler(
            self.page.get_by_text("Join the Dagster community"),
            lambda: self.page.get_by_role("button", name="Skip").evaluate("one => one.click()"),
        )

    def go(self, path: str, **query: str) -> None:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        self.page.goto(f"{self.address}/{path}{'?' if text else ''}{text}")

    def lineage(self, group: str, *, zoom_out: int = ZOOM_OUT) -> None:
        """The graph of an asset group; by default so small that it is seen whole."""
        self.go(f"locations/{self.location}/asset-groups/{group}/lineage")
        self.sees("checkpoint")
        for _ in range(zoom_out):
            self.page.get_by_label("zoom_out").click()

    @contextmanager
    def tall(self) -> Iterator[None]:
        """A window in which a graph with many assets below one another is legible and whole."""
        self.page.set_viewport_size({"width": WIDTH, "height": TALL})
        yield
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def partition(self, key: str) -> None:
        """Choose one on the tab of partitions."""
        self.page.get_by_placeholder("Filter by name…").fill(key)
        self.shown(key).first.click()

    def asset(self, key: str, *, view: str = "overview") -> None:
        """A tab of the page of an asset."""
        self.go(f"assets/{key}", view=view)

    def sees(self, *texts: str | re.Pattern[str]) -> None:
        """Wait until the page shows each text somewhere."""
        for text in texts:
            self.shown(text).first.wait_for()

    def shown(self, text: str | re.Pattern[str]) -> Locator:
        """What is in sight and is just this text, or matches."""
        matches = (
            self.page.get_by_text(text, exact=True) if isinstance(text, str) else self.page.get_by_text(text)
        )
        return matches.filter(visible=True)

    def button(self, name: str) -> Locator:
        """By its text; the name of its picture comes before that."""
        return self.page.get_by_role("button", name=re.compile(f"(^| ){name}…?$"))

    def materialize(self, key: str) -> str:
        """Click on Materialize on the page of an asset; the id of the run."""
        self.asset(key)
        self.button("Materialize").click()
        self._confirm(self._link())
        return self._view()

    def launchpad(self, job: str) -> None:
        """The page where a job is launched with configuration."""
        self.go(f"locations/{self.location}/jobs/{job}/playground")
        self.sees("Launch Run", "No errors")

    def type_config(self, text: str) -> None:
        """Replace what is in the editor of the launchpad."""
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(text)

    def launch(self) -> str:
        """Launch what is in the launchpad; the id of the run, whose page opens by itself."""
        self.button("Launch Run").click()
        self.page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
        return self.page.url.rpartition("/")[2].partition("?")[0]

    def ends_with(self, status: str, run_id: str) -> None:
        """Follow a run on its own page to its end."""
        self.go(f"runs/{run_id}")
        self._follow(self.shown(re.compile("^(Success|Failure|Canceled)$")), status)

    def newest_event(self, key: str, *labels: str) -> dict[str, str]:
        """Labels and texts of the newest event of an asset, as its page shows them, these labels among them."""
        self.asset(key, view="events")
        self.sees(*labels)
        outermost = "all => all.filter(row => !row.parentElement.closest('tr'))"
        texts = f"all => ({outermost})(all).map(row => [...row.children].map(cell => cell.innerText.trim()))"
        rows = self.page.locator("tr").evaluate_all(texts)
        return {cells[0]: cells[1] for cells in reversed(rows) if len(cells) > 1}

    def plots(self, key: str) -> int:
        """How many of its numbers Dagster plots on the page of an asset."""
        self.asset(key)
        self.button("Plots").click()
        graphs = self.page.locator("canvas")
        graphs.first.wait_for()
        return graphs.count()

    def pictures(self) -> int:
        """How many pictures of ours are on the page, drawn and not just named."""
        drawn = "all => all.filter(one => one.complete && one.naturalWidth > 0).length"
        return int(self.page.locator('img[src^="data:image/svg+xml"]').evaluate_all(drawn))

    def backfill(self, key: str, partitions: str) -> str:
        """Click on Materialize, choose partitions in the dialog and launch; the id of the backfill."""
        self.asset(key)
        self.button("Materialize").click()
        selection = self.page.get_by_placeholder(re.compile("^ex: "))
        self._confirm(selection)
        selection.fill(partitions)
        selection.press("Enter")
        self.sees(re.compile("^[1-9][0-9]* partitions?$"))
        self.button("Launch backfill").click()
        return self._view()

    def backfill_ends_with(self, status: str, backfill_id: str) -> None:
        """Follow a backfill on its own page to its end."""
        self.go(f"runs/b/{backfill_id}")
        end = self.shown(re.compile("^(Succeeded|Completed|Failed|Canceled)$"))
        self._follow(
            end.and_(self.page.locator("[data-tooltip]")), status
        )  # columns of a table have these names, too

    def switch_on(self, schedule: str) -> None:
        """Click on the switch of a schedule that never ran."""
        self.go(f"locations/{self.location}/schedules/{schedule}")
        self.sees("Schedule has never run")
        self._flip()

    def switch_off(self, schedule: str) -> None:
        """Click on the switch of a schedule that runs."""
        self.go(f"locations/{self.location}/schedules/{schedule}")
        self.page.get_by_role("checkbox", checked=True).first.wait_for(state="attached")
        self._flip()
        self.page.get_by_role("checkbox", checked=False).first.wait_for(state="attached")

    def _flip(self) -> None:
        self.page.get_by_role("checkbox").first.evaluate("one => one.click()")  # a drawing lies upon it

    def picture(self, name: str) -> None:
        """Keep what is in sight for the documentation, or compare it with its picture."""
        self.album.picture(self.page, name)

    def _confirm(self, following: Locator) -> None:
        """Say yes to Dagster's warning about what the same run is going to make, if there is one."""
        confirm = self.button("Confirm")
        confirm.or_(following).first.wait_for()
        if confirm.is_visible():
            confirm.click()

    def _link(self) -> Locator:
        """Of the message about what was launched."""
        return self.page.get_by_role("link", name="View", exact=True)

    def _view(self) -> str:
        """The id that is behind it."""
        target = self._link().get_attribute("href") or ""
        return target.partition("?")[0].rstrip("/").rpartition("/")[2]

    def _follow(self, end: Locator, status: str) -> None:
        end.first.wait_for(timeout=RUN_MS)
        assert end.first.inner_text() == status
