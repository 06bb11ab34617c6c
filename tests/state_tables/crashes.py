"""A publisher of tables that dies at one of its steps, whatever the table is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from state_engine.publishing.published_tables import PublishedTables
from state_engine.state_tables import delta, delta_files
from state_engine.storage.delta.kernel import DeltaKernel
from tests.support.killed import Killed


class Steps:
    """Counts the steps of publishing, and dies at one of them; None for none.

    Steps are each file and commit of a Delta table, before and after it, and each statement and commit of a database.
    """

    def __init__(self, dies_at: int | None) -> None:
        self.dies_at, self.taken, self._depth = dies_at, list[str](), 0

    def next(self, name: str) -> None:
        if not self._depth:
            return
        self.taken.append(name)
        if self.dies_at is not None and len(self.taken) > self.dies_at:
            raise Killed

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self.next(f"before {name}")
            done = call(*given, **options)
            self.next(f"after {name}")
            return done

        return counted

    def inside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                return call(*given, **options)
            finally:
                self._depth -= 1

        return counting


@contextmanager
def dying(at: int | None) -> Iterator[Steps]:
    """Publishers in this process die at a step; the error is swallowed, as the process would be gone."""
    steps = Steps(at)

    def statement(*_: Any) -> None:
        steps.next("statement")

    def commit(*_: Any) -> None:
        steps.next("commit of a database")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedTables, "follow", steps.inside(PublishedTables.follow))
        for name in ("create_table", "commit_upon"):
            patch.setattr(DeltaKernel, name, steps.around(name, getattr(DeltaKernel, name)))
        patch.setattr(delta, "write_parquet", steps.around("data file", delta.write_parquet))
        patch.setattr(delta_files, "written", steps.around("deletion vectors", delta_files.written))
        sa.event.listen(Engine, "before_cursor_execute", statement)
        sa.event.listen(Engine, "commit", commit)
        try:
            yield steps
        except Killed:
            pass
        finally:
            sa.event.remove(Engine, "before_cursor_execute", statement)
            sa.event.remove(Engine, "commit", commit)
