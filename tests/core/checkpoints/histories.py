"""Random histories of a job: micro-batches, compactions, restores, replays, promotions, retention and savepoints.

``History`` appends the rows that the engine would; what the rows mean is checked against models in the tests, which
know nothing of the functions that built them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    BaseFile,
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    OperatorStatePart,
    OperatorStateRef,
    OperatorStateSchema,
    PinnedCheckpoint,
    StagedSink,
)
from state_engine.core.checkpoints.history import History as Tree
from state_engine.core.checkpoints.retention import RetentionPolicy, plan
from state_engine.core.checkpoints.sink_moves import moves
from tests.core.checkpoints.rows import checkpoint

START = datetime(2013, 1, 1, tzinfo=UTC)
GROUPS = 4
"""Max parallelism of the one operator, ``counter``."""


@dataclass
class History:
    """A job's rows, grown by one a call, at one minute a row."""

    rows: Tree = field(default_factory=Tree)

    @property
    def head(self) -> CheckpointRow | None:
        return self.rows.head

    def put(self, row: CheckpointRow) -> None:
        """A row as it is, also in place of one."""
        self.rows = self.rows.with_rows([row])

    def append(self, parent: CheckpointRow | None, kind: str, **facts: Any) -> CheckpointRow:
        """A row in which nothing happened to the parent's state, but for the given facts."""
        i = self.rows.next_id
        operators = [
            replace(o, changelog=[], changed_entries=0, base_files=[])
            for o in (parent.operators if parent else [])
        ]
        given = {
            "kind": kind,
            "created_at": START + timedelta(minutes=i),
            "operators": operators,
            "operator_state": parent.operator_state if parent else [],
        } | facts
        row = checkpoint(i, parent.checkpoint_id if parent else None, **given)
        self.put(row)
        return row

    def batch(self, groups: tuple[int, ...], branch: str = MAIN, began: CheckpointRow | None = None) -> None:
        """A micro-batch that changes keys of these key groups, and writes outputs to two sinks where it changes any."""
        parent = self.rows.head_of(branch) or began
        i, write_id = self.rows.next_id, f"w{self.rows.next_id}"
        changelog = [DataFile(f"write_id={write_id}/c{g}", 1, 1, 0, g, g, g, g) for g in groups]
        outputs = {
            name: [DataFile(f"{name}-{write_id}-{g}", 1, 1, 0) for g in groups] for name in ("out", "side")
        }
        before = parent.operator("counter") if parent else None
        counter = OperatorCheckpoint(
            "counter", 1, GROUPS, "bigint", [], changelog, before.bases if before else [], len(changelog)
        )
        files = [DataFile(f"write_id={write_id}/part-00000-{write_id}-0.parquet", 1, 1, 0)]
        refs = {r.operator: r for r in parent.operator_state} if parent else {}
        if groups:
            files.append(DataFile(f"write_id={write_id}/part-00000-{write_id}-0.counter.parquet", 1, 1, 0))
            held = OperatorStateSchema("s", "union", "bigint", [OperatorStatePart(0, write_id, 1, "d")])
            refs["counter"] = OperatorStateRef("counter", write_id, 1, 1, [held], write_id)
        letters = [DataFile(f"write_id={write_id}/d", 1, 1, 0)] if len(groups) > 1 else []
        sinks = [StagedSink(n, "delta", f"/{n}", "id", "{}", fs) for n, fs in outputs.items()]
        self.append(
            parent, "checkpoint", branch=branch, write_id=f"w{i}", operators=[counter],
            operator_state=list(refs.values()), operator_state_files=files, sinks=sinks, dead_letters=letters,
        )  # fmt: skip

    def compact(
        self, back: int, groups: tuple[int, int], *, advance: bool = False, positions: bool = False
    ) -> None:
        """A compaction of a checkpoint that many rows back, for a range of key groups; dropped where it is too late.

        Args:
            advance: whether the bases of other key groups, where nothing changed since, stand for that checkpoint, too.
            positions: whether it states the positions of sources whole.
        """
        on_path = self.rows.path(self.head.checkpoint_id if self.head else None)
        of = on_path[-1 - back] if back < len(on_path) else None
        counter = self.head.operator("counter") if self.head else None
        if self.head is None or of is None or counter is None:
            return
        i = self.rows.next_id
        start, end = min(groups), max(groups)
        own_path = on_path[: on_path.index(of) + 1]

        def stands_for(group: int, since: int) -> int:
            after = [r.operator("counter") for r in own_path if r.checkpoint_id > since]
            changed = any(f.key_group_min == group for o in after if o for f in o.changelog)
            return max(since, of.checkpoint_id) if advance and not changed else since

        old = [
            BaseRange(g, g, b.base_id, stands_for(g, b.checkpoint_id))
            for b in counter.bases
            for g in range(b.key_group_start, b.key_group_end + 1)
            if not start <= g <= end
        ]
        files = [
            BaseFile(f"base_id=w{i}/b{g}", 1, 1, 0, g, g, g, g, entries={"count": 1})
            for g in range(start, end + 1)
        ]
        new = replace(
            counter, changelog=[], changed_entries=0, base_files=files,
            bases=[*old, BaseRange(start, end, f"w{i}", of.checkpoint_id)],
        )  # fmt: skip
        row = checkpoint(i, self.head.checkpoint_id, write_id=f"w{i}", operators=[new])
        if self.rows.may_apply_compaction(of.checkpoint_id, row):
            whole = [DataFile(f"write_id=w{i}/part-00000-w{i}-0.parquet", 1, 1, 0)] if positions else []
            self.append(
                self.head, "compaction", write_id=f"w{i}", operators=[new], operator_state_files=whole
            )

    def move(self, kind: str, parent: CheckpointRow, *, keep: bool = False) -> None:
        """A restore or promotion: the head goes to another path, and the sinks with it."""
        old = self.head.checkpoint_id if self.head else None
        gone = [r.checkpoint_id for r in self.rows.leaving(old, parent.checkpoint_id)] if keep else []
        sinks = moves(self.rows, old, parent.checkpoint_id, kept=gone)
        self.append(parent, kind, replaced_id=old, sinks=sinks)

    def retain(self, policy: RetentionPolicy) -> None:
        if self.head:
            now_ms = int((START + timedelta(minutes=self.rows.next_id)).timestamp() * 1000)
            expired = plan(self.rows, policy, now_ms=now_ms).expired
            self.append(self.head, "retention", retired=list(expired))

    def pin(self, name: str, row: CheckpointRow) -> None:
        pin = PinnedCheckpoint(name, row.checkpoint_id, f"/{name}")
        self.append(self.head, "retention", pinned=[pin])

    def restorable(self) -> list[CheckpointRow]:
        gone = self.rows.expired
        return [row for i, row in sorted(self.rows.items()) if i not in gone]


_groups = st.lists(st.integers(0, GROUPS - 1), max_size=3, unique=True).map(tuple)


def _batch(draw: st.DrawFn, h: History) -> None:
    h.batch(draw(_groups))


def _compact(draw: st.DrawFn, h: History) -> None:
    groups = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    h.compact(draw(st.integers(0, 3)), groups, advance=draw(st.booleans()), positions=draw(st.booleans()))


def _restore(draw: st.DrawFn, h: History) -> None:
    h.move("restore", draw(st.sampled_from(h.restorable())))


def _replay(draw: st.DrawFn, h: History) -> None:
    began = draw(st.sampled_from(h.restorable()))
    running = [name for name in h.rows.open_branches if name != MAIN]
    h.batch(draw(_groups), draw(st.sampled_from([*running, f"r{len(h.rows)}"])), began)


def _promote(draw: st.DrawFn, h: History) -> None:
    tops = [row for name, row in sorted(h.rows.open_branches.items()) if name != MAIN]
    if tops:
        h.move("promote", draw(st.sampled_from(tops)))


def _retain(draw: st.DrawFn, h: History) -> None:
    younger = draw(st.none() | st.integers(60_000, 300_000))
    h.retain(RetentionPolicy(keep_last=draw(st.integers(1, 3)), keep_younger_than_ms=younger))


def _pin(draw: st.DrawFn, h: History) -> None:
    h.pin(f"s{len(h.rows)}", draw(st.sampled_from(h.restorable())))


_STEPS: list[Callable[[st.DrawFn, History], None]] = [
    _batch, _batch, _compact, _restore, _replay, _promote, _retain, _pin,
]  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A micro-batch, then up to eighteen steps of any kind."""
    history = History()
    _batch(draw, history)
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=4, max_size=18)):
        step(draw, history)
    return history
