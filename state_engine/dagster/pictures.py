"""Small pictures for Dagster's metadata: bars and lines as SVG inside of Markdown, without a plotting library.

An image is part of the text, so it is there as long as the event is, wherever the event is shown. Colours are such
that they are seen on a light and on a dark page.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.state_files import keyed_state_files
from state_engine.microbatch.reports import OperatorReport

WIDTH, HEIGHT = 640, 140
_LEFT, _TOP, _BOTTOM = 8, 22, 18
_MOST_BARS = 128
_MOST_POINTS = 60
"""Of a history: the newest ones."""
_COLOURS = ("#4f6bed", "#d9822b", "#2f9e6e", "#b04bcf")
_TEXT = "#808890"


def bars(title: str, values: Sequence[float]) -> str:
    """A bar for every value, as a Markdown image; of very many, each bar is the sum of neighbours.

    Example:
        >>> bars("rows", [1, 2]).startswith("![rows](data:image/svg+xml;base64,")
        True
    """
    width = -(-len(values) // _MOST_BARS)
    sums = [sum(values[i : i + width]) for i in range(0, len(values), width or 1)]
    most = max(sums, default=0)
    step = (WIDTH - 2 * _LEFT) / max(len(sums), 1)
    base, high = HEIGHT - _BOTTOM, HEIGHT - _TOP - _BOTTOM
    d = "".join(
        f"M{_LEFT + i * step:.1f} {base}v{-high * value / most:.1f}h{step * 0.8:.1f}V{base}z"
        for i, value in enumerate(sums)
        if value
    )
    shapes = f'<path d="{d}" fill="{_COLOURS[0]}"/>'
    return _image(title, _svg(title, shapes, f"{len(values):,} in all, most {_number(most)}"))


def lines(title: str, series: Mapping[str, Sequence[float | None]], *, ends: tuple[str, str]) -> str:
    """A line for each series of one length, each with a scale of its own, as a Markdown image; None leaves a gap.

    Args:
        ends: what the first and the last point stand for.

    Example:
        >>> lines("seconds", {"a": [1, None, 3]}, ends=("1", "3")).startswith("![seconds](data:")
        True
    """
    return _image(title, svg_lines(title, series, ends=ends))


def svg_lines(title: str, series: Mapping[str, Sequence[float | None]], *, ends: tuple[str, str]) -> str:
    shapes, legend = [], []
    for colour, (name, values) in zip(_COLOURS, series.items(), strict=False):
        known = [v for v in values if v is not None]
        if not known:
            continue
        shapes.append(
            f'<path d="{_line(values, max(known))}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        legend.append(
            f'<tspan fill="{colour}">{escape(name)}: {_number(known[-1])}, most {_number(max(known))}  </tspan>'
        )
    shapes.append(f'<text x="{WIDTH - _LEFT}" y="14" text-anchor="end">{"".join(legend)}</text>')
    return _svg(title, "".join(shapes), f"{ends[0]} → {ends[1]}")


def key_group_load(operators: Sequence[OperatorReport]) -> str:
    """Rows of one micro-batch by key group, a picture an operator."""
    pictures = []
    for one in operators:
        if one.group_rows:
            rows = [one.group_rows.get(group, 0) for group in range(max(one.group_rows) + 1)]
            pictures.append(bars(f"{one.uid}: rows by key group", rows))
    return "\n\n".join(pictures)


def durations_and_lag(path: Sequence[CheckpointRow]) -> str:
    """How long micro-batches took, and how far event time was behind, over the newest checkpoints of a path."""
    rows = [row for row in path if row.kind.is_micro_batch][-_MOST_POINTS:]
    if not rows:
        return ""
    series: Mapping[str, Sequence[float | None]] = {
        "seconds": [duration_s(row) for row in rows],
        "event-time lag, s": [event_time_lag_s(row) for row in rows],
    }
    return lines("micro-batches", series, ends=_ends(rows))


def state_sizes(path: Sequence[CheckpointRow]) -> tuple[str, list[tuple[int, int]]]:
    """What reading the keyed state took over the newest checkpoints of a path; the picture, and (files, bytes) each."""
    rows = path[-_MOST_POINTS:]
    sizes = [state_size(path[: len(path) - len(rows) + i + 1]) for i in range(len(rows))]
    series: Mapping[str, Sequence[float | None]] = {
        "files": [files for files, _ in sizes],
        "bytes": [size for _, size in sizes],
    }
    return (lines("keyed state to read", series, ends=_ends(rows)) if rows else ""), sizes


def state_size(path: Sequence[CheckpointRow]) -> tuple[int, int]:
    """Files and bytes that hold the keyed state at the end of a path."""
    by_operator = [keyed_state_files(path, operator.uid) for operator in path[-1].operators] if path else []
    files = [held.file for one in by_operator for held in one]
    return len(files), sum(f.bytes for f in files)


def duration_s(row: CheckpointRow) -> float:
    """How long a micro-batch took until its commit."""
    return round(sum(row.durations_ms.values()) / 1000, 3)


def event_time_lag_s(row: CheckpointRow) -> int | None:
    """How far a checkpoint's watermark was behind the clock of its batch; None without event time."""
    if row.watermark_ms is None or row.watermark_ms < 0:
        return None
    return max(0, (row.clock_ms - row.watermark_ms) // 1000)


def _ends(rows: Sequence[CheckpointRow]) -> tuple[str, str]:
    return f"checkpoint {rows[0].checkpoint_id}", f"{rows[-1].checkpoint_id}"


def _line(values: Sequence[float | None], most: float) -> str:
    step = (WIDTH - 2 * _LEFT) / max(len(values) - 1, 1)
    high, base = HEIGHT - _TOP - _BOTTOM, HEIGHT - _BOTTOM
    d, pen = [], "M"
    for i, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        d.append(f"{pen}{_LEFT + i * step:.1f} {base - high * value / (most or 1):.1f}")
        if pen == "M":  # a point by itself is seen as well
            d.append("h1")
        pen = "L"
    return "".join(d)


def _svg(title: str, shapes: str, below: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="{_TEXT}">'
        f'<text x="{_LEFT}" y="14">{escape(title)}</text>{shapes}'
        f'<text x="{_LEFT}" y="{HEIGHT - 4}">{escape(below)}</text></svg>'
    )


def _image(title: str, svg: str) -> str:
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
