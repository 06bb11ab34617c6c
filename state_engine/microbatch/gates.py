"""Gates: a micro-batch is judged by what it has staged, after its operators ran and before anything of it is committed.

    met                      it is committed and published
    broken, ``stop``         nothing is committed; its staged outputs stay until a collection deletes them
    broken, ``hold``         it is committed on a branch of its own, ``held_<id>``: no reader sees it, ``main`` stands

A held micro-batch is a branch as those of replays are: it can be compared, promoted and dropped. Runs end at once until
it is promoted or dropped, or ``main`` moves otherwise. Branches other than ``main`` publish nothing: there, gates are
judged and recorded, and stop nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, GateVerdict
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import GateError
from state_engine.job.job import Gate, StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.findings import Finding, Part
from state_engine.microbatch.staged_batch import StagedBatch
from state_engine.sinks.bounds import Breach
from state_engine.storage.layout import JobLayout

_LOG = logging.getLogger(__name__)
_HELD = "held_"
GUIDE = "docs/guides/gates.md"


def judge(job: StatefulJob, batch: BatchContext, done: Execution, layout: JobLayout) -> BatchContext:
    """Judge what is staged by all gates of a job; the batch, with the branch of its commit.

    Raises:
        GateError: a gate that stops is broken, or one that holds where there is no checkpoint to hold it beside.
        ConfigurationError: a gate reads a column that its sink or state does not have.
    """
    staged = StagedBatch(job, done, batch.path, layout)
    broken = {gate.name: breach for gate in job.gates.values() if (breach := gate.bound.breach(staged))}
    done.gates = [
        GateVerdict(gate.name, gate.bound.text, gate.otherwise, _text(broken.get(gate.name)))
        for gate in job.gates.values()
    ]
    if not broken:
        return batch
    if batch.branch != MAIN:
        for name, breach in broken.items():
            _LOG.warning(
                "job '%s': gate '%s' is broken on branch '%s': %s. A branch publishes nothing, so it goes on",
                job.name, name, batch.branch, _text(breach), extra={"job": job.name, "gate": name},
            )  # fmt: skip
        return batch
    stops = [job.gates[name] for name in broken if job.gates[name].otherwise == "stop" or not batch.path]
    if stops:
        raise _stopped(job, stops[0], broken[stops[0].name], staged, first=not batch.path)
    return batch.on_branch(f"{_HELD}{batch.checkpoint_id}")


def _text(breach: Breach | None) -> str:
    if breach is None:
        return ""
    rows = "; ".join(json.dumps(row, default=str) for row in breach.rows)
    return f"{breach.text}: {rows}" if rows else breach.text


def _stopped(job: StatefulJob, gate: Gate, breach: Breach, staged: StagedBatch, *, first: bool) -> GateError:
    places = [place for name in gate.bound.columns for place in staged.places(name)]
    where = f" The rows that were staged: {', '.join(places)}, until a vacuum deletes them." if places else ""
    beside = ", and there is no checkpoint yet that it could be held beside" if first else ""
    return GateError(
        f"job '{job.name}': gate '{gate.name}' is broken ({gate.bound.text}): {_text(breach)}. Nothing of this "
        f"micro-batch was committed{beside}.{where} Repair the input or the code and run again; or change the gate. "
        f"See {GUIDE}",
        rule=gate.name,
        staged=places,
    )


# -- what is held ------------------------------------------------------------------------------------------------------


def held_on(history: History) -> CheckpointRow | None:
    """The micro-batch that a gate holds now: nobody promoted or dropped it, and ``main`` stands where it stood then."""
    held = ((name, row) for name, row in history.open_branches.items() if name.startswith(_HELD))
    for name, row in held:
        first = next(one for one in history.path(row.checkpoint_id) if one.branch == name)
        parent = history.may_reparent(first.parent_id)
        if parent is not None and parent == history.head:
            return row
    return None


def held_error(job: str, row: CheckpointRow) -> GateError:
    """What a run ends with while a micro-batch is held: why, and the ways on."""
    broken = [one for one in row.gates if one.broken]
    why = "; ".join(f"gate '{one.name}' is broken ({one.bound}): {one.broken}" for one in broken)
    branch, begin = row.branch, row.parent_id
    return GateError(
        f"job '{job}': the micro-batch after checkpoint {begin} is held on branch '{branch}': {why}. No reader sees "
        f"it, and no run goes past it. Look at it: statelake branch compare {job} {branch} --rows 5. Release it: "
        f"statelake branch promote {job} {branch}. Or repair the code and run it again: statelake branch create {job} "
        f"--from {begin} --branch repaired, and promote that. Or repair the input and drop it: statelake branch drop "
        f"{job} {branch}. See {GUIDE}",
        rule=broken[0].name if broken else "",
        branch=branch,
    )


def held_findings(job: str, history: History) -> Iterator[Finding]:
    """A micro-batch that is held, as what keeps the next one from running."""
    row = held_on(history)
    if row is not None:
        yield Finding(Part("job", job), held_error(job, row))
