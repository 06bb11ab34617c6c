"""Pictures of pages for the documentation: `make screenshots` takes them, every other run of these tests compares.

Pixels differ from one machine to the next, so text is compared: what a page said when its picture was taken stands in
``tests/ui/shown``, below the digest of the picture. Numbers, times and ids are left out: each run has others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHOWN = Path(__file__).parent / "shown"
MOST_BYTES = 300_000
TERMINAL_COLUMNS = 110
_ID = re.compile(
    r"\b(?=[0-9a-f]*[0-9])(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8})\b"
)
_AGO = re.compile(r"\b(?:an?|\d+|a few) (?:second|minute|hour)s? ago\b")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_MONTH = re.compile(r"\b(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)\b")
_IN_SIGHT = """() => {
    const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const inside = box => box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
        const seen = {opacityProperty: true, visibilityProperty: true};
        if (walker.currentNode.parentElement.checkVisibility(seen) && [...range.getClientRects()].some(inside))
            texts.push(walker.currentNode.textContent);
    }
    return texts.join("\\n");
}"""
_NOW_AND_THEN = re.compile(r"^Unsynced")
"""Shown by Dagster when it has looked again, which may be after a page is complete."""
_PAGE = """<body style="margin:0"><pre style="display:inline-block;margin:0;padding:14px 18px;background:#1e2430;
color:#e6e6e6;font:14px/1.45 'DejaVu Sans Mono',monospace">{}</pre></body>"""


@dataclass(frozen=True)
class Album:
    """Keeps pictures by name, or compares what pages show with what the pictures showed.

    Args:
        takes: keep new pictures; without, a page that says other things than its picture fails the test.
    """

    takes: bool

    def picture(self, page: Page, name: str) -> None:
        """What is in sight, as ``docs/pictures/<name>.png``, as soon as nothing moves or loads any more."""
        page.wait_for_load_state("networkidle")
        page.wait_for_function("() => !/Loading(…|[.]{3})/.test(document.body.innerText)")
        said = lasting(page.evaluate(_IN_SIGHT))
        if self.takes:
            _keep(name, page.screenshot(animations="disabled", caret="hide"), said)
        else:
            assert said == record(name)[1], f"docs/pictures/{name}.png is out of date; run: make screenshots"

    def terminal(self, page: Page, name: str, commands: Sequence[tuple[str, str]]) -> None:
        """A terminal with commands and what they printed, as ``docs/pictures/<name>.png``."""
        text = Text("\n").join(_typed(command, output) for command, output in commands)
        page.set_content(_PAGE.format(_as_html(text)))
        said = lasting(text.plain)
        if self.takes:
            _keep(name, page.locator("pre").screenshot(), said)
        else:
            assert said == record(name)[1], f"docs/pictures/{name}.png is out of date; run: make screenshots"


def lasting(text: str) -> list[str]:
    """The different lines of a page, without what each run has of its own."""
    for pattern, blank in ((_ID, "<id>"), (_AGO, "<ago>"), (_MONTH, "<month>"), (_NUMBER, "0")):
        text = pattern.sub(blank, text)
    lines = {" ".join(line.split()) for line in text.splitlines() if re.search(r"\w", line)}
    return sorted(line for line in lines if not _NOW_AND_THEN.match(line))


def record(name: str) -> tuple[str, list[str]]:
    """The digest of a picture, and the lines that its page had."""
    digest, *said = (SHOWN / f"{name}.txt").read_text().splitlines()
    return digest, said


def digest_of(picture: Path) -> str:
    return hashlib.sha256(picture.read_bytes()).hexdigest()


def _keep(name: str, taken: bytes, said: Sequence[str]) -> None:
    assert taken.startswith(b"\x89PNG")
    assert len(taken) < MOST_BYTES
    file = PICTURES / f"{name}.png"
    file.write_bytes(taken)
    SHOWN.mkdir(exist_ok=True)
    (SHOWN / f"{name}.txt").write_text("\n".join([digest_of(file), *said]) + "\n")


def _typed(command: str, output: str) -> Text:
    shown = Text.from_ansi(output.strip("\n"))
    return (
        Text()
        .append("$ ", "bold #7ec699")
        .append(command, "bold")
        .append("\n")
        .append_text(shown)
        .append("\n")
    )


def _as_html(text: Text) -> str:
    console = Console(record=True, width=4 * TERMINAL_COLUMNS, file=StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="{code}")
