"""Draws the pictures of the concepts: ``python -m docs.drawings`` writes them into ``docs/pictures``.

A picture is a function that puts boxes, arrows and marks on a ``Canvas``; its name is that of the file. A test compares
the files with what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
BLUE, ORANGE, GREEN, RED, GREY, PALE = "#4f6bed", "#d9822b", "#2f9e6e", "#c33", "#808890", "#eef1f6"
PICTURES: dict[str, Callable[[Canvas], None]] = {}


class Canvas:
    """Shapes of one picture, in the order in which they are drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, colour: str = "#222", anchor: str = "middle", size: int = 13
    ) -> None:
        """A line of text; ``y`` is its baseline."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, w: float, h: float, *lines: str, fill: str = PALE, edge: str = GREY
    ) -> None:
        """A box with lines of text in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" stroke="{edge}"/>'
        )
        top = y + h / 2 - 9 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 18 * number, line)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, colour: str = GREY, dashed: bool = False
    ) -> None:
        """A straight line."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.5"{dash}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = GREY) -> None:
        """A line with a head at its second end; horizontal or vertical."""
        self.line(x1, y1, x2, y2, colour=colour)
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        side = 4
        points = [
            (x2, y2),
            (x2 - 8 * dx - side * dy, y2 - 8 * dy - side * dx),
            (x2 - 8 * dx + side * dy, y2 - 8 * dy + side * dx),
        ]
        self.parts.append(
            f'<polygon points="{" ".join(f"{x:g},{y:g}" for x, y in points)}" fill="{colour}"/>'
        )

    def dot(self, x: float, y: float, label: str = "", *, colour: str = BLUE) -> None:
        """A row on an axis, with a label above."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="6" fill="{colour}"/>')
        if label:
            self.text(x, y - 12, label, size=12)

    def axis(self, y: float, marks: Sequence[tuple[float, str]], *, left: float = 40, what: str = "") -> None:
        """An axis of time with marks below, and what runs along it at its left end above."""
        right = self.width - 24
        self.arrow(left, y, right, y)
        for x, label in marks:
            self.line(x, y - 4, x, y + 4)
            self.text(x, y + 19, label, colour=GREY, size=12)
        if what:
            self.text(right, y - 10, what, colour=GREY, anchor="end", size=12)

    def grid(
        self, x: float, y: float, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """A small table with a title above and its columns' names in the first line."""
        self.text(x, y - 8, title, colour=GREY, anchor="start", size=12)
        for line, cells in enumerate((names, *rows)):
            for column, cell in enumerate(cells):
                left, top = x + 68 * column, y + 22 * line
                self.box(left, top, 68, 22, cell, fill=PALE if line == 0 else "white")

    def svg(self) -> str:
        """The picture."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif">'
        )
        background = f'<rect width="{self.width}" height="{self.height}" fill="white"/>'
        return "\n".join([head, background, *self.parts, "</svg>"]) + "\n"


def picture(width: int, height: int) -> Callable[[Callable[[Canvas], None]], Callable[[Canvas], None]]:
    """Make a function a picture of this size."""

    def registered(draw: Callable[[Canvas], None]) -> Callable[[Canvas], None]:
        _SIZES[draw.__name__] = (width, height)
        PICTURES[draw.__name__] = draw
        return draw

    return registered


_SIZES: dict[str, tuple[int, int]] = {}


def drawn(name: str) -> str:
    """The text of a picture."""
    canvas = Canvas(*_SIZES[name])
    PICTURES[name](canvas)
    return canvas.svg()


def file_of(name: str) -> Path:
    """Where a picture is kept."""
    return FOLDER / f"{name.replace('_', '-')}.svg"


@picture(760, 250)
def job(c: Canvas) -> None:
    c.box(20, 70, 130, 70, "new rows", "files, Delta, …")
    c.arrow(150, 105, 215, 105)
    c.box(215, 40, 300, 130, "", fill="white", edge=BLUE)
    c.text(365, 32, "one micro-batch", colour=BLUE)
    c.box(235, 60, 120, 90, "your function,", "row by row")
    c.box(400, 60, 95, 90, "state", "of each key", fill="#fdf3e4", edge=ORANGE)
    c.arrow(355, 90, 400, 90, colour=ORANGE)
    c.arrow(400, 120, 355, 120, colour=ORANGE)
    c.arrow(515, 105, 580, 105)
    c.box(580, 70, 150, 70, "outputs", "Delta, files, SQL")
    c.arrow(365, 170, 365, 200, colour=GREEN)
    c.box(190, 200, 350, 36, "checkpoint 41: all of it happened, or nothing", fill="#e9f6f0", edge=GREEN)


@picture(760, 190)
def order(c: Canvas) -> None:
    for x, rows, name in ((20, ("9:50  id 2", "9:05  id 1"), "file b"), (20, ("10:01  id 3",), "file a")):
        y = 40 if name == "file b" else 130
        c.text(x, y - 10, name, colour=GREY, anchor="start")
        for number, row in enumerate(rows):
            c.box(x, y + 28 * number, 110, 24, row)
    c.arrow(140, 95, 240, 95)
    c.text(190, 85, "micro-batch", colour=GREY, size=12)
    c.box(240, 70, 210, 50, 'order_by=["at", "id"]', edge=BLUE)
    c.arrow(450, 95, 500, 95)
    for number, row in enumerate(("9:05  id 1", "9:50  id 2", "10:01  id 3")):
        c.box(500, 54 + 28 * number, 110, 24, row)
    c.arrow(610, 95, 650, 95)
    c.box(650, 70, 95, 50, "function")


@picture(760, 190)
def watermark(c: Canvas) -> None:
    c.axis(110, [(100, "9:00"), (260, "9:20"), (420, "9:40"), (580, "10:00")], what="event time")
    for x, label in ((180, "row 1"), (340, "row 2"), (500, "row 3")):
        c.dot(x, 110, label)
    c.line(420, 40, 420, 140, colour=ORANGE, dashed=True)
    c.text(420, 32, "watermark after row 3: 9:40 less a millisecond", colour=ORANGE)
    c.line(420, 150, 500, 150, colour=ORANGE)
    c.text(460, 168, "max_out_of_orderness: 10 min", colour=ORANGE, size=12)


@picture(760, 180)
def lateness(c: Canvas) -> None:
    c.axis(100, [(100, "9:00"), (260, "9:20"), (420, "9:40"), (580, "10:00")], what="event time")
    c.line(420, 40, 420, 130, colour=ORANGE, dashed=True)
    c.text(420, 32, "watermark", colour=ORANGE)
    c.dot(500, 100, "newest row")
    c.dot(460, 100, colour=GREEN)
    c.text(452, 148, "older than the newest, not late", colour=GREEN, size=12)
    c.dot(220, 100, "late: is_late(), late_to", colour=RED)


@picture(760, 220)
def idle(c: Canvas) -> None:
    c.text(20, 55, "web", anchor="start")
    c.text(20, 125, "shop", anchor="start")
    for y in (50, 120):
        c.axis(y, [], left=70)
    for x in (120, 220, 330, 450, 560):
        c.dot(x, 50)
    c.dot(140, 120, colour=BLUE)
    c.text(345, 110, "no row for longer than idle_after: it counts no longer", colour=GREY, size=12)
    c.line(140, 65, 140, 165, colour=ORANGE, dashed=True)
    c.text(140, 182, "held back by the shop", colour=ORANGE, size=12)
    c.line(560, 65, 560, 165, colour=GREEN, dashed=True)
    c.text(560, 182, "once the shop is idle", colour=GREEN, size=12)
    c.text(
        370,
        208,
        "watermark of an operator that reads both: the slowest source that is not idle",
        colour=GREY,
        size=12,
    )


@picture(760, 200)
def timers(c: Canvas) -> None:
    c.axis(100, [(80, "9:00"), (440, "10:00"), (500, "10:10"), (680, "10:40")], what="event time")
    c.dot(110, 100, "9:05", colour=BLUE)
    c.dot(380, 100, "9:50", colour=BLUE)
    c.dot(560, 100, "10:20", colour=BLUE)
    c.line(434, 60, 434, 140, colour=RED)
    c.text(434, 52, "timer at the end of the hour", colour=RED)
    c.line(500, 72, 500, 140, colour=ORANGE, dashed=True)
    c.text(520, 156, "watermark after the row of 10:20", colour=ORANGE, size=12, anchor="start")
    c.text(434, 180, "the watermark has passed the timer: on_timer runs", colour=RED, size=12)


@picture(760, 170)
def ttl(c: Canvas) -> None:
    c.axis(110, [(120, "Monday 9:00"), (420, "Tuesday 9:00"), (640, "Wednesday")], what="")
    c.dot(120, 110, "update(True)")
    c.box(120, 40, 300, 26, "value() gives True", fill="#e9f6f0", edge=GREEN)
    c.box(420, 40, 260, 26, "value() gives the default", fill="white")
    c.line(420, 66, 420, 110, colour=RED, dashed=True)
    c.text(420, 158, "expired: a day after the last write", colour=RED, size=12)


@picture(760, 170)
def restore(c: Canvas) -> None:
    c.box(40, 40, 130, 40, "checkpoint 1")
    c.arrow(170, 60, 240, 60)
    c.box(240, 40, 130, 40, "checkpoint 2", fill="white")
    c.text(305, 30, "left by 3", colour=RED, size=12)
    c.line(105, 80, 105, 125)
    c.arrow(105, 125, 410, 125)
    c.box(410, 105, 130, 40, "3: restore", edge=ORANGE, fill="#fdf3e4")
    c.arrow(540, 125, 600, 125)
    c.box(600, 105, 130, 40, "checkpoint 4", edge=GREEN, fill="#e9f6f0")
    c.text(665, 163, "head", colour=GREEN, size=12)


@picture(760, 190)
def functions(c: Canvas) -> None:
    c.box(20, 70, 100, 44, "rows")
    c.arrow(120, 92, 170, 92)
    c.box(170, 70, 150, 44, 'key_by("shop")', edge=BLUE)
    for number, key in enumerate(("north", "south", "west")):
        y = 20 + 58 * number
        c.line(320, 92, 350, y + 20)
        c.box(350, y, 90, 40, key)
        c.arrow(440, y + 20, 480, y + 20)
        c.box(480, y, 150, 40, "process_element")
        c.line(630, y + 20, 660, 92)
    c.box(660, 70, 85, 44, "outputs")


@picture(760, 230)
def columns(c: Canvas) -> None:
    rows = (("0", "north", "300"), ("1", "south", "200"), ("0", "north", "50"))
    c.grid(20, 34, "rows of a subtask", ("_key", "shop", "cents"), rows)
    c.grid(
        20,
        158,
        "state of their keys",
        ("_key", "shop", "largest"),
        (("0", "north", "0"), ("1", "south", "0")),
    )
    c.arrow(230, 75, 290, 75)
    c.arrow(230, 185, 290, 185, colour=ORANGE)
    c.box(290, 55, 180, 150, "process_batch", "called once", edge=BLUE)
    c.arrow(470, 75, 530, 75)
    c.arrow(470, 185, 530, 185, colour=ORANGE)
    c.grid(530, 34, "outputs", ("shop", "cents"), (("north", "300"), ("south", "200")))
    c.grid(530, 158, "new state", ("_key", "largest"), (("0", "300"), ("1", "200")))


@picture(760, 210)
def state(c: Canvas) -> None:
    kinds = (
        ("ValueState", "one value", ("42",)),
        ("ListState", "a list", ("a", "b", "a")),
        ("MapState", "entries by key", ("9 → 500", "10 → 100")),
        ("ReducingState", "one value, combined", ("sum: 42",)),
    )
    for number, (name, about, cells) in enumerate(kinds):
        x = 20 + 185 * number
        c.text(x + 80, 30, name, colour=BLUE)
        c.text(x + 80, 50, about, colour=GREY, size=12)
        for row, cell in enumerate(cells):
            c.box(x, 64 + 30 * row, 160, 26, cell)
    c.text(380, 190, "each of them once for every key: north, south, west, …", colour=GREY)


@picture(760, 200)
def side_outputs(c: Canvas) -> None:
    c.box(20, 70, 110, 50, "rows")
    c.arrow(130, 95, 200, 95)
    c.box(200, 60, 180, 70, "one operator", edge=BLUE)
    c.arrow(380, 78, 480, 78)
    c.text(430, 68, "yield row", colour=GREY, size=12)
    c.box(480, 50, 250, 44, "the stream: sink, next operator")
    c.arrow(380, 116, 480, 116, colour=ORANGE)
    c.text(430, 134, "yield TAG, row", colour=ORANGE, size=12)
    c.box(480, 104, 250, 44, "get_side_output(TAG)", edge=ORANGE, fill="#fdf3e4")


@picture(760, 220)
def operator_state(c: Canvas) -> None:
    c.text(190, 26, "parallelism 2", colour=GREY)
    c.box(40, 40, 140, 50, "subtask 0", "[a, b, c]")
    c.box(200, 40, 140, 50, "subtask 1", "[d, e]")
    c.arrow(380, 65, 440, 65)
    c.text(410, 55, "rescale", colour=ORANGE, size=12)
    c.text(595, 26, "parallelism 3: a list is dealt out", colour=GREY)
    for number, elements in enumerate(("[a, b]", "[c, d]", "[e]")):
        c.box(455 + 98 * number, 40, 90, 50, f"subtask {number}", elements)
    c.text(595, 126, "a union list goes to all of them", colour=GREY)
    for number in range(3):
        c.box(455 + 98 * number, 140, 90, 50, f"subtask {number}", "[a … e]")


@picture(760, 210)
def errors(c: Canvas) -> None:
    c.box(20, 80, 120, 44, "a row is refused")
    c.line(140, 102, 180, 102)
    c.line(180, 50, 180, 154)
    c.arrow(180, 50, 380, 50, colour=RED)
    c.text(280, 42, 'on_error="fail"', colour=RED, size=12)
    c.box(
        380,
        26,
        350,
        48,
        "the micro-batch ends with an error;",
        "nothing is committed",
        edge=RED,
        fill="#fbecec",
    )
    c.arrow(180, 154, 380, 154, colour=ORANGE)
    c.text(280, 146, 'on_error="dead_letter"', colour=ORANGE, size=12)
    c.box(
        380,
        130,
        350,
        48,
        "the row goes to the table dead_letters;",
        "the others are committed",
        edge=ORANGE,
        fill="#fdf3e4",
    )


@picture(760, 190)
def testing(c: Canvas) -> None:
    levels = (
        ("KeyedHarness", "one function", "no Java"),
        ("run_in_memory", "the whole job", "no Java"),
        ("StateEngine", "files, tables, Spark", "Java"),
    )
    for number, (name, what, java) in enumerate(levels):
        x = 20 + 245 * number
        c.box(x, 40, 230, 76, name, what, java, edge=(GREEN, BLUE, ORANGE)[number])
    c.arrow(30, 150, 740, 150)
    c.text(40, 172, "milliseconds, most tests", colour=GREY, anchor="start", size=12)
    c.text(730, 172, "seconds, few tests", colour=GREY, anchor="end", size=12)


@picture(760, 230)
def checkpoint(c: Canvas) -> None:
    c.box(20, 40, 170, 40, "files of changes")
    c.box(20, 95, 170, 40, "positions of sources")
    c.box(20, 150, 170, 40, "staged outputs")
    for y in (60, 115, 170):
        c.line(190, y, 260, y)
    c.line(260, 60, 260, 170)
    c.arrow(260, 115, 330, 115, colour=GREEN)
    c.box(330, 85, 170, 60, "one row of the", "table checkpoints", edge=GREEN, fill="#e9f6f0")
    c.text(415, 170, "the commit", colour=GREEN)
    c.arrow(500, 115, 570, 115)
    c.box(570, 85, 160, 60, "outputs are", "published")
    c.text(260, 218, "before: nothing is visible", colour=GREY, size=12)
    c.text(590, 218, "after: everything can be repeated", colour=GREY, size=12)


@picture(760, 200)
def changelog(c: Canvas) -> None:
    c.text(20, 30, "each micro-batch writes only what it changed", colour=GREY, anchor="start")
    batches = (
        ("1", ("north = 300", "south = 200")),
        ("2", ("north = 350",)),
        ("3", ("south deleted", "west = 80")),
    )
    for number, (name, changes) in enumerate(batches):
        x = 20 + 180 * number
        c.text(x + 75, 60, f"checkpoint {name}", colour=BLUE)
        for row, change in enumerate(changes):
            c.box(x, 72 + 32 * row, 150, 28, change)
    c.arrow(540, 100, 600, 100)
    c.box(600, 62, 145, 76, "state at 3:", "north = 350", "west = 80", edge=GREEN, fill="#e9f6f0")
    c.text(
        20, 180, "folded in order: the newest change of a key counts", colour=GREY, anchor="start", size=12
    )


@picture(760, 200)
def base(c: Canvas) -> None:
    for number in range(4):
        c.box(20 + 100 * number, 40, 85, 40, f"changes {number + 1}")
    c.line(20, 95, 405, 95)
    c.arrow(212, 95, 212, 130, colour=ORANGE)
    c.text(225, 117, "compact", colour=ORANGE, anchor="start", size=12)
    c.box(120, 130, 185, 44, "base as of checkpoint 4", edge=ORANGE, fill="#fdf3e4")
    c.box(440, 40, 85, 40, "changes 5")
    c.box(540, 40, 85, 40, "changes 6")
    c.line(305, 152, 640, 152)
    c.line(482, 80, 482, 152)
    c.line(582, 80, 582, 152)
    c.arrow(640, 152, 660, 152)
    c.box(660, 124, 90, 56, "state", "at 6", edge=GREEN, fill="#e9f6f0")


@picture(760, 210)
def key_groups(c: Canvas) -> None:
    c.box(20, 80, 90, 40, "key north")
    c.arrow(110, 100, 200, 100)
    c.text(155, 90, "hash", colour=GREY, size=12)
    for number in range(8):
        chosen = number == 5
        c.box(
            200 + 36 * number,
            80,
            32,
            40,
            str(number),
            fill="#fdf3e4" if chosen else PALE,
            edge=ORANGE if chosen else GREY,
        )
    c.text(342, 68, "key groups: their number never depends on the parallelism", colour=GREY, size=12)
    c.line(200, 135, 340, 135, colour=BLUE)
    c.line(344, 135, 484, 135, colour=GREEN)
    c.text(270, 152, "subtask 0", colour=BLUE, size=12)
    c.text(414, 152, "subtask 1", colour=GREEN, size=12)
    c.text(560, 147, "parallelism 2", colour=GREY, anchor="start", size=12)
    for number, colour in enumerate((BLUE, GREEN, ORANGE, RED)):
        c.line(200 + 72 * number, 175, 268 + 72 * number, 175, colour=colour)
        c.text(234 + 72 * number, 192, f"subtask {number}", colour=colour, size=12)
    c.text(560, 187, "parallelism 4", colour=GREY, anchor="start", size=12)


@picture(760, 300)
def windows(c: Canvas) -> None:
    rows = (110, 150, 230, 330, 350, 520, 560)
    hours = (80, 240, 400, 560)
    c.axis(60, [(x, f"{9 + n}:00") for n, x in enumerate(hours)], what="event time")
    for x in rows:
        c.dot(x, 60)
    c.text(40, 24, "rows of one key", colour=GREY, anchor="start", size=12)
    for x in hours[:-1]:
        c.box(x, 100, 158, 24, 'Tumbling("1 h")' if x == 80 else "", fill="#e9f6f0", edge=GREEN)
    for number in range(3):
        c.box(80 + 80 * number, 140 + 28 * number, 238, 24, _SLIDING if not number else "")
    c.box(80, 236, 158, 18, "", fill="#fdf3e4", edge=ORANGE)
    c.box(80, 258, 318, 18, 'Cumulating("3 h", every="1 h")', fill="#fdf3e4", edge=ORANGE)
    c.box(80, 280, 478, 18, "", fill="#fdf3e4", edge=ORANGE)


_SLIDING = 'Sliding("90 min", every="30 min")'


@picture(760, 260)
def sessions(c: Canvas) -> None:
    def session(y: float, *rows: int, new: int | None = None) -> None:
        c.box(min(rows), y - 15, max(rows) - min(rows) + 110, 30, "", fill="#e9f6f0", edge=GREEN)
        for x in rows:
            c.dot(x, y, colour=ORANGE if x == new else BLUE)

    for y in (50, 120, 190):
        c.line(40, y, 736, y)
    c.text(
        40, 24, 'Session("30 min"): a row begins a session that lasts half an hour', anchor="start", size=12
    )
    session(50, 120, 170)
    session(50, 400, 460)
    c.text(225, 84, "a gap behind its last row", colour=GREEN, size=12)
    session(120, 120, 170, 250, new=250)
    session(120, 400, 460)
    c.text(250, 152, "a row makes it longer, late or not", colour=ORANGE, size=12)
    session(190, 120, 170, 250, 330, 400, 460, new=330)
    c.text(
        330,
        222,
        "a row that reaches both joins them: the result has one session where two were",
        colour=ORANGE,
        size=12,
    )
    c.axis(245, [], what="event time")


@picture(760, 230)
def late_windows(c: Canvas) -> None:
    c.axis(90, [(80, "9:00"), (300, "10:00"), (470, "10:30"), (640, "11:00")], what="watermark")
    c.box(80, 40, 220, 26, "the hour from nine takes rows", fill="#e9f6f0", edge=GREEN)
    c.box(300, 40, 170, 26, "and late rows", fill="#fdf3e4", edge=ORANGE)
    c.box(470, 40, 200, 26, "too late: late_to", fill="white", edge=RED)
    c.line(300, 66, 300, 90, colour=GREEN, dashed=True)
    c.line(470, 66, 470, 90, colour=RED, dashed=True)
    c.text(385, 30, 'lateness="30 min"', colour=ORANGE, size=12)
    c.text(60, 150, "final", anchor="end")
    c.text(60, 180, "changes", anchor="end")
    c.text(60, 210, "running", anchor="end")
    for y in (146, 176, 206):
        c.line(80, y, 670, y, colour=PALE)
    results = {146: {470: 3}, 176: {300: 2, 390: 3}, 206: {130: 1, 220: 2, 390: 3}}
    for y, shown in results.items():
        for x, number in shown.items():
            c.dot(x, y, colour=GREEN)
            c.text(x + 12, y + 4, f"n={number}", anchor="start", size=12)
    for x in (130, 220, 390):
        c.dot(x, 90)
    c.text(400, 124, "a late row", colour=BLUE, size=12)


if __name__ == "__main__":
    for each in PICTURES:
        file_of(each).write_text(drawn(each))
