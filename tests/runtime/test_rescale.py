"""Rescale between micro-batches: parallelism by one row, max parallelism by bases that are written meanwhile."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    RuntimeContext,
    StatefulJob,
    Types,
)
from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.errors import (
    ConfigurationError,
    RescaleError,
    StaleParentError,
    StateMigrationError,
)
from state_engine.core.key_groups import assign_to_key_group, key_group_range, subtask_for_key_group
from state_engine.runtime import max_parallelism
from state_engine.runtime.coordinator import CheckpointCoordinator
from state_engine.runtime.operations import Operations
from tests.runtime.pipelines import Pipeline
from tests.runtime.small_job import path_of
from tests.runtime.test_compaction import BATCHES, GROUPS, Everywhere, clocks
from tests.runtime.tiny import Site

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

KEYS = [f"key{i}" for i in range(300)]


def one_of_each(site: Site, name: str) -> None:
    """A row for every key."""
    site.put({"k": KEYS, "v": [1] * len(KEYS)}, name)


def keyed_writes(operators: Path) -> tuple[int, int, int]:
    """Of keyed state: commits and bytes that Delta's logs tell, and files on disk."""
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
            row = site.engine().rescale(job, parallelism=parallelism)
            assert row is not None
            assert row.operators[0].parallelism == parallelism
            assert keyed_writes(operators) == before
        one_of_each(site, f"{at}")
        site.engine().run(job)
        check_keys_on_their_subtasks(site, parallelism=parallelism, groups=128)
    assert keyed_writes(operators)[1] > 0
    assert site.state() == dict.fromkeys(KEYS, len(sequence))


SPLIT = ([0, 1, 2, 3], [10, 11, 12])
ALL = [*SPLIT[0], *SPLIT[1]]
RULES = {"limit": 7}


class Preset(ProcessFunction, CheckpointedFunction):
    """Has a state of every scheme, filled when it is new, and notes what each subtask is given."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("a_split", int))
        self.shared = store.get_union_list_state(ListStateDescriptor("b_shared", int))
        self.rules = store.get_broadcast_state(MapStateDescriptor("c_rules", str, int))
        self.given = store.get_list_state(ListStateDescriptor("z_given", str))
        self.is_new = not context.is_restored()

    def open(self, runtime_context: RuntimeContext) -> None:
        subtask = runtime_context.get_index_of_this_subtask()
        if self.is_new:
            self.split.update(SPLIT[subtask])
            self.shared.update(SPLIT[subtask])
            self.rules.put_all(RULES)
        shared = sorted(self.shared.get())
        self.given.update([json.dumps([subtask, list(self.split.get()), shared, dict(self.rules.items())])])
        if shared == ALL:  # a union list that everyone writes back would grow
            self.shared.update(ALL[subtask :: runtime_context.get_number_of_parallel_subtasks()])

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield value

    def snapshot_state(self, context: Any) -> None:
        pass


def test_operator_state_is_handed_out_by_its_scheme(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection(range(9), Types.INT(), name="numbers", max_rows_per_batch=1)
        lists = numbers.process(Preset(), uid="lists", output_type=int)
        return {"out": lists, "same": numbers.process(Preset(), uid="others", output_type=int)}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)

    def run() -> dict[str, list[Any]]:
        """One micro-batch; by operator, what each subtask was given: even-split, union and broadcast state."""
        pipeline.run(max_batches=1)
        with pipeline.engine() as engine:
            refs = engine.checkpoints("pipeline")[-1].operator_state
        table = DeltaTable(str(tmp_path / "root" / "pipeline" / "operator_state")).to_pyarrow_table()
        notes = {
            (row["operator"], row["write_id"], row["subtask"]): json.loads(json.loads(row["value"]))
            for row in table.to_pylist()
            if row["state"] == "z_given"
        }
        found: dict[str, list[Any]] = {}
        for ref in refs:
            # a list that did not change lies where an earlier attempt wrote it
            for part in (p for state in ref.states if state.name == "z_given" for p in state.parts):
                subtask, *given = notes[ref.operator, part.write_id, part.subtask]
                assert subtask == part.subtask
                found.setdefault(ref.operator, []).append(given)
        return found

    own = [[part, part, RULES] for part in SPLIT]
    assert run() == {"lists": own, "others": own}
    vectors = {
        3: [[0, 1, 2], [3, 10], [11, 12]],
        4: [[0, 1], [2, 3], [10, 11], [12]],
        5: [[0, 1], [2, 3], [10], [11], [12]],
    }
    for parallelism, split in vectors.items():
        with pipeline.engine() as engine:
            engine.rescale(pipeline.job(), parallelism={"lists": parallelism})
        # the other operator's lists stay what they are
        assert run() == {"lists": [[part, ALL, RULES] for part in split], "others": own}
    # a mere boundary hands nothing out: each gets what it kept of the union list
    kept = [[part, ALL[i::5], RULES] for i, part in enumerate(vectors[5])]
    assert run() == {"lists": kept, "others": own}
