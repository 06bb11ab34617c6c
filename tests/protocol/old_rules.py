"""Former or weaker rules of the protocol, each put back by a patch: the schedules must fail.

What stands here is wrong on purpose. A rule that can be taken back without any schedule noticing would not be needed,
or the schedules would not be good enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from state_engine.core.checkpoints.file_disposal import StoredFile
from state_engine.core.checkpoints.write_ids import WriteAttempt, write_id_at, write_id_in, written_at_ms
from state_engine.operations import file_collector, job_files
from state_engine.operations.maintenance import Maintenance
from state_engine.publishing.publication import Publication
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.stores.files import local_path
from state_engine.storage.stores.store_clock import StoreClock
from tests.protocol.interleaving import SKEWS_MS
from tests.protocol.schedules import World
from tests.protocol.sleepers import COMMITS, Sleeper

Rule = Callable[[pytest.MonkeyPatch, World], None]


def plans_before_it_fences(patch: pytest.MonkeyPatch, world: World) -> None:
    """The collector deletes what it saw before the fence."""
    real = file_collector.Collector._plan

    def plan(self: Any, *args: Any) -> Any:
        planned = real(self, *args)
        return vars(self).setdefault("seen_first", planned)

    patch.setattr(file_collector.Collector, "_plan", plan)


def does_not_fence(patch: pytest.MonkeyPatch, world: World) -> None:
    """The collector deletes orphans, and takes no id."""
    patch.setattr(Maintenance, "fence", lambda self: None)


def collector_goes_by_its_own_clock(patch: pytest.MonkeyPatch, world: World) -> None:
    real = file_collector._Ages

    def ages(age: Any, tables: Any, sinks: Any, now_ms: int | None) -> Any:
        return real(age, tables, sinks, world.clock.local_ms())

    patch.setattr(file_collector, "_Ages", ages)


def files_are_as_old_as_their_names(patch: pytest.MonkeyPatch, world: World) -> None:
    """Runners name attempts by their own clocks, and the collector trusts the names."""
    real = job_files._file
    attempts_are_named_by_the_runners_clock(patch, world)

    def aged(info: Any) -> StoredFile:
        write_id = write_id_in(info.base_name)
        began_ms = written_at_ms(write_id) if write_id else None
        return real(info) if began_ms is None else StoredFile(info.size, began_ms)

    patch.setattr(job_files, "_file", aged)


def attempts_are_named_by_the_runners_clock(patch: pytest.MonkeyPatch, world: World) -> None:
    def attempt(self: StoreClock) -> WriteAttempt:
        now_ms = world.clock.local_ms()
        return WriteAttempt(write_id_at(now_ms, uuid4().int), datetime.fromtimestamp(now_ms / 1000, UTC))

    patch.setattr(StoreClock, "attempt", attempt)


def old_attempts_commit(patch: pytest.MonkeyPatch, world: World) -> None:
    """No attempt is too old, or late, to commit."""
    patch.setattr(CheckpointLog, "_check_age", lambda *_: 0)


def nobody_looks_at_files_again(patch: pytest.MonkeyPatch, world: World) -> None:
    """A row whose id was taken, or that is late, is committed as it is."""
    real = CheckpointLog._append

    def append(self: CheckpointLog, row: Any, **options: Any) -> None:
        self._verify = lambda _: None
        real(self, row, **options)

    patch.setattr(CheckpointLog, "_append", append)


def old_attempts_commit_unseen(patch: pytest.MonkeyPatch, world: World) -> None:
    """Neither their age nor their files are checked."""
    old_attempts_commit(patch, world)
    nobody_looks_at_files_again(patch, world)


def whatever_lies_there_is_published(patch: pytest.MonkeyPatch, world: World) -> None:
    """Sinks show all files of an attempt, those of tasks that ran beside the one that reported, too."""
    real = Publication._publish

    def publish(self: Publication, staged: Any, checkpoint_id: int) -> None:
        real(self, replace(staged, files=_beside(staged)), checkpoint_id)

    patch.setattr(Publication, "_publish", publish)


def _beside(staged: Any) -> list[Any]:
    """The listed files, and all others of the same attempts."""
    directory, files = local_path(staged.path), {file.path: file for file in staged.files}
    for file in staged.files:
        write_id = write_id_in(file.path.rsplit("/", 1)[-1])
        for other in (directory / file.path).parent.glob(f"*{write_id}*.parquet"):
            path = str(other.relative_to(directory))
            files.setdefault(path, replace(file, path=path, bytes=other.stat().st_size))
    return list(files.values())


_BEHIND, _AHEAD = SKEWS_MS[0], SKEWS_MS[-1]
_YOUNG, _OLD = 0, 30

COLLECTION: tuple[tuple[Rule, Sleeper], ...] = (
    (plans_before_it_fences, Sleeper("run", COMMITS, False, _OLD, "before fence")),
    (does_not_fence, Sleeper("run", COMMITS, False, _OLD, "after _carry_out")),
    (
        collector_goes_by_its_own_clock,
        Sleeper("run", COMMITS, False, _YOUNG, "after _carry_out", (0, _AHEAD)),
    ),
    (
        files_are_as_old_as_their_names,
        Sleeper("run", COMMITS, False, _YOUNG, "after _carry_out", (_BEHIND, 0)),
    ),
    (
        attempts_are_named_by_the_runners_clock,
        Sleeper("run", COMMITS, False, _OLD, "before _carry_out", (_AHEAD, 0)),
    ),
    (old_attempts_commit, Sleeper("run", COMMITS, False, _OLD, "before _carry_out")),
    (old_attempts_commit_unseen, Sleeper("run", COMMITS, False, _OLD, "after _carry_out")),
    (nobody_looks_at_files_again, Sleeper("run", COMMITS, False, 2, "after fence", robbed="sink")),
    (nobody_looks_at_files_again, Sleeper("run", "after execute", False, 2, 0, robbed="changelog")),
)
"""Each rule of collection with a sleeper that goes wrong under it, and does not without."""
