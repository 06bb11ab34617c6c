"""Random histories from topic to topic: whatever happens, readers of committed records see what a model says.

Between runs records come, in transactions that commit or are aborted, and outside of any; partitions are added. Runs
die at any step of a publish. The job is restored with ``outputs="keep"``, replayed and promoted, rescaled and
compacted, and the broker is killed, also in the middle of a commit. The model knows which record has which offset,
because it counts them itself, and asks checkpoints only for where they cut.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import KafkaSink, KafkaSource, StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History as Rows
from state_engine.core.errors import StatelakeError
from state_engine.sources.kafka.offset_ranges import OffsetRange, recorded_ranges
from state_engine.sources.source_positions import SourcePositions
from state_engine.spark.kafka.clients import TransactionalProducer
from state_engine.storage.layout import JobLayout
from tests.kafka.kafka_runner import OUT, Counts
from tests.kafka.topics import Topics
from tests.support.killed import Killed

pytestmark = pytest.mark.timeout(1800)
STEPS = 14
LIMIT = 30
"""Offsets of a batch."""
NAMES = ("a", "b", "c", "d", "e")
Record = tuple[int, str]
Output = tuple[int, int]
"""Id of a record, and how many of its name had come."""


@dataclass
class Model:
    """What is in the topic that the job reads."""

    partitions: list[list[Record | None]] = field(default_factory=lambda: [[]])
    sent: int = 0

    def records(self, chance: random.Random) -> list[Record]:
        """New ones, a few."""
        first, self.sent = self.sent, self.sent + chance.randint(1, 12)
        return [(number, chance.choice(NAMES)) for number in range(first, self.sent)]

    def own_outputs(
        self, ranges: dict[int, list[OffsetRange]], rows: Rows
    ) -> dict[int, list[tuple[str, Output]]]:
        """The outputs of each checkpoint, by name; everything is consumed, and nothing of it twice on a path."""
        places: dict[int | None, dict[int, int]] = {None: {}}
        counts: dict[int | None, Counter[str]] = {None: Counter()}
        own: dict[int, list[tuple[str, Output]]] = defaultdict(list)
        for number, row in rows.items():
            place, count = dict(places[row.parent_id]), Counter(counts[row.parent_id])
            assert sum(one.size for one in ranges[number]) <= LIMIT
            for one in sorted(ranges[number], key=lambda one: one.partition):
                assert one.start == place.get(one.partition, 0), (
                    f"checkpoint {number}, {one}: a gap or a repeat"
                )
                place[one.partition] = one.end
                for record, name in filter(None, self.partitions[one.partition][one.start : one.end]):
                    count[name] += 1
                    own[number].append((name, (record, count[name])))
            places[number], counts[number] = place, count
        assert rows.head is not None
        reached = {number: end for number, end in places[rows.head.checkpoint_id].items() if end}
        assert reached == {number: len(there) for number, there in enumerate(self.partitions) if there}
        return own

    def outputs(self, ranges: dict[int, list[OffsetRange]], rows: Rows) -> dict[str, list[Output]]:
        """What each name has in the topic that the job writes, when all checkpoints have been published."""
        own, published = self.own_outputs(ranges, rows), set[int]()
        outputs: dict[str, list[Output]] = defaultdict(list)
        for number, row in rows.items():
            # a branch sends nothing before it is promoted
            for one in sorted(rows.ids_to(number) - published) if row.branch == MAIN else ():
                published.add(one)
                for name, output in own[one]:
                    outputs[name].append(output)
        return dict(outputs)


class World:
    """A job from a topic to a topic, and all that happens to it."""

    def __init__(self, spark: SparkSession, topics: Topics, directory: Path, chance: random.Random) -> None:
        self.spark, self.topics, self.directory, self.chance = spark, topics, directory, chance
        self.given, self.out = topics.new(), topics.new(partitions=2)
        self.model, self.done = Model(), list[str]()

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def job(self) -> StatefulJob:
        job = StatefulJob("counts", parallelism=2, max_parallelism=8)
        source = KafkaSource(
            self.topics.servers, self.given, schema="id bigint, name string", max_offsets_per_batch=LIMIT
        )
        counts = job.source("events", source).key_by("name").process(Counts(), uid="counts", output_type=OUT)
        rows = self.chance.choice((2, 5, 100))
        counts.sink(
            "out", KafkaSink(self.topics.servers, self.out, key=["name"], max_rows_per_transaction=rows)
        )
        return job

    # -- what happens ----------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Records for some partitions: transactions that commit or are aborted, and records outside of any."""
        with self.topics.producer(f"{self.given}-feed") as producer:
            for _ in range(self.chance.randint(1, 4)):
                number = self.chance.randrange(len(self.model.partitions))
                end = self.chance.choice(("commitTransaction", "commitTransaction", "abortTransaction"))
                records = self.model.records(self.chance)
                producer.beginTransaction()
                for record in records:
                    self.topics.give(producer, self.given, None, _value(record), number)
                producer.flush()
                getattr(producer, end)()
                kept = records if end == "commitTransaction" else [None] * len(records)
                self.model.partitions[number] += [
                    *kept,
                    None,
                ]  # behind them stands the marker of the transaction
        number, records = self.chance.randrange(len(self.model.partitions)), self.model.records(self.chance)
        self.topics.send(self.given, *[(None, _value(one)) for one in records], partition=number)
        self.model.partitions[number] += records

    def run(self) -> None:
        """One micro-batch, or more."""
        with self.engine() as engine:
            engine.run(self.job(), max_batches=self.chance.choice((1, 2, None)))

    def die(self) -> None:
        """A run that dies in a publish, if it comes so far."""
        method, before = (
            self.chance.choice(("take_over", "begin", "send", "commit")),
            self.chance.random() < 0.5,
        )

        def dies() -> None:
            raise Killed

        with suppress(Killed), self._at(method, dies, before=before):
            self.run()

    def kill_broker_in_commit(self) -> None:
        """A run whose broker dies in a commit, and is there again at once."""
        with suppress(StatelakeError), self._at("commit", self.topics.broker.restart, before=True):
            self.run()

    def restart_broker(self) -> None:
        self.topics.broker.restart()

    def grow(self) -> None:
        """One more partition."""
        self.model.partitions.append([])
        self.topics.grow(self.given, len(self.model.partitions))

    def restore(self) -> None:
        """Go back to any checkpoint there was; what was sent stays."""
        with self.engine() as engine:
            rows = self.rows(engine)
            known = [number for number, row in rows.items() if row.branch == MAIN and row != rows.head]
            if known:
                engine.restore(self.job(), checkpoint_id=self.chance.choice(known), outputs="keep")

    def replay(self) -> None:
        """Process everything again, as it was cut or in other batches, and go on from there; what was sent stays."""
        with self.engine() as engine:
            if self.rows(engine):
                branch, rebatch = f"again_{len(self.done)}", self.chance.random() < 0.5
                engine.replay(self.job(), branch=branch, rebatch=rebatch)
                engine.promote(self.job(), branch, outputs="keep")

    def rescale(self) -> None:
        with self.engine() as engine:
            if self.rows(engine):
                engine.rescale(self.job(), parallelism=self.chance.randint(1, 4))

    def compact(self) -> None:
        with self.engine() as engine:
            if self.rows(engine):
                engine.compact(self.job())

    @contextmanager
    def _at(self, method: str, act: Callable[[], None], *, before: bool) -> Iterator[None]:
        """Let something happen once at a call of the producer."""
        original, strikes = getattr(TransactionalProducer, method), self.chance.randint(1, 3)
        calls = iter(range(1, 1000))

        def call(producer: TransactionalProducer, *arguments: Any) -> None:
            due = next(calls) == strikes
            if due and before:
                act()
            original(producer, *arguments)
            if due and not before:
                act()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionalProducer, method, call)
            yield

    # -- what is so then -------------------------------------------------------------------------------------------

    def rows(self, engine: StateEngine) -> Rows:
        return Rows(engine.checkpoints("counts"))

    def live(self) -> None:
        """A history, to its end; then all is compared."""
        for _ in range(STEPS):
            step = self.chance.choice((*HAPPENS, World.feed, World.run, World.run))
            self.done.append(step.__name__)
            step(self)
        self.feed()
        with self.engine() as engine:
            engine.run(self.job())
            self.check(engine)

    def check(self, engine: StateEngine) -> None:
        rows = self.rows(engine)
        positions = SourcePositions(JobLayout(engine.root, "counts").operator_state)
        ranges = {
            number: recorded_ranges(positions.elements([row], "events"))
            if row.kind is CheckpointKind.CHECKPOINT
            else []
            for number, row in rows.items()
        }
        expected = self.model.outputs(ranges, rows)
        shown: dict[str, list[Output]] = defaultdict(list)
        for value in self.topics.values(self.out):
            shown[value["name"]].append((value["id"], value["n"]))
        assert dict(shown) == expected


HAPPENS = (
    World.feed, World.run, World.die, World.kill_broker_in_commit, World.restart_broker, World.grow, World.restore,
    World.replay, World.rescale, World.compact,
)  # fmt: skip


def _value(record: Record) -> str:
    return f'{{"id": {record[0]}, "name": "{record[1]}"}}'


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 30))]
)
def test_readers_see_what_the_model_says(
    seed: int, spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    world = World(spark, topics, tmp_path, random.Random(seed))
    try:
        world.live()
    except BaseException:
        print(f"seed {seed}: {world.done}")
        raise
