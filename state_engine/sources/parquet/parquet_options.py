"""The options of a reader of Parquet: Spark's names, checked when they are given.

A source with options has Spark read its files. Names with a dot are Hadoop's own, such as
``parquet.encryption.kms.client.class``, and reach it as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from state_engine.core.choices import check_choice, unknown_option
from state_engine.core.errors import ConfigurationError
from state_engine.sources.text.options import REFUSED_OF_FILES

_REBASE = ("EXCEPTION", "CORRECTED", "LEGACY")
_VALUES: dict[str, tuple[str, ...]] = {
    "mergeSchema": ("true", "false"),
    "datetimeRebaseMode": _REBASE,
    "int96RebaseMode": _REBASE,
    "recursiveFileLookup": ("true",),
    "ignoreCorruptFiles": ("false",),
    "ignoreMissingFiles": ("false",),
}
"""What each option takes; of the last three, what a ``FileSource`` does anyway."""


def check_parquet_options(given: Mapping[str, Any]) -> None:
    """Refuse options that Spark would pass over, and those that a ``FileSource`` cannot have."""
    values = {name.lower(): name for name in _VALUES}
    refused = {name.lower(): why for name, why in REFUSED_OF_FILES.items()}
    for name, value in sorted(given.items()):
        small = name.lower()
        if "." in name:
            continue
        if small in refused:
            raise ConfigurationError(f"FileSource: the option {name!r} {refused[small]}")
        if small not in values:
            raise unknown_option(name, _VALUES, what="FileSource: a reader of parquet")
        takes = _VALUES[values[small]]
        if str(value).lower() not in [word.lower() for word in takes]:
            check_choice(value, takes, what=f"FileSource: the option {name!r}")
