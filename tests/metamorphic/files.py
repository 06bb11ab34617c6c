"""The rows of a case as files of its sources, in micro-batches; and what its job leaves, read without the engine."""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from state_engine import (
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    FileSink,
    FileSource,
    ForeachBatchSink,
    KafkaSink,
    KafkaSource,
    PythonDataSource,
    StateEngine,
    StatefulJob,
    open_state,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.types.type_parsing import to_type
from tests.faults.workloads import RowsAsJson
from tests.kafka.topics import Topics
from tests.metamorphic.jobs import EVENT, Case, Rows, Values
from tests.support.changes import ACCOUNT
from tests.support.postgres import PASSWORD_ENV

Results = dict[str, Any]


def cut(case: Case, rows: Rows, rng: random.Random, clocks: list[datetime]) -> list[Rows]:
    """The rows in a micro-batch for each clock, some of which may bring nothing of a source."""
    if not case.cut:
        return [rows, *[{}] * (len(clocks) - 1)]
    if case.span:
        return _cut_by_clock(case, rows, rng, clocks)
    batches = len(clocks)
    cut_rows: list[Rows] = [{} for _ in range(batches)]
    if case.in_order and len(rows) > 1:
        for source, of_source in rows.items():
            times = sorted(row[case.time] for rows_of in rows.values() for row in rows_of)
            if source == min(rows):
                ends = sorted(rng.choices(times, k=batches - 1))
            begins = [times[0], *ends, None]
            for batch, (begin, end) in zip(cut_rows, pairwise(begins), strict=True):
                batch[source] = [
                    r for r in of_source if begin <= r[case.time] and (end is None or r[case.time] < end)
                ]
        return cut_rows
    for source, of_source in rows.items():
        places = (
            [len(of_source)] * (batches - 1)
            if source in case.first
            else rng.choices(range(len(of_source) + 1), k=batches - 1)
        )
        for batch, (begin, end) in zip(cut_rows, pairwise([0, *sorted(places), len(of_source)]), strict=True):
            batch[source] = of_source[begin:end]
    return cut_rows


def _cut_by_clock(case: Case, rows: Rows, rng: random.Random, clocks: list[datetime]) -> list[Rows]:
    """What has come since the clock before; the rows of an outage come with its end."""
    down, up = sorted(rng.choices(range(len(clocks)), k=2))
    cut_rows: list[Rows] = []
    begins = dict.fromkeys(rows, 0)
    for number, clock in enumerate(clocks):
        batch: Rows = {}
        for source, of_source in rows.items():
            until = clocks[down] if source in case.outages and down < number < up else clock
            later = (n for n, row in enumerate(of_source) if row[case.time] > until)
            came = next(later, len(of_source))
            batch[source], begins[source] = of_source[begins[source] : came], came
        cut_rows.append(batch)
    return cut_rows


class Feed:
    """Writes rows as files of the sources of a job, each file behind those before it, or as records."""

    def __init__(self, case: Case, job: StatefulJob) -> None:
        inputs = {name: node.source.inner for name, node in job.sources.items()}
        fed = FileSource | DeltaSource | PythonDataSource | KafkaSource
        self._sources = {n: s for n, s in inputs.items() if isinstance(s, fed)}
        self._case, self._number = case, 0
        for source in self._sources.values():  # there before its first row
            if isinstance(source, DeltaSource):
                _create(source)
            elif isinstance(source, PythonDataSource):
                Path(source.options["file"]).parent.mkdir(parents=True)
                Path(source.options["file"]).touch()
            elif isinstance(source, KafkaSource):
                with _topics(case).admin() as admin:
                    admin.create(_topic(source), partitions=case.partitions)
            else:
                _path(source).mkdir(parents=True)

    def write(self, batch: Rows, rng: random.Random) -> None:
        for source, rows in batch.items():
            while rows:
                some, rows = (rows[: (n := rng.randrange(1, len(rows) + 1))], rows[n:])
                self._write(source, some)

    def _write(self, name: str, rows: list[Values]) -> None:
        source, self._number = self._sources[name], self._number + 1
        if isinstance(source, PythonDataSource):
            with Path(source.options["file"]).open("a") as opened:
                opened.writelines(json.dumps(row, default=_text) + "\n" for row in rows)
            return
        if isinstance(source, KafkaSource):
            self._send(source, rows)
            return
        directory = _path(source)
        if isinstance(source, DeltaSource) and source.changes:
            _change(DeltaTable(directory), rows)
            return
        if isinstance(source, DeltaSource):
            write_deltalake(directory, as_arrow(rows, EVENT), mode="append")
            return
        file = directory / f"{self._number:05}.{source.format}"
        aside = file.with_name(f".{file.name}")
        if source.format == "parquet":
            pq.write_table(as_arrow(rows, str(source.schema)), aside)
        elif source.format == "json":
            aside.write_text("".join(json.dumps(row, default=_text) + "\n" for row in rows))
        else:
            with aside.open("w", newline="") as opened:
                writer = csv.DictWriter(opened, list(rows[0]))
                if source.options.get("header") == "true":
                    writer.writeheader()
                writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
        aside.rename(file)

    def _send(self, source: KafkaSource, rows: list[Values]) -> None:
        """As records, those of a key in one partition."""
        with _topics(self._case).producer() as producer:
            for row in rows:
                partition = ord(row["k"]) % self._case.partitions
                value = json.dumps(row, default=_text)
                _topics(self._case).give(producer, _topic(source), None, value, partition)
            producer.flush()


def _create(source: DeltaSource) -> None:
    feed = {"delta.enableChangeDataFeed": str(source.changes).lower()}
    write_deltalake(_path(source), as_arrow([], ACCOUNT if source.changes else EVENT), configuration=feed)


def _change(table: DeltaTable, changes: list[Values]) -> None:
    """Do to a table what is to be done, in a commit for each row; an update comes as two."""
    for change in changes:
        kind, row = change["kind"], {name: value for name, value in change.items() if name != "kind"}
        here = f"id = {row['id']}"
        if kind == "INSERT":
            write_deltalake(table, as_arrow([row], ACCOUNT), mode="append")
        elif kind == "DELETE":
            table.delete(here)
        elif kind == "UPDATE_AFTER":
            new = {"owner": f"'{row['owner']}'", "amount": str(row["amount"])}
            table.update(predicate=here, updates=new)


def _path(of: Any) -> Path:
    return Path(of.path.removeprefix("file://"))


def _topics(case: Case) -> Topics:
    assert case.topics is not None
    return case.topics


def _topic(source: KafkaSource) -> str:
    (topic,) = source.topic or ()
    return topic


def as_arrow(rows: list[Values], schema: str) -> pa.Table:
    """Rows as a table with the columns of a schema."""
    return pa.Table.from_pylist(rows, schema=pa.schema(to_type(schema, parameter="schema").arrow))


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | datetime) else value


# -- results -----------------------------------------------------------------------------------------------------------


def results(case: Case, job: StatefulJob, engine: StateEngine) -> Results:
    """All that a job leaves: tables, outputs of each key in their order, states with timers, letters, event time."""
    rows = engine.checkpoints(job)
    head = rows[-1]
    left: Results = {f"table {name}": _sorted(of_table) for name, of_table in tables(case, job).items()}
    if not case.any_arrival:
        left |= {f"order in {name}": by_key for name, by_key in ordered(case, job, rows).items()}
    left |= states(job, engine)
    left["letters"] = _sorted((one.operator, one.key, one.row) for one in engine.list_dead_letters(job))
    left["rows"] = sum(row.rows_in for row in rows)
    left["late"] = sum(row.behind_watermark for row in rows)
    left["watermark"] = head.watermark_ms
    left["next timers"] = {operator.uid: operator.next_timers_ms for operator in head.operators}
    return left


def states(job: StatefulJob, engine: StateEngine) -> Results:
    """All entries of keyed states and timers."""
    left = {}
    for operator in engine.checkpoints(job)[-1].operators:
        for state in operator.states:
            entries = open_state.read_state(engine.root, job.name, operator.uid, state.name).to_pylist()
            left[f"state {operator.uid}.{state.name}"] = _sorted(entries)
    return left


def tables(case: Case, job: StatefulJob) -> dict[str, list[Any]]:
    """The rows of each sink and published table, as its users read them."""
    shown: dict[str, list[Any]] = {}
    places: dict[str, Any] = {name: node.sink for name, node in job.sinks.items()}
    places |= {name: node.table for name, node in job.published.items()}
    for name, sink in places.items():
        if name in case.by_cut:
            continue
        if isinstance(sink, ForeachBatchSink):
            assert isinstance(sink.function, RowsAsJson)
            files = sorted(sink.function.directory.glob("*.json"), key=lambda file: int(file.stem))
            shown[name] = [row for file in files for row in json.loads(file.read_text())]
        elif isinstance(sink, FileSink):
            shown[name] = list(_of_files(_path(sink), sink.format))
        elif isinstance(sink, DeltaSink | DeltaStateTable):
            there = (_path(sink) / "_delta_log").exists()
            shown[name] = pl.read_delta(_path(sink)).to_dicts() if there else []
        elif isinstance(sink, KafkaSink):
            shown[name] = _topics(case).values(sink.topic)
        else:
            shown[name] = _selected(sink.url, sink.table)
    return {name: [_own(row) for row in of_table] for name, of_table in shown.items()}


def ordered(case: Case, job: StatefulJob, rows: list[CheckpointRow]) -> dict[str, dict[str, list[Any]]]:
    """What files of outputs hold of each key, in the order of checkpoints and subtasks."""
    outputs: dict[str, dict[str, list[Any]]] = {}
    compared = job.sinks.keys() - case.by_cut.keys()
    for staged in (sink for row in rows for sink in row.sinks if sink.name in compared):
        keys = getattr(job.sinks[staged.name].parent, "key_columns", ())
        files = (f for f in sorted(staged.files, key=lambda f: f.subtask) if f.path.endswith(".parquet"))
        for file in files:
            (there,) = _path(staged).rglob(Path(file.path).name)
            for row in pq.ParquetFile(there).read().to_pylist():
                if keys and set(keys) <= row.keys():
                    outputs.setdefault(staged.name, {}).setdefault(str([row[k] for k in keys]), []).append(
                        _own(row)
                    )
    return outputs


def _of_files(directory: Path, form: str) -> Iterable[Mapping[str, Any]]:
    for file in sorted(directory.glob(f"checkpoint_id=*/*.{form}")):
        if form == "parquet":
            yield from pq.ParquetFile(file).read().to_pylist()
        else:
            with file.open(newline="") as opened:
                yield from csv.DictReader(opened)


def _selected(url: str, table: str) -> list[Mapping[str, Any]]:
    address = sa.make_url(url)
    if address.get_backend_name() == "postgresql":
        address = address.set(password=os.environ[PASSWORD_ENV])
    database = sa.create_engine(address, poolclass=sa.NullPool)
    if not sa.inspect(database).has_table(table):
        return []
    with database.connect() as connection:
        rows = connection.execute(sa.text(f"SELECT * FROM {table}"))
        return [dict(row) for row in rows.mappings()]


def _own(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what the engine adds to it."""
    return {name: value for name, value in row.items() if not name.startswith(("_", "statelake"))}


def plain(value: Any) -> Any:
    """A value with its times in UTC, and rows in an order that does not depend on their zones."""
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return _sorted(map(plain, value)) if value and isinstance(value[0], dict) else list(map(plain, value))
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def _sorted(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=repr)
