"""Draws the rooms of the engine from its imports: ``python docs/rooms.py`` writes ``docs/pictures/rooms.svg``.

A row for each room, top floor first, with its number of modules and what it is for; a dot where it uses the room of
that column. The order of the floors is the one that ``pyproject.toml`` declares and ``make check`` enforces, so every
dot lies below the diagonal.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ENGINE = REPOSITORY / "state_engine"
PICTURE = REPOSITORY / "docs" / "pictures" / "rooms.svg"
_ROW, _COLUMN, _LEFT, _TOP = 24, 22, 210, 120


def floors() -> list[str]:
    """Rooms, top floor first, as the import contract names them; single modules left out."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [c["layers"] for c in contracts if c.get("containers") == ["state_engine"]]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    return [name for name in names if (ENGINE / name).is_dir()]


def modules(room: str) -> list[Path]:
    """Files of a room and of the rooms inside it."""
    files = (ENGINE / room).rglob("*.py")
    # templates are not the engine's own modules
    return sorted(f for f in files if f.name != "__init__.py" and (f.parent / "__init__.py").exists())


def purpose(room: str) -> str:
    """What the room says of itself."""
    return ast.get_docstring(ast.parse((ENGINE / room / "__init__.py").read_text())) or ""


def caption(room: str) -> str:
    """The first sentence of it, as text that has room beside the columns."""
    return " ".join(purpose(room).split()).partition(". ")[0].removesuffix(".").replace("``", "") + "."


def used_by(room: str) -> set[str]:
    """Rooms that a room imports."""
    return {used for file in modules(room) for used in _imports(file)} - {room}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("state_engine."):
            yield str(node.module).split(".")[1]


def drawn() -> str:
    """The picture."""
    rooms = floors()
    right = _LEFT + _COLUMN * len(rooms)
    width, height = right + 720, _TOP + _ROW * len(rooms) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, room in enumerate(rooms):
        x, y = _LEFT + _COLUMN * i + _COLUMN // 2, _TOP + _ROW * i + _ROW // 2
        if i % 2:
            parts.append(f'<rect x="0" y="{y - _ROW // 2}" width="{width}" height="{_ROW}" fill="#f4f4f4"/>')
        parts.append(
            f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{room} ({len(modules(room))})</text>'
        )
        parts.append(f'<text transform="translate({x + 4} {_TOP - 8}) rotate(-60)">{room}</text>')
        parts.append(f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="#bbb"/>')
        used = used_by(room)
        for j, other in enumerate(rooms):
            if other in used:
                colour = "#2a6" if j > i else "#c33"
                parts.append(
                    f'<circle cx="{_LEFT + _COLUMN * j + _COLUMN // 2}" cy="{y}" r="5" fill="{colour}"/>'
                )
        parts.append(f'<text x="{right + 12}" y="{y + 4}" fill="#555">{escape(caption(room))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
