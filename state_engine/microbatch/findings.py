"""``Finding``: what keeps a job from going on from a checkpoint, as the checks before a micro-batch find it.

Checks are generators of findings. A run raises the first one and looks for no other; a plan shows all of them. So each
rule stands once, and both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from state_engine.core.errors import StatelakeError

PartKind = Literal["job", "source", "operator", "state", "sink", "table", "gate"]


class Part(NamedTuple):
    """A part of a job: of a state, ``operator`` has its uid."""

    kind: PartKind
    name: str
    operator: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {f'{self.operator}.' if self.operator else ''}{self.name}"


@dataclass(frozen=True)
class Finding:
    """A refusal: which part of a job it is about, and the error that a run ends with."""

    part: Part
    error: StatelakeError


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the error of the first finding, if there is one."""
    for one in findings:
        raise one.error
