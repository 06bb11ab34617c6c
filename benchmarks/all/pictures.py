"""Pictures of the page: a bar for each series, as long as its median, with a line from its least to its most."""

from __future__ import annotations

import math

from benchmarks.figures import Comparison
from docs.drawings import BLUE, GREY, ORANGE, Canvas

_ROW, _LEFT, _RIGHT, _TOP, _WIDTH = 26, 290, 90, 44, 760


def bars(comparison: Comparison) -> str:
    """Medians of a comparison as SVG; where they are far apart, on a logarithmic scale.

    Example:
        >>> from benchmarks.figures import Timed
        >>> bars(Comparison("two", [Timed("a", [1.0, 2.0]), Timed("b", [3.0])])).count("<rect")
        3
    """
    series = comparison.series
    canvas = Canvas(_WIDTH, _TOP + _ROW * len(series) + 10)
    least, most = min(min(one.seconds) for one in series), max(max(one.seconds) for one in series)
    logarithmic = least > 0 and most > 20 * least
    origin = least / 2 if logarithmic else 0.0

    def x(seconds: float) -> float:
        share = math.log(seconds / origin) / math.log(most / origin) if logarithmic else seconds / most
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    scale = "seconds, logarithmic scale" if logarithmic else "seconds"
    canvas.text(12, 24, f"{comparison.title}; {scale}", anchor="start")
    for number, one in enumerate(series):
        y, spread = _TOP + number * _ROW, one.spread
        ours = one.name.startswith("statelake")
        canvas.text(_LEFT - 8, y + 13, one.name, anchor="end", size=12)
        canvas.box(_LEFT, y, x(spread.median) - _LEFT, _ROW - 8, fill=BLUE if ours else "#c9cfda", edge=GREY)
        canvas.line(x(spread.least), y + 9, x(spread.most), y + 9, colour=ORANGE)
        canvas.text(x(spread.most) + 6, y + 13, f"{spread.median:,.3g}", anchor="start", size=12)
    return canvas.svg()
