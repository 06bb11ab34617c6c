"""Writes the index of decisions from their titles and from the line below, which has the date and the status.

Run it after a decision was added: ``python -m docs.decisions.index``.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
INDEX = HERE / "README.md"
_STATUS = re.compile(r"\n\*(\d{4}-\d\d-\d\d)\. (Accepted|Superseded(?: in part)? by \[[^]]*\]\([^)]*\))\.?\*")
_HEADER = """# Decisions

Why things are as they are. Each record says what was decided, why, and what else was considered. A record is not
rewritten when a later one replaces it; it then names the later one. A choice has a record if a second person might undo
it in good faith; other reasons are in docstrings. [Performance devices](../performance_devices.md) has all about speed.

| decision | date | status |
|---|---|---|
"""


def index() -> str:
    """The text of the index.

    Raises:
        ValueError: a record has another number in its title than in its name, two have one number, or one has no date.
    """
    lines = [_row(path) for path in sorted(HERE.glob("[0-9]*.md"))]
    return _HEADER + "\n".join(lines) + "\n"


def _row(path: Path) -> str:
    title, _, rest = path.read_text().partition("\n")
    number = int(path.name[:4])
    if not title.startswith(f"# {number}. "):
        raise ValueError(f"{path.name} begins with {title!r}: its title must begin with '# {number}. '")
    if len(list(HERE.glob(f"{path.name[:4]}-*.md"))) > 1:
        raise ValueError(f"two decisions have the number {number}")
    noted = _STATUS.match(rest)
    if noted is None:
        raise ValueError(f"{path.name}: below its title stands '*<date>. Accepted.*', or what superseded it")
    return f"| [{title.removeprefix('# ')}]({path.name}) | {noted[1]} | {noted[2].lower()} |"


if __name__ == "__main__":
    INDEX.write_text(index())
