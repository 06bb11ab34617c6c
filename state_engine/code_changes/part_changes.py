"""What follows from each fact that differs between two declarations of a part; pure.

A fact that decides what rows and results are makes a replay: other code made what exists. One that decides when and
where they come takes effect with the next micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from state_engine.code_changes.job_plan import PartPlan, Verdict
from state_engine.microbatch.declared_parts import (
    BOUNDS,
    CODE,
    COLUMNS,
    JUDGES,
    PARTITIONS,
    PLACE,
    RULE,
    SETTINGS,
    Facts,
)
from state_engine.microbatch.findings import Part, PartKind

DIGESTS = (CODE, "steps", SETTINGS, JUDGES)
"""Facts that are digests, which differ also where another version of Python or Statelake made them."""
_REPLAY: Mapping[PartKind, frozenset[str]] = {
    "job": frozenset(),
    "source": frozenset(
        ("kind", COLUMNS, "order_by", "event_time", "out_of_orderness_ms", "late_to", SETTINGS, CODE)
    ),
    "operator": frozenset(("kind", "reads", "steps", "keys", "sent", COLUMNS, CODE)),
    "sink": frozenset(("reads", "steps", COLUMNS)),
    "gate": frozenset(),
}
_NAMES = {
    "kind": "class",
    COLUMNS: "columns",
    "order_by": "order",
    "event_time": "event time",
    "out_of_orderness_ms": "out-of-orderness in ms",
    "late_to": "side output of late rows",
    "silence": "rule for silence",
    PLACE: "place",
    "reads": "input",
    "keys": "key",
    "sent": "way of its inputs to subtasks",
    RULE: "rule",
}
_OF_DIGESTS = {
    (CODE, "source"): "the code of its event times or of its function changed",
    (CODE, "operator"): "its function changed",
    (JUDGES, "operator"): "its rule changed",
    ("steps", "operator"): "DataFrame code before it changed",
    ("steps", "sink"): "DataFrame code before it changed",
    (SETTINGS, "source"): "its settings changed",
    (SETTINGS, "sink"): "its settings changed",
}
NEW: Mapping[PartKind, str] = {
    "source": "new: it is read from where it begins, from the next micro-batch on",
    "operator": "new: it begins empty with the next micro-batch",
    "sink": "new: it gets what comes from the next micro-batch on",
    "gate": "new: it judges from the next micro-batch on",
    "table": "new: it shows the whole state after the next micro-batch",
}
GONE: Mapping[PartKind, str] = {
    "source": "gone: it is no longer read",
    "operator": "gone: it no longer runs",
    "sink": "gone: it no longer gets rows, and what it shows stays",
    "gate": "gone: it no longer judges",
    "table": "gone: it no longer follows its state, and what it shows stays",
}


def changed(part: Part, was: Facts, now: Facts, *, comparable: bool) -> PartPlan:
    """The verdict on a part that both declarations have.

    Args:
        comparable: whether digests of both were made by the same versions.

    Example:
        >>> was = {"columns": "struct<`v`: int>", "max": {}, "code": "a"}
        >>> changed(Part("operator", "sums"), was, {**was, "code": "b"}, comparable=True).text
        'its function changed'
    """
    names = differing(part, was, now, comparable=comparable)
    texts = [_text(part, name, was, now) for name in names if not _is_redundant(name, names)]
    makes_other = _REPLAY[part.kind].intersection(names)
    verdict: Verdict = "replay" if makes_other else "continues" if names else "same"
    return PartPlan(part, verdict, tuple(texts))


def results_differ(part: Part, was: Facts, now: Facts, *, comparable: bool) -> bool:
    """Whether what a part made under one declaration is not what it makes under the other."""
    return bool(_REPLAY[part.kind].intersection(differing(part, was, now, comparable=comparable)))


def differing(part: Part, was: Facts, now: Facts, *, comparable: bool) -> list[str]:
    """Names of the facts that differ; the class of a function only where it says more than its code.

    What an older version did not record is not compared.
    """
    names = [n for n in now if n in was and was[n] != now[n] and (comparable or n not in DIGESTS)]
    return [n for n in names if not (n == "kind" and part.kind == "operator" and CODE in names)]


def _is_redundant(name: str, names: Sequence[str]) -> bool:
    """Whether another fact of a rule by row says the same already: its text, or the digest of the rule."""
    return (name in (CODE, JUDGES) and RULE in names) or (name == CODE and JUDGES in names)


def _text(part: Part, name: str, was: Facts, now: Facts) -> str:
    if name in DIGESTS:
        return _OF_DIGESTS[name, part.kind]
    if name == BOUNDS:
        bounds = ", ".join(_bounds(was.get(name) or {}, now[name]))
        return f"{bounds}: the next micro-batches are cut by that"
    if name == PARTITIONS:
        settings = ", ".join(_bounds(was[name], now[name]))
        return (
            f"time partitions: {settings}, from the next partition on; those that were run stay as they are"
        )
    before, after = _plain(was.get(name)), _plain(now[name])
    if name == PLACE:
        return f"place: {before} → {after}, from the next micro-batch on"
    return f"{_NAMES[name]}: {before} → {after}"


def _bounds(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield f"{name}: {_plain(was.get(name))} → {_plain(now.get(name))}"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k}={_plain(v)}" for k, v in value.items()) or "none"
    return "none" if value in (None, "") else str(value)
