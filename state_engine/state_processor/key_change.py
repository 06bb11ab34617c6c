"""``KeyTypeChange``: gives the keyed state of an operator another type of key.

    read     all entries at the head, timers and what has expired included (``stored_entries``)
    convert  each key, by a cast that loses nothing or by a function of the user's: new hashes, new key groups
    write    a base (``entry_writer``); two keys that become one are refused there
    commit   one row of kind ``transform`` upon that very head, else ``StaleParentError``

Values, times and the order of lists and maps stay what they are; sources, sinks and operator state are not touched.
The old files stay with the checkpoints before, which code of the old key restores and goes on from. Flink needs its
State Processor API and a new savepoint for this.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_snapshot import RAW_KEYED
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.type_parsing import from_spark_json
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.stored_keys import other_columns
from state_engine.operations.head_operations import HeadOperations
from state_engine.queries.state_changes import SAME
from state_engine.queries.state_rows import KEY, STATE, WHY
from state_engine.queries.stored_entries import key_schema, operator_of, stored_entries
from state_engine.spark.shipped_code import running_driver_code
from state_engine.state_processor.entry_writer import (
    Counts,
    EntryWriter,
    OperatorEntries,
    WrittenEntries,
    refused_row,
)
from state_engine.state_processor.key_conversion import OLD, Convert, converted
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.state.entry_codes import entry_codes

_EXAMPLES = 3
_KEYS = ""
"""Under which keys are counted, which no state is called."""


@dataclass(frozen=True)
class KeyTypeReport:
    """What a change of the type of a key did, or in a dry run would do.

    Attributes:
        job, operator: names.
        parent_id: the head whose state was read.
        before, after: columns of the key and their types.
        is_needed: whether anything had to be written: keys that only become wider are stored as they were.
        keys: how many there are.
        entries: values, lists and map entries by state; timers are the state ``_timers``.
        committed_id: the row; None in a dry run, and where nothing had to be written.
    """

    job: str
    operator: str
    parent_id: int
    before: str
    after: str
    is_needed: bool = True
    keys: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    committed_id: int | None = None


@dataclass(frozen=True)
class KeyTypeChange:
    """One change of the key of one operator."""

    job: str
    tables: JobTables
    kernel: DeltaKernel
    operations: HeadOperations
    spark: SparkSession
    dry_run: bool = False

    def run(self, uid: str, key: DeclaredKey, convert: Convert | None) -> KeyTypeReport:
        """See ``StateProcessor.change_key_type``; ``key`` is that of today's code."""
        declared = key.schema
        history, head = self.operations.published_head()
        path, what = history.path(head.checkpoint_id), f"job '{self.job}', operator '{uid}'"
        operator = operator_of(head, uid, job=self.job)
        _check_no_raw_state(head, uid, what)
        old = key_schema(operator)
        report = KeyTypeReport(self.job, uid, head.checkpoint_id, old.declared_text, declared.declared_text)
        if convert is None and declared.is_stored_like(old):
            return replace(report, is_needed=False)
        if convert is None and declared.names != old.names:
            raise ConfigurationError(
                f"{what}: its state is stored by {list(old.names)}, the job keys by {list(declared.names)}. "
                f"{other_columns(old.names, declared.names)}. Only convert=, from an old key to a new one, makes one "
                "key of another"
            )
        new = declared.stored_in(self._key_columns(uid))
        entries = stored_entries(self.spark, self.tables.layout, path, uid)
        writer = EntryWriter(self.spark, self.tables.layout, self.dry_run)
        changed = replace(operator, key_schema=str(new), key_type=new.declared_text)

        def write() -> WrittenEntries:
            made = converted(entries, old, new, convert and (convert, key), what=what)
            produced = OperatorEntries(changed, made, partial(_counted, old, new), is_base=True)
            return writer.write(produced, what=what, doing=f"keys become {report.after}")

        written = running_driver_code(self.spark, convert, write, job=self.job)
        counts = {state: kinds.total() for state, kinds in sorted(written.counts.items())}
        report = replace(report, keys=counts.pop(_KEYS, 0), entries=counts)
        if self.dry_run:
            return report
        row = writer.commit(
            [written], operations=self.operations, tables=self.tables, history=history, head=head
        )
        return replace(report, committed_id=row.checkpoint_id)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _key_columns(self, uid: str) -> list[pa.DataType]:
        """The key columns that the operator's tables have, whoever made them."""
        types = []
        for uri in (self.tables.layout.base(uid), self.tables.layout.changelog(uid)):
            facts = self.kernel.facts(uri)
            fields = facts.schema["fields"] if facts is not None else []
            types += [from_spark_json(f["type"]).arrow for f in fields if f["name"] == KEY]
        return types


def _counted(old: KeySchema, new: KeySchema, table: pa.Table) -> Counts:
    """In a task: keys and entries of whole key groups; refuses keys that cannot be one, and two that became one."""
    at, old_keys = refused_row(table), one_chunk(table[OLD])
    if at is not None:
        (key,) = old.decode_struct(old_keys.slice(at, 1))
        raise InvalidKeyError(f"{table[WHY][at]}, for the key {key!r}")
    codes = entry_codes([one_chunk(table[KEY])])
    both = entry_codes([pa.array(codes), old_keys])
    _, first = np.unique(both, return_index=True)  # a row of every old key
    kept, counts = np.unique(codes[first], return_counts=True)
    if len(kept) < len(first):
        examples = []
        for code in kept[counts > 1][:_EXAMPLES]:
            at_keys = pa.array(first[codes[first] == code][:_EXAMPLES])
            several = ", ".join(map(repr, old.decode_struct(old_keys.take(at_keys))))
            (one,) = new.decode_struct(one_chunk(table[KEY]).take(at_keys.slice(0, 1)))
            examples.append(f"{several} would be {one!r}")
        raise ConfigurationError(
            f"several keys would become one: {'; '.join(examples)}. Nothing was changed. Convert them otherwise, or "
            "first merge their state or delete all keys but one by transform_state"
        )
    entries = table[STATE].value_counts().to_pylist()
    return Counter({(_KEYS, SAME): len(kept)} | {(e["values"], SAME): e["counts"] for e in entries})


def _check_no_raw_state(head: CheckpointRow, uid: str, what: str) -> None:
    """Raise ConfigurationError where the function keeps bytes by key group."""
    states = [s for ref in head.operator_state if ref.operator == uid for s in ref.states]
    raw = sorted(s.name for s in states if s.scheme == RAW_KEYED and any(p.elements for p in s.parts))
    if raw:
        raise ConfigurationError(
            f"{what}: it has raw keyed state ({', '.join(raw)}), bytes of a key group that only its function can "
            "take apart, and its keys would go to other key groups. Run a version that moves the bytes into keyed state"
        )
