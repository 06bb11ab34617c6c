"""Rescale between micro-batches: parallelism by one row, max parallelism by bases that are written meanwhile."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DataStream,
    KeyedProcessFunction,
    StatefulJob,
    Types,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import (
    ConfigurationError,
    RescaleError,
    StaleParentError,
    StateMigrationError,
)
from state_engine.core.keys.key_groups import (
    KeyGroupRange,
    assign_to_key_group,
    key_group_range,
    subtask_for_key_group,
)
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.operations import max_parallelism
from tests.operations.test_compaction import BATCHES, GROUPS, Everywhere, clocks
from tests.support.pipelines import Pipeline
from tests.support.small_job import path_of
from tests.support.tiny import Site

pytestmark = [pytest.mark.spark, pytest.mark.long]

KEYS = [f"key{i}" for i in range(300)]


def one_of_each(site: Site, name: str) -> None:
    site.put({"k": KEYS, "v": [1] * len(KEYS)}, name)


def keyed_writes(operators: Path) -> tuple[int, int, int]:
    """Keyed state: commits and bytes in Delta's logs, and files on disk."""
    logs = [log for log in operators.glob("*/*/_delta_log/*.json") if log.stem.isdigit()]
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    sizes = sum(action["add"]["size"] for action in actions if "add" in action)
    return len(logs), sizes, len(list(operators.glob("*/*/**/*.parquet")))


def head(site: Site) -> CheckpointRow:
    return site.engine().checkpoints("tiny")[-1]


def check_keys_on_their_subtasks(site: Site, *, parallelism: int, groups: int) -> None:
    """The last micro-batch, which touched every key, wrote each key once, in the file of its predicted subtask."""
    (operator,) = head(site).operators
    assert (operator.parallelism, operator.max_parallelism) == (parallelism, groups)
    table = site.directory / "root" / "tiny" / "operators" / "sums" / "changelog"
    written: Counter[str] = Counter()
    for file in operator.changelog:
        for row in pq.ParquetFile(table / file.path).read().to_pylist():
            key, group = row["key"]["k"], row["key_group"]
            assert group == assign_to_key_group(key, groups)
            assert file.subtask == subtask_for_key_group(groups, parallelism, group)
            assert group in key_group_range(groups, parallelism, file.subtask)
            written[key] += 1
    assert written == Counter(KEYS)


# -- parallelism -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sequence",
    [
        (1, 4, 2),
        pytest.param((1, 4, 2, 7, 128), marks=pytest.mark.long),
        pytest.param((15, 77, 15), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_keys_are_where_they_belong_and_no_byte_of_their_state_is_written(
    tmp_path: Path, spark: SparkSession, sequence: tuple[int, ...]
) -> None:
    site = Site(tmp_path, spark)
    operators = tmp_path / "root" / "tiny" / "operators"
    for at, parallelism in enumerate(sequence):
        job = site.job(parallelism=sequence[0], max_parallelism=128)
        if at:
            before = keyed_writes(operators)
            done = site.engine().rescale(job, parallelism=parallelism)
            assert (done.changes, done.parallelism) == (True, {"sums": parallelism})
            assert keyed_writes(operators) == before
        one_of_each(site, f"{at}")
        site.engine().run(job)
        check_keys_on_their_subtasks(site, parallelism=parallelism, groups=128)
    assert keyed_writes(operators)[1] > 0
    assert site.state() == dict.fromkeys(KEYS, len(sequence))


# -- max parallelism ---------------------------------------------------------------------------------------------------


def after_folding(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> list[Any]:
    """Call a hook after each base is written and before its row is committed; the key groups written."""
    written, groups = max_parallelism.write_base, list[Any]()

    def folded(*arguments: Any, **options: Any) -> Any:
        files = written(*arguments, **options)
        groups.append(options["key_groups"])
        happens()
        return files

    monkeypatch.setattr(max_parallelism, "write_base", folded)
    return groups


def test_all_kinds_of_state_are_the_same_and_micro_batches_go_on(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, site = Everywhere(tmp_path / "plain", spark), Everywhere(tmp_path / "site", spark)
    for number in range(2):
        plain.run(BATCHES[number], clocks(number))
        site.run(BATCHES[number], clocks(number))
    meanwhile = [BATCHES[2], [("k3", "add", 7)]]
    for batch in meanwhile:
        plain.run(batch, clocks(2))

    def happens() -> None:
        if meanwhile:
            site.run(meanwhile.pop(0), clocks(2))

    with monkeypatch.context() as patch:
        rounds = after_folding(patch, happens)
        assert site.engine.rescale(site.job(GROUPS), max_parallelism=12).changes
    assert [r.kind for r in path_of(site.engine, "small")] == ["checkpoint"] * 4 + ["rescale"]
    (operator,) = path_of(site.engine, "small")[-1].operators
    assert (operator.max_parallelism, [b.checkpoint_id for b in operator.bases]) == (12, [4])
    assert site.states() == plain.states()

    changed = assign_to_key_group("k3", 12)
    assert (len(rounds), rounds[0], rounds[2]) == (3, None, [KeyGroupRange(changed, changed)])
    used = site.used()
    assert all(f.is_base for f in used)
    listed = DeltaTable(str(site.directory / "root/small/operators/sums/base"))
    assert sorted(f.listed.uri[7:] for f in used) == sorted(listed.file_uris())

    for one in (plain, site):
        one.run(BATCHES[3], clocks(3), max_parallelism=GROUPS if one is plain else 12)
    assert site.states() == plain.states()
    assert site.outputs() == plain.outputs()


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """After one micro-batch with two subtasks and 128 key groups."""
    site = Site(tmp_path, spark)
    one_of_each(site, "0")
    site.engine().run(site.job())
    return site


def test_keys_move_to_their_new_key_groups(site: Site) -> None:
    saved = site.engine().savepoints("tiny").create("before")
    planned = site.engine().rescale(site.job(), max_parallelism=200, parallelism=7, dry_run=True)
    done = site.engine().rescale(site.job(), max_parallelism=200, parallelism=7)
    assert planned == replace(done, committed_id=None)
    assert (done.changes, done.parallelism, done.max_parallelism) == (True, {"sums": 7}, {"sums": 200})
    assert site.state() == dict.fromkeys(KEYS, 1)
    base = DeltaTable(str(site.directory / "root/tiny/operators/sums/base")).to_pyarrow_table().to_pylist()
    assert {r["key"]["k"]: r["key_group"] for r in base} == {k: assign_to_key_group(k, 200) for k in KEYS}
    assert len(base) == len(KEYS)

    one_of_each(site, "1")
    with pytest.raises(StateMigrationError, match="has 200 key groups, the job declares max_parallelism=128"):
        site.engine().run(site.job())
    new = site.job(max_parallelism=200)
    site.engine().run(new)
    check_keys_on_their_subtasks(site, parallelism=7, groups=200)
    assert not site.engine().rescale(new, max_parallelism=200).changes
    assert site.engine().rescale(new, max_parallelism=200, parallelism=3).changes
    assert not head(site).operators[0].base_files

    # what was saved before has its own number, here and elsewhere
    other = Site(site.directory / "other", site.spark)
    with pytest.raises(StateMigrationError, match="in 128 key groups, job 'tiny' declares"):
        other.engine().restore(other.job(max_parallelism=200), savepoint=saved.path)
    other.engine().restore(other.job(), savepoint=saved.path)
    assert other.state() == dict.fromkeys(KEYS, 1)
    site.engine().restore(site.job(), savepoint="before")
    site.engine().run(site.job())
    check_keys_on_their_subtasks(site, parallelism=2, groups=128)
    assert site.state() == dict.fromkeys(KEYS, 2)


def test_a_micro_batch_that_is_under_way_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = CheckpointCoordinator.stage

    def late(self: Any, attempt: Any) -> Any:
        staged = stage(self, attempt)
        assert site.engine().rescale(site.job(), max_parallelism=256).changes
        return staged

    outputs = site.outputs()
    one_of_each(site, "1")
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "stage", late)
        with pytest.raises(StaleParentError):
            site.engine().run(site.job())
    assert site.outputs() == outputs
    site.engine().run(site.job(max_parallelism=256))
    check_keys_on_their_subtasks(site, parallelism=2, groups=256)
    assert site.state() == dict.fromkeys(KEYS, 2)


def test_it_gives_up_after_some_rounds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = 0

    def batch() -> None:
        nonlocal fed
        fed += 1
        one_of_each(site, f"{fed}")
        site.engine().run(site.job())

    with monkeypatch.context() as patch:
        after_folding(patch, batch)
        with pytest.raises(StaleParentError, match=r"committed 5 times .* Pause the schedule"):
            site.engine().rescale(site.job(), max_parallelism=256)
    assert (fed, head(site).kind, head(site).operators[0].bases) == (5, "checkpoint", [])
    assert site.state() == dict.fromkeys(KEYS, 6)


def test_it_is_reported_when_the_head_goes_elsewhere(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one_of_each(site, "1")
    site.engine().run(site.job())
    with monkeypatch.context() as patch:
        after_folding(patch, lambda: site.engine().restore("tiny", checkpoint_id=1))
        with pytest.raises(StaleParentError, match="another operation moved the head"):
            site.engine().rescale(site.job(), max_parallelism=256)
    assert head(site).kind == "restore"
    assert site.state() == dict.fromkeys(KEYS, 1)


def test_what_cannot_be_is_refused_before_anything_is_written(site: Site) -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("operator 'sums': parallelism 2 is greater than max parallelism 1", {"max_parallelism": 1}),
        ("parallelism 257 is greater than max parallelism 256", {"max_parallelism": 256, "parallelism": 257}),
        ("max_parallelism must be 1 … 32768, got 40000", {"max_parallelism": 40000}),
    ]
    for message, asked in refused:
        with pytest.raises(ConfigurationError, match=message):
            site.engine().rescale(site.job(), **asked)
    base = site.directory / "root" / "tiny" / "operators" / "sums" / "base"
    assert (base.exists(), head(site).checkpoint_id) == (False, 1)


def test_a_parallelism_in_force_counts_not_only_one_that_is_declared(site: Site) -> None:
    site.engine().rescale(site.job(), parallelism=64)
    with pytest.raises(ConfigurationError, match="parallelism 64 is greater than max parallelism 32"):
        site.engine().rescale(site.job(), max_parallelism=32)
    done = site.engine().rescale(site.job(), max_parallelism=32, parallelism=4)
    assert (done.changes, done.parallelism, done.max_parallelism) == (True, {"sums": 4}, {"sums": 32})


class RawBytes(KeyedProcessFunction, CheckpointedFunction):
    """Keeps bytes that the engine does not interpret."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def initialize_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield value

    def snapshot_state(self, context: Any) -> None:
        if self.kind == "raw_keyed":
            context.raw_keyed_state.start_key_group(next(iter(context.raw_keyed_state.get_key_group_list())))
            context.raw_keyed_state.write(b"x")
        else:
            context.raw_operator_state.write(b"x")


@pytest.mark.parametrize("kind", ["raw_keyed", "raw_operator"])
def test_raw_state_refuses_another_max_parallelism(tmp_path: Path, spark: SparkSession, kind: str) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([1, 2], Types.INT(), name="numbers")
        return {"out": numbers.key_by("value").process(RawBytes(kind), uid="raw", output_type=int)}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run()
    with pipeline.engine() as engine:
        with pytest.raises(RescaleError, match=rf"operator 'raw': it has raw state \({kind}\)"):
            engine.rescale(pipeline.job(), max_parallelism=256)
        if kind == "raw_operator":
            with pytest.raises(RescaleError, match="its parallelism cannot become 3"):
                engine.rescale(pipeline.job(), parallelism=3)
        assert len(engine.checkpoints("pipeline")) == 1


# -- any sequence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.long) for n in range(1, 6)]])
def test_any_sequence_of_rescales_gives_the_state_of_one_subtask(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    site = Site(tmp_path, spark)
    totals: dict[str, int] = {}
    groups = 128
    for number in range(6 if seed else 3):
        keys, values = chance.choices(KEYS, k=100), chance.choices(range(-9, 10), k=100)
        site.put({"k": keys, "v": values}, f"{number}")
        outputs = []
        for key, value in zip(keys, values, strict=True):
            totals[key] = totals.get(key, 0) + value
            outputs.append((key, value, totals[key]))
        seen = Counter(site.outputs())
        site.engine().run(site.job(max_parallelism=groups))
        assert Counter(site.outputs()) - seen == Counter(outputs)
        assert site.state() == totals
        asked: dict[str, Any] = {"parallelism": chance.choice([1, 2, 3, 5, 8])}
        if chance.random() < 0.5:
            groups = asked["max_parallelism"] = chance.choice([8, 13, 60, 128, 200])
        site.engine().rescale(site.job(max_parallelism=128), **asked)
    assert site.state() == totals
