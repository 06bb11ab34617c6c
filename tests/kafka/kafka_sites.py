"""Topics, a Delta table and a database that one job joins: fed, run in processes of its own, and checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.faults.child import REPOSITORY
from tests.faults.plane import Fault, to_json
from tests.kafka.kafka_runner import built
from tests.kafka.topics import Topics
from tests.support.postgres import PASSWORD_ENV

NAMES = [f"n{i}" for i in range(7)]


class Site:
    """Topics, a directory and a database for one history."""

    def __init__(self, topics: Topics, directory: Path, url: str) -> None:
        self.topics, self.directory, self.url = topics, directory, url
        self.given, self.out = topics.new(partitions=3), topics.new(partitions=2)
        self.sent = 0

    def send(self, rows: int) -> None:
        """In one transaction for each partition, with one that is aborted beside it."""
        with self.topics.producer(f"{self.given}-feed") as producer:
            for partition in range(3):
                for ends in ("abortTransaction", "commitTransaction"):
                    producer.beginTransaction()
                    for i in range(partition, rows, 3):
                        value = f'{{"id": {self.sent + i}, "name": "{NAMES[(self.sent + i) % 7]}"}}'
                        self.topics.give(producer, self.given, None, value, partition)
                    producer.flush()
                    getattr(producer, ends)()
        self.sent += rows

    @property
    def settings(self) -> dict[str, Any]:
        """Of the job."""
        return {
            "servers": self.topics.servers, "given": self.given, "out": self.out, "access": dict(self.topics.access),
            "directory": str(self.directory), "url": self.url,
        }  # fmt: skip

    def process(
        self,
        faults: Sequence[Fault] = (),
        *,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> subprocess.Popen[bytes]:
        """One that runs the job; see ``kafka_runner`` for the settings."""
        given = self.settings | {"faults": to_json(faults)} | settings
        command = [sys.executable, "-m", "tests.kafka.kafka_runner", json.dumps(given)]
        variables = {**(environment or os.environ), "PYTHONPATH": str(REPOSITORY)}
        with (self.directory / "driver.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=REPOSITORY, env=variables, stdout=log, stderr=log, start_new_session=True
            )

    def run_here(self, spark: SparkSession) -> None:
        """Run the job in this process until it has caught up."""
        with StateEngine(self.directory / "root", spark) as engine:
            engine.run(built(self.settings))

    def log(self) -> str:
        """The end of what the processes wrote."""
        return (self.directory / "driver.log").read_text(errors="replace")[-4000:]

    def check(self) -> None:
        """Everything is everywhere once, and the counts of each key go up one by one."""
        rows = [(r["id"], r["name"], r["n"]) for r in self.topics.values(self.out)]
        ids = Counter(row[0] for row in rows)
        assert {one: n for one, n in ids.items() if n > 1} == {}, "twice"
        assert set(range(self.sent)) - ids.keys() == set(), "lost"
        for name in NAMES:
            counts = [n for _, of, n in rows if of == name]
            assert counts == list(range(1, len(counts) + 1)), "records of a key are in its partition in order"
        table = DeltaTable(str(self.directory / "table")).to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in table) == sorted(rows)
        assert sorted(self.in_database()) == sorted(rows)

    def in_database(self) -> list[tuple[Any, ...]]:
        """The rows of the table in the database."""
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg", password=os.environ[PASSWORD_ENV])
        with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text("SELECT id, name, n FROM counts"))]
