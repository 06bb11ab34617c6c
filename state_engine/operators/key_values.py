"""The columns of a key in the outputs of an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def key_values(key: Any, *, record: bool) -> Sequence[Any]:
    """The values of a key, one a column.

    Args:
        record: whether the key is a record, or of several columns, whose fields come out side by side.

    Example:
        >>> key_values("a", record=False), key_values(("a", 1), record=True)
        (('a',), ('a', 1))
    """
    if not record:
        return (key,)
    if dataclasses.is_dataclass(key):
        return [getattr(key, field.name) for field in dataclasses.fields(key)]
    values: Sequence[Any] = key
    return values


def has_null_part(key: Any, *, record: bool) -> bool:
    """Whether a key equals no other, because a part of it is null, as in SQL; a key as a whole is never null.

    Example:
        >>> has_null_part(("a", None), record=True), has_null_part("a", record=False)
        (True, False)
    """
    return record and None in tuple(key_values(key, record=True))


def keys_without_nulls(keys: pa.Table, *, record: bool) -> np.ndarray[Any, Any]:
    """Which keys have no null part, for keys in columns.

    Example:
        >>> keys_without_nulls(pa.table({"k": ["a", "b"], "n": [1, None]}), record=True).tolist()
        [True, False]
    """
    whole = np.ones(keys.num_rows, bool)
    for column in keys.columns if record else ():
        whole &= column.is_valid().to_numpy()
    return whole
