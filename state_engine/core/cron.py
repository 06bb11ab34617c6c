"""``check_cron``: schedules as cron writes them, checked when a job is declared."""

from __future__ import annotations

import re

from state_engine.core.errors import ConfigurationError

_FIELDS = {
    "minute": (range(60), ""),
    "hour": (range(24), ""),
    "day of the month": (range(1, 32), "l"),
    "month": (range(1, 13), "jan feb mar apr may jun jul aug sep oct nov dec"),
    "day of the week": (range(8), "sun mon tue wed thu fri sat"),
}
_NAMED = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+)|#[1-5])?)(?:/(?P<step>\d+))?")


def check_cron(text: object, *, what: str) -> None:
    """Refuse what is not a schedule: five fields, or a name such as ``@daily``.

    Example:
        >>> check_cron("*/10 6-22 * * mon-fri", what="job 'sums'")
    """
    way_out = "write five fields, minute, hour, day of the month, month, day of the week, for example '*/10 * * * *'"
    fields = text.lower().split() if isinstance(text, str) else []
    if fields and fields[0] in _NAMED and len(fields) == 1:
        return
    if len(fields) != len(_FIELDS):
        raise ConfigurationError(f"{what}: cron={text!r} is not a schedule: {way_out}")
    for field, (name, (numbers, names)) in zip(fields, _FIELDS.items(), strict=True):
        known = {*map(str, numbers), *names.split()}
        for part in field.split(","):
            matched = _PART.fullmatch(part)
            bounds = [] if matched is None else [b for b in matched.group("first", "last") if b is not None]
            step = None if matched is None else matched["step"]
            if matched is None or step == "0" or any((b.lstrip("0") or "0") not in known for b in bounds):
                raise ConfigurationError(f"{what}: cron={text!r}: {part!r} is not a valid {name}: {way_out}")
