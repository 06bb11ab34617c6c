"""Random histories on real tables: every checkpoint that can be restored reads as before, and the rest is gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from uuid6 import uuid7

from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.state_files import keyed_state_files
from state_engine.core.checkpoints.table_names import base_table, changelog_table
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs, continuing
from state_engine.core.checkpoints.write_ids import WriteAttempt
from tests.core.checkpoints.rows import tree
from tests.operations.collected_site import CollectedSite, crashed

pytestmark = pytest.mark.spark

Rows = list[tuple[object, ...]]


class Story:
    """A history with the state of every checkpoint and the outputs of the sinks at that time."""

    def __init__(self, site: CollectedSite, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.site, self.chance, self.patch = site, chance, patch
        self.outputs: dict[int, Rows] = {}
        self.batches = 0

    def grow(self, steps: int) -> None:
        """A micro-batch, then steps of any kind."""
        self.batch()
        kinds: list[Callable[[], None]] = [
            self.batch, self.batch, self.batch, self.compact, self.restore, self.savepoint, self.crash,
            self.branch, self.retain,
        ]  # fmt: skip
        for step in self.chance.choices(kinds, k=steps):
            step()

    def batch(self) -> None:
        self.site.run(self.batches)
        self.batches += 1
        self.outputs[self.rows()[-1].checkpoint_id] = self.site.outputs()

    def compact(self) -> None:
        self.site.engine().compact("tiny")

    def restore(self) -> None:
        known = sorted(self.restorable() & self.outputs.keys() - {self.rows()[-1].checkpoint_id})
        if known:
            self.site.engine().restore("tiny", checkpoint_id=self.chance.choice(known))

    def savepoint(self) -> None:
        savepoints = self.site.engine().savepoints("tiny").list()
        if savepoints and self.chance.random() < 0.5:
            self.site.engine().savepoints("tiny").delete(self.chance.choice(sorted(savepoints)))
        else:
            pinned = self.chance.choice(sorted(self.restorable()))
            self.site.engine().savepoints("tiny").create(f"s{len(self.rows())}", checkpoint_id=pinned)

    def crash(self) -> None:
        crashed(self.site, self.patch, self.chance.choice(["commit_files", "stage", "commit"]), self.batches)
        self.batches += 1

    def branch(self) -> None:
        """The first row of a replay, from anywhere."""
        engine, rows = self.site.engine(), self.rows()
        wanted = self.chance.choice(sorted(self.restorable()))
        begun = next(row for row in rows if row.checkpoint_id == wanted)
        attempt = WriteAttempt(uuid7().hex, datetime.now(UTC))
        next_id = rows[-1].checkpoint_id + 1
        row = continuing(begun, CheckpointKind.CHECKPOINT, next_id, attempt, requested_by="test")
        first = replace(row, branch=f"r{row.checkpoint_id}")
        log = engine.context.ran("tiny").log
        log.commit([AddCheckpoint(first)], NewestIs(log.load().newest_id))

    def retain(self) -> None:
        self.site.engine().expire_checkpoints("tiny", RetentionPolicy(keep_last=self.chance.randint(1, 2)))

    def rows(self) -> list:  # type: ignore[type-arg]
        return self.site.engine().checkpoints("tiny")

    def restorable(self) -> set[int]:
        rows = {row.checkpoint_id: row for row in self.rows()}
        return set(rows) - tree(rows).expired

    def needed(self) -> set[str]:
        """Every file that a read or a restore of a restorable checkpoint needs, relative to the site."""
        rows = {row.checkpoint_id: row for row in self.rows()}
        needed: set[str] = set()
        for at in self.restorable():
            on_path = tree(rows).path(at)
            held = keyed_state_files(on_path, "sums")
            needed |= {f"root/tiny/{changelog_table('sums')}/{f.file.path}" for f in held.changelog}
            needed |= {f"root/tiny/{base_table('sums')}/{f.file.path}" for f in held.base}
            needed |= {
                f"root/tiny/operator_state/{f.path}" for row in on_path for f in row.operator_state_files
            }
            staged = [s for row in on_path if row.kind == "checkpoint" for s in row.sinks]
            needed |= {f"{s.path.rsplit('/', 1)[-1]}/{f.path}" for s in staged for f in s.files}
        return needed


def check_history(site: CollectedSite, seed: int, steps: int, patch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    story = Story(site, chance, patch)
    story.grow(steps)
    story.retain()
    story.batch()
    before, states, outputs = site.files(), site.restorable(), site.outputs()

    assert not site.collect(hours=23).files
    planned = site.collect(hours=25, dry_run=True)
    assert site.files() == before
    assert site.collect(hours=25).files == planned.files
    site.collect(hours=49)
    assert not site.collect(hours=49, dry_run=True).files

    needed, after = story.needed(), site.files()
    published = {path for path in after if "checkpoint_id=" in path}
    listed = {f"sink/{path}" for path in DeltaTable(str(site.sink)).file_uris()}
    listed = {f"sink/{path.rsplit('/', 1)[-1]}" for path in listed}
    rows = {path for path in after if path.startswith(("root/tiny/checkpoints", "root/tiny/savepoints"))}
    assert after - needed - published - listed - rows == set(), "all that nobody needs is gone"
    # published files of the directory are where readers look, not where they were staged
    missing = {p for p in needed - after if not any(q.endswith(p.rsplit("/", 1)[-1]) for q in published)}
    assert missing == set(), "and nothing else"
    assert site.restorable().items() >= states.items()
    assert site.outputs() == outputs

    head = story.rows()[-1].checkpoint_id
    known = sorted(story.restorable() & story.outputs.keys() - {head})
    for target in chance.sample(known, min(2, len(known))):
        site.engine().restore("tiny", checkpoint_id=target)
        assert site.outputs() == story.outputs[target]
        assert tuple(sorted(site.state().items())) == states[target]


@pytest.mark.long
def test_a_random_history(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_history(CollectedSite(tmp_path, spark), 7, 7, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 106))
def test_random_histories(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    check_history(CollectedSite(tmp_path, spark), seed, 14, monkeypatch)
