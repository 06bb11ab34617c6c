"""Debian's Chromium, or Chrome, without a window, driven by Playwright; no browser is downloaded.

Playwright is imported when a browser is opened: collecting these tests must not need it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1440, 900
PATIENCE_MS = 90_000
"""For anything that a page shows by itself; runs have a limit of their own."""


def find_chromium() -> str:
    """Path of the browser; ends the tests with what to do where there is none."""
    wanted = os.environ.get("CHROMIUM")
    executable = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, NAMES)), None)
    if executable:
        return executable
    missing = f"CHROMIUM={wanted} is no program" if wanted else f"none of {', '.join(NAMES)} is on the path"
    pytest.exit(
        f"make test-ui needs a browser, and {missing}. Install Chromium (Debian, Ubuntu: apt-get install chromium), "
        "or name one: make test-ui CHROMIUM=/path/to/chromium",
        returncode=1,
    )


@contextmanager
def opened(executable: str) -> Iterator[Page]:
    """A page of a fresh profile, always of one size."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ModuleNotFoundError:
        pytest.exit(
            "Playwright is not installed: run these tests by make test-ui, which does so", returncode=1
        )
    expect.set_options(timeout=PATIENCE_MS)
    arguments = ["--force-color-profile=srgb", "--hide-scrollbars"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses to start as root with one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        try:
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                reduced_motion="reduce",
                locale="en-GB",
                timezone_id="UTC",
            )
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()
