"""What threads of a process share: the list of it is that of the code, and threads may use all of it at once."""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import ConfigurationError
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.keys import key_form
from state_engine.core.keys.key_form import KeyForm
from state_engine.core.types.row import default_names
from state_engine.core.types.types_namespace import Types
from state_engine.spark.code_digests import code_digest
from state_engine.spark.loaded_modules import module_version
from state_engine.spark.tasks import attempt_here
from state_engine.storage.stores import durability
from state_engine.storage.stores.files import write_parquet
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.kept_files import KeptFiles
from state_engine.storage.stores.object_stores import KnownStores, StoreAccess
from state_engine.storage.stores.parquet_reading import open_parquet

ENGINE = Path(__file__).parents[1] / "state_engine"
PAGE = (ENGINE.parent / "docs" / "architecture.md").read_text()
SECTION = PAGE.partition("## Threads, and what a process keeps")[2].partition("\n## ")[0]
STARTED, KEPT = SECTION.split("These values")

# -- the list ----------------------------------------------------------------------------------------------------------


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ENGINE.rglob("*.py")):
        yield str(path.relative_to(ENGINE)), ast.parse(path.read_text())


def _called(node: ast.AST) -> str:
    """The name of what is called; empty where nothing is."""
    made = node.func if isinstance(node, ast.Call) else node
    made = made.value if isinstance(made, ast.Subscript) else made
    return made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""


def _is_empty(value: ast.expr) -> bool:
    return (isinstance(value, ast.Dict) and not value.keys) or (
        isinstance(value, ast.List) and not value.elts
    )


def _kept_by(module: ast.Module) -> set[str]:
    """Names of a module that hold what changes, or what is of a thread."""
    names: set[str] = set()
    makers = {
        "OrderedDict",
        "set",
        "dict",
        "ContextVar",
        "Lock",
        "RLock",
        "count",
        "local",
        "KeptFiles",
        "KnownStores",
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            names.update(node.names)
        if isinstance(node, ast.FunctionDef):
            names |= {node.name for one in node.decorator_list if _called(one) in ("cache", "lru_cache")}
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
            made = isinstance(node.value, ast.Call) and _called(node.value) in makers
            if isinstance(target, ast.Name) and (made or _is_empty(node.value)):
                names.add(target.id)
    return names - {"__all__", "NO_KEY"}  # NO_KEY is compared by identity


def test_all_that_a_process_keeps_is_listed() -> None:
    listed = {
        file: set(re.findall(r"`(\w+)`", names))
        for file, names in re.findall(r"`([\w/]+\.py)` \(([^)]+)\)", KEPT)
    }
    assert listed == {file: names for file, module in _modules() if (names := _kept_by(module))}


def test_all_threads_are_listed() -> None:
    def starts(module: ast.Module) -> bool:
        imported = {a.name for n in ast.walk(module) if isinstance(n, ast.ImportFrom) for a in n.names}
        return bool({"ThreadPoolExecutor", "ProcessPoolExecutor", "Thread"} & imported)

    listed = set(re.findall(r"^\| `([\w/]+\.py)`", STARTED, re.MULTILINE))
    assert listed == {file for file, module in _modules() if starts(module)} | {
        "storage/stores/in_threads.py"
    }


# -- threads -----------------------------------------------------------------------------------------------------------

Use = Callable[[int], None]
"""What a thread does again and again, given its number."""


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _kept_files(directory: Path, _: pytest.MonkeyPatch) -> Use:
    files = [write_parquet(pa.table({"n": range(n)}), f"file://{directory}/{n}.parquet") for n in range(1, 9)]
    kept = KeptFiles(max_bytes=sum(f.bytes for f in files))

    def use(_: int) -> None:
        file = random.choice(files)
        opened = kept.opened(file.uri, (), lambda: open_parquet(file.uri))
        assert f"/{opened.read().num_rows}.parquet" in file.uri
        assert opened.limits("n") == [(0, opened.metadata.num_rows - 1)]
        assert kept.bytes >= 0
        if random.random() < 0.1:
            kept.keep_only([file.uri], below=[f"file://{directory}"])

    return use


def _keys(_: Path, __: pytest.MonkeyPatch) -> Use:
    form = KeyForm((Types.INSTANT(),), remembered=2)

    def use(_: int) -> None:
        at = datetime(2024, 1, 1 + random.randrange(5), tzinfo=UTC)
        assert form(at) == form._made(at)

    return use


def _folds(_: Path, __: pytest.MonkeyPatch) -> Use:
    rows = [[n] for n in range(40)]
    total: IncrementalFold[list[int], int] = IncrementalFold(
        lambda so_far, new: so_far + sum(n for [n] in new), 0
    )

    def use(_: int) -> None:
        at = random.randrange(len(rows))
        assert total.of(rows[:at]) == sum(range(at))

    return use


def _synced(directory: Path, _: pytest.MonkeyPatch) -> Use:
    durability.forget()

    def use(thread: int) -> None:
        file = directory / str(random.randrange(3)) / str(thread)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
        durability.sync_files([str(file)], below=str(directory))
        durability.forget()

    return use


def _attempts(_: Path, __: pytest.MonkeyPatch) -> Use:
    ids: set[int] = set()

    def use(_: int) -> None:
        one = attempt_here(0).attempt_id
        assert one not in ids
        ids.add(one)

    return use


def _stores(_: Path, __: pytest.MonkeyPatch) -> Use:
    stores = KnownStores()
    ways = [StoreAccess(endpoint=f"http://localhost:{port}", profile=f"p{port}") for port in (1, 2)]
    before = os.environ.get("AWS_PROFILE")

    def use(thread: int) -> None:
        bucket, way = f"bucket-{thread % 2}", ways[thread % 2]
        stores.describe(way, bucket=bucket)
        stores.file_system(bucket)
        assert stores.access(bucket).endpoint == way.endpoint
        with pytest.raises(ConfigurationError, match="in another way already"):
            stores.describe(ways[1 - thread % 2], bucket=bucket)
        assert os.environ.get("AWS_PROFILE") in {before, "p1", "p2"}

    return use


def _code(_: Path, __: pytest.MonkeyPatch) -> Use:
    version, digest = module_version(key_form.__name__), code_digest(_code.__code__)

    def use(_: int) -> None:
        assert (module_version(key_form.__name__), code_digest(_code.__code__)) == (version, digest)
        assert default_names(random.randrange(9))[:1] in ((), ("f0",))

    return use


SHARED: dict[str, Callable[[Path, pytest.MonkeyPatch], Use]] = {
    "files that are kept": _kept_files,
    "keys that are remembered": _keys,
    "folds that go on": _folds,
    "directories that were synced": _synced,
    "numbers of attempts": _attempts,
    "ways to stores": _stores,
    "loaded code": _code,
}
"""By what threads share: makes what each of them does with it. Versions of tables are in
``tests/sources/test_file_plan.py``; threads that are kept are below."""


@pytest.mark.parametrize("shared", SHARED)
def test_threads_may_use_it_at_once(shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = SHARED[shared](tmp_path, monkeypatch)

    def many(thread: int) -> None:
        for _ in range(400):
            use(thread)

    with _switching_often(), ThreadPoolExecutor(3) as threads:
        list(threads.map(many, range(3)))


def name_of_thread(_: Any) -> str:
    return threading.current_thread().name


def test_results_come_in_the_order_of_the_items_and_calls_run_side_by_side() -> None:
    together = Barrier(4)

    def one(number: int) -> int:
        together.wait(timeout=20)  # would break, were there fewer threads
        return -number

    assert list(in_threads(one, range(4))) == [0, -1, -2, -3]
    assert list(in_threads(name_of_thread, [0])) == [threading.current_thread().name]


def test_results_are_those_of_the_caller_alone() -> None:
    class Result:
        pass

    given: list[weakref.ref[Result]] = []
    for result in in_threads(lambda _: Result(), range(50)):
        given.append(weakref.ref(result))
        assert sum(one() is not None for one in given) <= 10  # a thread may still hold its last one


def test_threads_are_kept() -> None:
    threads = {one for _ in range(20) for one in in_threads(lambda _: threading.current_thread(), range(4))}
    assert len(threads) <= 8


def test_calls_that_have_begun_go_on_to_their_end_and_others_are_not_made() -> None:
    begun, ended, called = Event(), Event(), []

    def one(number: int) -> None:
        called.append(number)
        if number == 0:
            begun.wait(20)
            raise ValueError("the first")
        if number == 1:
            begun.set()
            sleep(0.2)
            ended.set()
        sleep(0.01)
        raise ValueError("a later one")

    with pytest.raises(ValueError, match="the first"):
        list(in_threads(one, range(1_000)))
    assert ended.is_set()
    assert len(called) < 1_000
    assert list(in_threads(abs, [-1, -2])) == [1, 2]


def test_calls_inside_of_calls_end() -> None:
    def outer(number: int) -> list[int]:
        return list(in_threads(lambda inner: number * inner, range(3)))

    done: list[list[int]] = []
    thread = Thread(target=lambda: done.extend(in_threads(outer, range(20))), daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert done == [[0, number, 2 * number] for number in range(20)]


def test_nobody_waits_for_what_others_gave_the_threads_to_do() -> None:
    """Else two would wait for each other: one for a thread, and all threads for what only he can give."""
    given = Event()
    others = [Thread(target=lambda: list(in_threads(lambda _: given.wait(20), range(20)))) for _ in range(2)]
    for other in others:
        other.start()
    sleep(0.1)  # all threads wait now
    try:
        assert list(in_threads(abs, [-1, -2, -3])) == [1, 2, 3]
        assert not given.is_set()
    finally:
        given.set()
        for other in others:
            other.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    list(in_threads(abs, [1, 2]))
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(0 if list(in_threads(abs, [-1, -2])) == [1, 2] else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
