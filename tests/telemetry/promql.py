"""Which metrics an expression of PromQL names, with the labels that it selects or groups them by."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_SELECTED = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*\{([^{}]*)\}")
_RANGE = re.compile(r"\[[^\[\]]*\]|\boffset\s+\S+?(?=[\s)]|$)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_WORDS = {"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}


def named(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels of its selector; and under "" those that it groups by.

    Example:
        >>> named('sum by (a) (rate(x_total{b=~"c{"}[5m])) > 0.1 * y offset 7d and z == 1')
        {'': {'a'}, 'x_total': {'b'}, 'y': set(), 'z': set()}
    """
    text = _STRING.sub('""', expression)
    labels: dict[str, set[str]] = {"": set()}
    for group in _GROUPED.findall(text):
        labels[""] |= set(_NAME.findall(group))
    text = _GROUPED.sub(" ", text)
    for name, matchers in _SELECTED.findall(text):
        labels.setdefault(name, set()).update(_NAME.findall(matchers))
    text = _RANGE.sub(" ", _SELECTED.sub(r"\1 ", text))
    for match in _NAME.finditer(text):
        is_function = text[match.end() :].lstrip().startswith("(")
        is_number = match.start() > 0 and text[match.start() - 1] in "0123456789."
        if not (is_function or is_number or match[0] in _WORDS):
            labels.setdefault(match[0], set())
    return labels
