"""A ``FileSink`` on a file system like HDFS, the committed rows of its job, and runners that publish them.

The sink's code is the engine's own; the rest of a micro-batch is what matters of it here: a row is committed if nobody
else committed one meanwhile, and only after all before it were published. After each change of the file system the
world looks at what readers see.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from state_engine import FileSink
from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.errors import LockTimeoutError, MissingFilesError, SinkError, SinkIdentityError
from state_engine.sinks.file_moves import base_name
from state_engine.sinks.files import FilePublisher
from state_engine.storage.layout import file_name
from state_engine.storage.stores.files import open_location
from tests.sinks.requests import APP, asked

SCHEMA = pa.schema([("id", pa.int64())])
CHANGES = ("rename", "mkdirs", "delete", "delete all", "write", "create")
"""Operations that change the file system."""


Around = Callable[[str, str, Callable[[], Any]], Any]
"""Is given the name of an operation of the file system, its path and the operation, and does it, or not."""


class Files(Protocol):
    """A file system, as the world uses it."""

    around: Around

    def location(self, uri: str) -> tuple[pafs.FileSystem, str]: ...

    def write_new(self, uri: str, text: str) -> bool: ...

    def below(self, uri: str) -> list[str]: ...


class FileWorld:
    """The file system, the log and what must hold of both.

    Args:
        around: lets something happen at an operation of the file system.
        fs: the file system.
        uri: of the sink.

    Attributes:
        rows: committed, by id from 1 on: what they add and withdraw.
        shown: the newest row that a runner has published.
    """

    def __init__(self, around: Around, fs: Files, uri: str) -> None:
        self._around, self._numbers = around, itertools.count(1)
        self.fs, self.uri = fs, uri
        fs.around = self._watched
        self.rows: list[StagedSink] = []
        self.shown = 0
        self._staged: dict[str, DataFile] = {}
        self.kernel = SimpleNamespace(write_new=self.fs.write_new)
        self.publisher = FilePublisher(write_new=self.fs.write_new)

    def _watched(self, kind: str, path: str, act: Callable[[], Any]) -> Any:
        def act_and_look() -> Any:
            result = act()
            if kind in CHANGES:
                self.check()
            return result

        return self._around(kind, path, act_and_look)

    # -- what a runner does ------------------------------------------------------------------------------------------

    def prepared(self, write_id: str) -> StagedSink:
        """The sink, made if there is none, with nothing staged."""
        return FileSink(self.uri).prepare(asked(self.kernel, SCHEMA, write_id)).staged([])

    def stage(self, write_id: str, count: int) -> list[DataFile]:
        files = []
        for subtask in range(count):
            path = f"_staged-{write_id}/{file_name(write_id, subtask, 0)}"
            open_location(self.uri).inside(path).write(b"")
            files.append(DataFile(path, bytes=0, rows=1, subtask=subtask))
        return files

    def publish_pending(self) -> int:
        """What an engine does first; the newest row that is published then."""
        rows = list(self.rows)
        seen = self.publisher.seen(self.uri, APP)
        newest = max((i for i, row in enumerate(rows, 1) if i <= seen and row.changes_sink), default=0)
        if newest:
            self.publisher.check_seen(rows[newest - 1], APP, newest)
        for checkpoint_id, row in enumerate(rows, 1):
            if checkpoint_id > seen:
                self.publish(row, checkpoint_id)
        return len(rows)

    def publish(self, row: StagedSink, checkpoint_id: int) -> None:
        self.publisher.publish(row, APP, checkpoint_id)
        self.shown = max(self.shown, checkpoint_id)
        self.check()

    def commit(self, row: StagedSink) -> None:
        for file in row.files:
            self._staged.setdefault(base_name(file), file)
        self.rows.append(row)

    def run(self, dice: random.Random, batches: int) -> None:
        """Some micro-batches, and restores and promotions among them; ends where another runner was faster."""
        sink = self.prepared(f"{next(self._numbers):032x}")
        for _ in range(batches):
            head = self.publish_pending()
            row = self._next(sink, dice)
            try:
                self.publisher.check_identity(row)
                if row.withdrawn:
                    self.publisher.check_withdrawable(row)
            except SinkIdentityError:
                raise  # nobody else writes here
            except (SinkError, MissingFilesError):
                return  # the sink shows what a later row says
            if len(self.rows) != head:
                return  # another runner committed first
            self.commit(row)
            self.publish(row, head + 1)

    def _next(self, sink: StagedSink, dice: random.Random) -> StagedSink:
        """A row on the newest one: outputs of a micro-batch, or others of those that were ever published."""
        content, known = self.content(), dict(self._staged)
        attempts = sorted({file.path.split("/")[0] for file in known.values()})
        if not attempts or dice.random() < 0.6:
            write_id = f"{next(self._numbers):032x}"
            return replace(sink, files=self.stage(write_id, dice.choice((1, 2))))
        wanted = {attempt for attempt in attempts if dice.random() < 0.5}
        target = {name for name, file in known.items() if file.path.split("/")[0] in wanted}
        add = [known[name] for name in sorted(target - content)]
        return replace(sink, files=add, withdrawn=[known[name] for name in sorted(content - target)])

    # -- what must hold ----------------------------------------------------------------------------------------------

    def content(self, rows: int | None = None) -> set[str]:
        """Names of the files that readers see once so many rows are published."""
        content = set[str]()
        for row in self.rows[:rows]:
            content -= set(map(base_name, row.withdrawn))
            content |= set(map(base_name, row.files))
        return content

    def visible(self) -> list[str]:
        """Names of the files that readers see, in directories that they look into."""
        paths = [path.split("/") for path in self.fs.below(self.uri) if path.startswith("checkpoint_id=")]
        assert all(len(path) == 2 for path in paths), f"a directory was moved into another one: {paths}"
        return sorted(path[1] for path in paths)

    def check(self) -> None:
        """Readers see the newest row's outputs, those of the row before, or what both have and some more of them."""
        visible, after = self.visible(), self.content()
        before = self.content(len(self.rows) - 1) if self.rows else set[str]()
        assert len(visible) == len(set(visible)), f"rows are there twice: {visible}"
        assert before & after <= set(visible), f"rows are lost: {sorted((before & after) - set(visible))}"
        assert set(visible) <= before | after, (
            f"withdrawn rows are there: {sorted(set(visible) - (before | after))}"
        )
        if self.rows and self.shown == len(self.rows):
            assert set(visible) == after, (
                f"checkpoint {self.shown} was published: {visible}, not {sorted(after)}"
            )
        names = [path.rsplit("/", 1)[-1] for path in self.fs.below(self.uri)]
        lost = [name for name in self._staged if names.count(name) != 1]
        assert not lost, f"files are gone, or there twice: {lost}"


# -- schedules ---------------------------------------------------------------------------------------------------------

RUNNERS, STOPS = 5, 0.02
"""How many runners there are, and how likely, at each operation, one stands still while the others work."""
Worlds = Callable[[Around, int], AbstractContextManager[FileWorld]]
"""A world that the engine reaches, with names by a seed."""


def runners_that_stop(seed: int, worlds: Worlds) -> None:
    """Runners of which each stands still, at any operation, for as long as others work."""
    dice, waiting, running = random.Random(seed), [RUNNERS], [0]

    def around(_: str, __: str, act: Callable[[], Any]) -> Any:
        if running[0] and waiting[0] and dice.random() < STOPS:
            run()
        return act()

    def run() -> None:
        waiting[0] -= 1
        running[0] += 1
        with suppress(LockTimeoutError):
            world.run(random.Random(dice.random()), dice.randint(1, 4))
        running[0] -= 1

    with worlds(around, seed) as world:
        run()
        world.run(random.Random(seed), 1)
