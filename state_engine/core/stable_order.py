"""``stable_order``: the order of rows by whole numbers that are not negative, without comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS = 16
"""Numpy sorts numbers of so many bits without comparisons, in a seventh of the time that it takes for larger ones."""


def stable_order(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The places of the smallest number, of the next one and so on; equal ones stand as they stood.

    Args:
        numbers: whole ones from 0 on.

    Example:
        >>> stable_order(np.array([65_536, 1, 65_536, 0])).tolist()
        [3, 1, 0, 2]
    """
    order: np.ndarray[Any, Any] = np.argsort(numbers.astype(np.uint16), kind="stable")
    for low in range(_BITS, int(numbers.max(initial=0)).bit_length(), _BITS):
        part = (numbers >> low).astype(np.uint16)
        order = order[np.argsort(part[order], kind="stable")]
    return order
