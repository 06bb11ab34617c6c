"""``StoreChecks``: before the first commit to a store, it is seen to let exactly one of many writers create a file.

That a store knows the condition of a put-if-absent is not believed: some ignore it, and then each of two runners
believes that its commit was made. Writers race for fifty names through the very log store that commits, and what came
of it is written down below the root, so that it happens once for a store and a root. A log store that keeps apart only
the writers of one process would win that race, so one that is not allowed is not tried. Local disks are locked
instead. Decision 0051.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from threading import Barrier, Lock
from typing import Any
from urllib.parse import urlparse
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from state_engine.core.errors import ConfigurationError, StatelakeError, UnsafeStoreError
from state_engine.storage.delta.commit_ends import class_name, refusal
from state_engine.storage.delta.kernel_engines import KernelEngines
from state_engine.storage.delta.log_stores import check_log_store, is_allowed, log_store_of
from state_engine.storage.java_gateway import java_class, java_threads
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import is_local, join, open_location
from state_engine.storage.stores.object_stores import PROCESS_STORES

_LOG = logging.getLogger(__name__)
_VERDICTS, _RACES = "_stores", "_statelake_race-"


@dataclass(frozen=True)
class Verdict:
    """What was seen of a store.

    Attributes:
        put_if_absent: whether every name had exactly one winner.
        single_writer: whether the caller vouched that nobody else writes.
    """

    store: str
    log_store: str
    put_if_absent: bool
    names: int
    writers: int
    seen_ms: int
    single_writer: bool


class LogStores:
    """Files that are written unless they are there, through the log store of each scheme; and many deleted at once."""

    def __init__(self, jvm: Any, engines: KernelEngines) -> None:
        self._vm, self._engines = jvm, engines

    def write_new(self, uri: str, lines: Sequence[str]) -> bool:
        """Write a file of some lines unless there is one; whether it was written."""
        provider = java_class(self._vm, "io.delta.kernel.defaults.internal.logstore.LogStoreProvider")
        content = java_class(self._vm, "java.util.ArrayList")()
        for line in lines:
            content.add(line)
        path = java_class(self._vm, "org.apache.hadoop.fs.Path")(uri)
        configuration = self._engines.configuration
        store = provider.getLogStore(configuration, uri.split(":", 1)[0])
        try:
            store.write(path, content.iterator(), False, configuration)
        except Py4JJavaError as error:
            if class_name(error) == "FileAlreadyExistsException":
                return False
            java = error.java_exception
            raise refusal(java, uri) or StatelakeError(
                f"{uri} could not be written ({class_name(error)}: {java.getMessage()})"
            ) from error
        return True

    def delete(self, directory: str, names: Sequence[str]) -> None:
        """Delete files of a directory, many with one request where the store can; what it refuses to, stays."""
        path_class = java_class(self._vm, "org.apache.hadoop.fs.Path")
        path = path_class(directory)
        deletion = path.getFileSystem(self._engines.configuration).createBulkDelete(path)
        try:
            at_once = deletion.pageSize()
            for start in range(0, len(names), at_once):
                files = java_class(self._vm, "java.util.ArrayList")()
                for name in names[start : start + at_once]:
                    files.add(path_class(join(directory, name)))
                deletion.bulkDelete(files)
        finally:
            deletion.close()


class StoreChecks:
    """See the module docstring.

    Args:
        root: URI of the state root, below which verdicts are written.
        single_writer: the caller vouches that nobody else writes, on any store.
        names: so many are raced for.
        writers: that race for each.
    """

    def __init__(
        self, root: str, java_context: Any, *, single_writer: bool, names: int = 50, writers: int = 4
    ) -> None:
        self._root, self._java_context, self._single_writer = root, java_context, single_writer
        self._names, self._writers = names, writers
        self._safe: set[str] = set()
        self._looking = Lock()

    def check_configured(self, uri: str) -> str:
        """Refuse a table whose log store is not known to be safe; the log store's class."""
        log_store = log_store_of(uri, self._java_context)
        check_log_store(uri, log_store, single_writer=self._single_writer)
        return log_store

    def check(self, uri: str, stores: LogStores) -> None:
        """Refuse a table on a store that loses commits; the first time, by a race.

        Raises:
            UnsafeStoreError: it does; a single writer is warned instead.
        """
        if is_local(uri):
            return
        store = store_name(uri)
        with self._looking:
            if store in self._safe:
                return
            log_store = self.check_configured(uri)
            verdict = self._known(store)
            if verdict is None or verdict.log_store != log_store:
                verdict = self._race(uri, log_store, stores)
            self._judge(uri, verdict)
            self._safe.add(store)

    def look_again(self, uri: str, stores: LogStores) -> Verdict:
        """Race on the store of a table, whatever is known of it.

        Raises:
            UnsafeStoreError: it loses commits; a single writer is warned instead.
        """
        if is_local(uri):
            raise ConfigurationError(
                f"{uri} is local: commits there are kept apart by a lock, and there is nothing to race for. "
                "Give the URI of a directory in a store"
            )
        with self._looking:
            verdict = self._race(uri, self.check_configured(uri), stores)
        self._judge(uri, verdict)
        return verdict

    def path_of(self, store: str) -> str:
        """Where the verdict on a store is written down."""
        digest = blake2b(
            f"{store} {PROCESS_STORES.access(urlparse(store).netloc).endpoint}".encode(), digest_size=4
        ).hexdigest()
        return join(self._root, _VERDICTS, f"{re.sub('[^a-z0-9]+', '-', store.lower())}-{digest}.json")

    def _judge(self, uri: str, verdict: Verdict) -> None:
        if verdict.put_if_absent:
            return
        lost = (
            f"{verdict.store} with {verdict.log_store} lets several writers create one file. If two runners meet, "
            "commits are lost silently"
        )
        if not self._single_writer:
            raise UnsafeStoreError(
                f"{uri}: {lost}. Use another store; or pass single_writer=True if only one process will ever write "
                f"there. This was seen once and is written down in {self.path_of(verdict.store)}: statelake setup "
                f"--store {uri} looks again"
            )
        _LOG.warning(
            "%s. It is used because single_writer=True says that only one process writes there", lost
        )

    def _known(self, store: str) -> Verdict | None:
        at = open_location(self.path_of(store))
        try:
            return Verdict(**at.read_json())
        except (FileNotFoundError, TypeError):  # none, or one of another version
            return None

    def _race(self, uri: str, log_store: str, stores: LogStores) -> Verdict:
        store, names, writers = store_name(uri), self._names, self._writers
        inside = self._root if store_name(self._root) == store else uri
        directory = join(inside, _RACES + uuid4().hex)
        _LOG.info("%s: %d writers race for %d names, to see whether one wins each", store, writers, names)
        try:
            fair = is_allowed(uri, log_store) and has_one_winner_each(directory, stores, names, writers)
        finally:
            with suppress(OSError, StatelakeError):
                open_location(directory).delete_directory()
        now_ms = store_clock.StoreClock(self._root).now_ms()
        verdict = Verdict(store, log_store, fair, names, writers, now_ms, self._single_writer)
        at = open_location(self.path_of(store))
        at.above().make_directory()
        at.write_whole(json.dumps(asdict(verdict)).encode())
        return verdict


def store_name(uri: str) -> str:
    """Scheme and bucket, or host, of a URI.

    Example:
        >>> store_name("s3a://bucket/a/table")
        's3a://bucket'
    """
    parsed = urlparse(uri)
    return f"{parsed.scheme}://{parsed.netloc}"


def has_one_winner_each(directory: str, stores: LogStores, names: int, writers: int) -> bool:
    """Have writers race for names in a directory; whether each has one winner, and holds what that one wrote."""
    open_location(directory).make_directory()  # log stores that rename want one
    together = Barrier(writers)

    def race(writer: int) -> list[bool]:
        won = []
        for name in range(names):
            together.wait()
            won.append(stores.write_new(join(directory, f"{name:020d}.json"), [_line(writer, name)]))
        return won

    def raced(writer: int) -> list[bool]:
        try:
            return race(writer)
        except BaseException:
            together.abort()  # the others wait for it
            raise

    racers: list[Future[list[bool]]] = [java_threads().submit(raced, writer) for writer in range(writers)]
    failures = [error for racer in racers if (error := racer.exception()) is not None]
    if failures:
        raise next((e for e in failures if isinstance(e, StatelakeError)), failures[0])
    won = [racer.result() for racer in racers]
    for name in range(names):
        winners = [writer for writer in range(writers) if won[writer][name]]
        content = open_location(join(directory, f"{name:020d}.json")).read()
        if len(winners) != 1 or content.decode().strip() != _line(winners[0], name):
            return False
    return True


def _line(writer: int, name: int) -> str:
    return json.dumps({"writer": writer, "name": name})
