"""Local copies in the life of a job: after every operation the state is that of a dict, and old copies are gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.canonical import key_hash
from state_engine.engine.context import EngineContext
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies
from state_engine.storage.stores.parquet_reading import OpenParquet
from tests.support.forced_copies import forced
from tests.support.tiny import Site, Sum


class Reminded(Sum):
    """Sums, and emits the sum when a timer of processing time fires, a second after each element."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        ctx.timer_service().register_processing_time_timer(
            ctx.timer_service().current_processing_time() + 1000
        )
        return super().process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield str(ctx.get_current_key()), -timestamp, self.total.value()

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))


class Life:
    """A job whose outputs are compared with a dict."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.site, self.batches = Site(directory, spark), 0
        self.totals: dict[str, int] = {}
        self.due: dict[str, int] = {}
        self.parallelism, self.max_parallelism = 2, 8

    def job(self) -> Any:
        job = self.site.job(Reminded(), parallelism=self.parallelism, max_parallelism=self.max_parallelism)
        job.compaction = None
        return job

    def run(self, *keys: int, times: int = 1) -> None:
        """Micro-batches that add one to keys, each a second later: the timers that were set before fire."""
        for _ in range(times):
            self.batches += 1
            before = self.site.outputs()
            clock = 10_000 * self.batches
            self.site.put({"k": [str(k) for k in keys], "v": [1] * len(keys)}, str(self.batches))
            self.site.engine().run(self.job(), clock=clock)
            expected = [(k, -at, self.totals[k]) for k, at in self.due.items()]
            for key in map(str, keys):
                self.totals[key] = self.totals.get(key, 0) + 1
                expected.append((key, 1, self.totals[key]))
            self.due = {str(k): clock + 1000 for k in keys}
            new = list(self.site.outputs())
            for row in before:
                new.remove(row)
            assert sorted(new, key=repr) == sorted(expected, key=repr)


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[LocalCopies]:
    with forced(tmp_path / "copies") as there:
        yield there


@pytest.fixture
def life(tmp_path: Path, spark: SparkSession, copies: LocalCopies) -> Life:
    life = Life(tmp_path, spark)
    life.run(*range(40))
    life.site.engine().compact(life.job())
    return life


def stored_in(copies: LocalCopies) -> set[Path]:
    return {path for path in copies.place.rglob("*.blocks") if path.is_file()}


def test_a_job_goes_on_as_a_dict_whatever_is_done_with_it(life: Life, copies: LocalCopies) -> None:
    assert stored_in(copies) == set()
    life.run(1, 2)
    assert stored_in(copies) == set()  # the base was read for the first time
    life.run(2, 3, times=2)
    first = stored_in(copies)
    assert first
    engine = life.site.engine()
    head = engine.checkpoints("tiny")[-1].checkpoint_id
    totals, due = dict(life.totals), dict(life.due)

    engine.compact(life.job())
    life.run(*range(20), times=3)
    second = stored_in(copies)
    assert second
    assert not first & second  # of the base before, none is left

    engine.restore(life.job(), checkpoint_id=head)
    life.totals, life.due = totals, due
    # the rows that were given back come again, with the next ones
    again = 3
    for row in range(20):
        life.totals[str(row)] += again
    life.batches += 1
    life.site.put({"k": ["39"], "v": [1]}, str(life.batches))
    life.site.engine().run(life.job(), clock=10_000 * life.batches)
    life.totals["39"] += 1
    life.due = {
        **{str(k): 10_000 * life.batches + 1000 for k in range(20)},
        "39": 10_000 * life.batches + 1000,
    }
    life.run(1, 39, times=2)
    assert not stored_in(copies) & second

    life.parallelism = 3
    engine.rescale(life.job(), parallelism=3)
    life.run(1, 20, 39, times=2)

    life.max_parallelism = 16
    engine.rescale(life.job(), max_parallelism=16)
    life.run(*range(0, 40, 3), times=3)
    numbers = {int(path.name.split("-")[0]) for path in stored_in(copies)}
    assert max(numbers) >= 8  # those of sixteen key groups


def test_a_base_that_is_gone_is_missed_though_there_are_copies(life: Life, copies: LocalCopies) -> None:
    life.run(*range(40), times=3)
    assert stored_in(copies)
    bases = [*(life.site.directory / "root/tiny/operators/sums/base").rglob("*.parquet")]
    assert bases
    for base in bases:
        base.unlink()
    with pytest.raises(MissingFilesError, match="does not exist"):
        life.run(1)


def test_erased_keys_and_vacuumed_files_leave_no_copies(life: Life, copies: LocalCopies) -> None:
    life.run(*range(40), times=3)
    assert stored_in(copies)
    engine = life.site.engine()
    engine.state_processor(life.job()).erase_keys({"k": "7"}, dry_run=True)
    engine.vacuum(life.job(), dry_run=True)
    assert stored_in(copies)
    engine.state_processor(life.job()).erase_keys({"k": "7"})
    assert stored_in(copies) == set()
    life.totals.pop("7")
    life.due.pop("7")
    life.run(*range(40), times=2)
    assert stored_in(copies)
    engine.vacuum(life.job())
    assert stored_in(copies) == set()


def test_after_a_purge_no_copy_has_the_key(life: Life, copies: LocalCopies) -> None:
    life.run(*range(40), times=3)
    group = f"{key_hash(('7',)) % life.max_parallelism}-"
    before = {path.name for path in stored_in(copies) if path.name.startswith(group)}
    assert before
    engine = life.site.engine()
    engine.state_processor(life.job()).erase_keys({"k": "7"}, purge=True)
    life.totals.pop("7")
    life.due.pop("7")
    life.run(*range(8, 40), times=3)
    after = {path.name for path in stored_in(copies) if path.name.startswith(group)}
    assert after
    assert not before & after


def test_bases_are_not_decoded_again(
    life: Life, copies: LocalCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.run(*range(40), times=2)
    opened, original = [], OpenParquet.__init__

    def watched(file: OpenParquet, uri: str, *args: Any, **more: Any) -> None:
        opened.append(uri)
        original(file, uri, *args, **more)

    monkeypatch.setattr(OpenParquet, "__init__", watched)
    life.run(1, 2, 3)
    assert opened
    assert not [uri for uri in opened if "/base/" in uri]


def test_micro_batches_keep_copies_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STATELAKE__LOCAL_COPIES__DIRECTORY", raising=False)
    (tmp_path / "statelake.toml").write_text('[local_copies]\ndirectory = "/fast/copies"\nmax_size = "3g"\n')
    assert EngineContext(tmp_path).local_copies == LocalCopies("/fast/copies", 3 << 30)
    monkeypatch.setenv("STATELAKE__LOCAL_COPIES__MAX_SIZE", "0")
    assert EngineContext(tmp_path).local_copies == LocalCopies("/fast/copies", 0)
    assert EngineContext(tmp_path, local_copies=NO_COPIES).local_copies == NO_COPIES
