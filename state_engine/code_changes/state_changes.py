"""What becomes of the states of an operator: those that the head holds, beside those that the code asks for; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from state_engine.code_changes.job_plan import PartPlan
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.durations import Duration
from state_engine.job.graph import OperatorNode
from state_engine.microbatch.declarations import OpenedStates
from state_engine.microbatch.findings import Part

_NEW = "new: it starts empty"
_LATE = "the function asks for it later than in open, and the run compares it then"


def state_plans(operator: OperatorNode, head: CheckpointRow, opened: OpenedStates) -> Iterator[PartPlan]:
    """A plan for each state; refused ones come from the findings.

    Args:
        opened: what a trial of ``open`` asked for.
    """
    yield from _asked_for(operator, head, opened)
    yield from _left(operator, head, opened)


def _asked_for(operator: OperatorNode, head: CheckpointRow, opened: OpenedStates) -> Iterator[PartPlan]:
    recorded = head.operator(operator.uid)
    ttls = {state.name: state.ttl for state in (recorded.states if recorded else ())}
    for name, one in opened.compared.items():
        texts = [_NEW] if one.former is None else [*one.changes, *_ttl(ttls.get(one.former, ""), one.ttl)]
        yield _plan(Part("state", name, operator.uid), texts)


def _left(operator: OperatorNode, head: CheckpointRow, opened: OpenedStates) -> Iterator[PartPlan]:
    """States that are stored and that the code did not ask for in ``open``."""
    uid, recorded = operator.uid, head.operator(operator.uid)
    asked = {one.former for one in opened.compared.values()} | {part.name for part, _ in opened.refused}
    late = set(recorded.asked_late) if recorded else set()
    late |= {name for ref in head.operator_state if ref.operator == uid for name in ref.asked_late}
    for name in sorted(head.state_names(uid) - asked - {TIMERS}):
        part = Part("state", name, uid)
        if name in operator.dropped_states:
            yield _plan(part, ["it is dropped with the next micro-batch in which the operator runs"])
        elif name in operator.kept_states:
            yield PartPlan(part, "same", ("keep_states keeps it, and nothing asks for it",))
        elif name in late:
            yield PartPlan(part, "same", (_LATE,))
        else:
            yield _plan(part, ["nothing asks for it, and it has no entries"])


def _plan(part: Part, texts: Iterable[str]) -> PartPlan:
    texts = tuple(texts)
    return PartPlan(part, "continues" if texts else "same", texts)


def _ttl(was: str, now: str) -> Iterator[str]:
    if was == now:
        return
    before, after = (_parsed(text) for text in (was, now))
    if not after:
        yield "its time to live is switched off: nothing expires from now on"
    elif not before:
        yield f"its time to live is {_shown(after)} now, and counts for what is written from now on"
    elif before["ttl_ms"] != after["ttl_ms"]:
        yield f"its time to live was {_shown(before)}, and is {_shown(after)}, from the stored times"
    else:
        yield "another rule of its time to live holds from now on"


def _parsed(text: str) -> Mapping[str, Any]:
    return json.loads(text) if text else {}


def _shown(ttl: Mapping[str, Any]) -> str:
    return str(Duration.of_millis(ttl["ttl_ms"]))
