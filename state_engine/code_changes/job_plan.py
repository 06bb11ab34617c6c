"""``JobPlan``: what a run of today's code would do to the state and the outputs of a job, part by part.

    same        nothing differs
    continues   what differs takes effect with the next micro-batch
    replay      state or outputs that exist were made by other code; a replay makes them again
    refused     a run ends with this error, and commits nothing

Flink refuses, or does not, when a job is restored; it has no such plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from state_engine.core.counted_nouns import counted
from state_engine.core.plain_values import plain
from state_engine.microbatch.findings import Part
from state_engine.replay.sample import Sample

Verdict = Literal["same", "continues", "replay", "refused"]
_EXIT_CODES: dict[Verdict, int] = {"same": 0, "continues": 0, "replay": 2, "refused": 3}


@dataclass(frozen=True)
class PartPlan:
    """One part of a job, and its verdict.

    Attributes:
        texts: what differs, and what follows from that; of a refused part, the errors of a run; empty where it is the
            same.
    """

    part: Part
    verdict: Verdict
    texts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What differs, in one line."""
        return "; ".join(self.texts)


@dataclass(frozen=True)
class PlannedReplay:
    """The replay that makes state and outputs again.

    Attributes:
        from_checkpoint: the newest checkpoint that can be restored and that no other code had a part in; None for the
            very beginning.
        batches: micro-batches that it repeats; rows and files that they read, and the seconds that they took.
        commands: that do it, one after the other.
        problem: why it cannot be done, as a replay would say; else empty.
    """

    from_checkpoint: int | None
    batches: int = 0
    rows: int = 0
    files: int = 0
    seconds: float = 0.0
    commands: tuple[str, ...] = ()
    problem: str = ""

    @property
    def text(self) -> str:
        """Its begin and its size."""
        begin = "the very beginning" if self.from_checkpoint is None else f"checkpoint {self.from_checkpoint}"
        if self.problem:
            return f"a replay from {begin} is not possible: {self.problem}"
        files = f" of {counted(self.files, 'file')}" if self.files else ""
        return (
            f"a replay from {begin} repeats {counted(self.batches, 'micro-batch')}: {counted(self.rows, 'row')}"
            f"{files}, which took {self.seconds:,.1f} s"
        )


@dataclass(frozen=True)
class JobPlan:
    """What a run of today's code would do to a job.

    Attributes:
        head_id: the checkpoint that it was compared with; None where the job never ran.
        parts: all parts, in the order of the job: the job itself, sources, operators with their states, sinks, tables.
        replay: how to make again what other code made; None where no part needs it.
        notes: what only a run can judge, and why.
        sample: what today's code makes of the last recorded micro-batches, where that was asked for.
    """

    job: str
    head_id: int | None
    parts: tuple[PartPlan, ...]
    replay: PlannedReplay | None = None
    notes: tuple[str, ...] = ()
    sample: Sample | None = None

    @property
    def verdict(self) -> Verdict:
        """The gravest one of all parts."""
        order = list(get_args(Verdict))
        return max((one.verdict for one in self.parts), key=order.index, default="same")

    @property
    def exit_code(self) -> int:
        """0: same or continues; 2: replay; 3: refused."""
        return _EXIT_CODES[self.verdict]

    def of(self, verdict: Verdict) -> tuple[PartPlan, ...]:
        """The parts with a verdict."""
        return tuple(one for one in self.parts if one.verdict == verdict)

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the exit code."""
        replay = self.replay
        return {
            "job": self.job,
            "head_id": self.head_id,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "parts": [
                {
                    "kind": one.part.kind,
                    "operator": one.part.operator or None,
                    "name": one.part.name,
                    "verdict": one.verdict,
                    "texts": list(one.texts),
                }
                for one in self.parts
            ],
            "replay": None if replay is None else {**vars(replay), "commands": list(replay.commands)},
            "notes": list(self.notes),
            **({} if self.sample is None else {"sample": plain(self.sample)}),
        }

    def summary(self) -> str:
        """Verdict and numbers, in one line."""
        if self.head_id is None:
            return f"{self.job}: never ran here; the first run begins with nothing"
        counts = ", ".join(f"{len(of)} {one}" for one in get_args(Verdict) if (of := self.of(one)))
        return f"{self.job}: {self.verdict}, compared with checkpoint {self.head_id} ({counts})"

    def lines(self) -> Iterator[str]:
        """What stands below the table of parts: the replay with its commands, and what only a run can judge."""
        if self.replay is not None:
            yield self.replay.text
            yield from (f"  {command}" for command in self.replay.commands)
        for note in self.notes:
            yield f"only a run can judge: {note}"
        if self.sample is not None:
            yield from self.sample.lines()

    def markdown(self) -> str:
        """For a comment on a pull request: parts that differ in a table, and those that are the same as a number."""
        title = f"### Plan of `{self.job}`: {self.verdict}"
        head = "never ran here" if self.head_id is None else f"compared with checkpoint {self.head_id}"
        differing = [one for one in self.parts if one.verdict != "same"]
        same = len(self.parts) - len(differing)
        parts = [
            title,
            f"{head[0].upper()}{head[1:]}; {counted(same, 'part is the same', 'parts are the same')}.",
        ]
        if differing:
            rows = [f"| `{one.part}` | **{one.verdict}** | {_cell(one.text)} |" for one in differing]
            parts.append("\n".join(["| part | verdict | what differs |", "|---|---|---|", *rows]))
        if self.replay is not None:
            commands = "\n".join(self.replay.commands)
            parts.append(f"{self.replay.text[0].upper()}{self.replay.text[1:]}.")
            parts += [f"```\n{commands}\n```"] if commands else []
        if self.notes:
            notes = "\n".join(f"* {note}" for note in self.notes)
            parts.append(f"Only a run can judge:\n\n{notes}")
        if self.sample is not None:
            shown = "\n".join(self.sample.lines())
            parts.append(f"```text\n{shown}\n```")
        return "\n\n".join(parts)


def _cell(text: str) -> str:
    r"""A text as a cell of a table in Markdown.

    Example:
        >>> _cell("a | b")
        'a \\| b'
    """
    return " ".join(text.split()).replace("|", "\\|")
