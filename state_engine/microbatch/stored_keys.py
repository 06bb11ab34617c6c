"""The key that an operator's state is stored by, compared with the one that the job gives it.

    before a run    what the code shows: the columns, and their types where they are declared
    with its rows   the types that they have

Other columns are another key, even if they hold values of the same type: no cast makes one of the other. Plays the part
of the comparison of key serializers when Flink restores a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StateMigrationError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.job.graph import OperatorNode, SelectedKey, declared_key, type_in_code
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.routed import RoutedLayout


def check_stored_key(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    """Compare the key as the code shows it, before any row is read."""
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    _check_keyed(job, operator, recorded)
    if operator.key_columns != known.names:
        _refuse_columns(job, operator, known, operator.key_columns)
    _check_second_key(job, operator, recorded.second_key)
    declared = declared_key(operator, type_in_code)
    if declared is not None:
        _check_types(job, operator, known, declared.schema, recorded)
    _check_key_groups(job, operator, recorded)


def checked_key(
    job: StatefulJob, operator: OperatorNode, routed: RoutedLayout, batch: BatchContext
) -> KeySchema | None:
    """Names and types of the key: from the rows, or where none came, as recorded; None without one."""
    recorded, today = batch.parent.operator(operator.uid) if batch.parent else None, routed.key_schema
    if recorded is None:
        return today
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    _check_keyed(job, operator, recorded)
    if today is not None:
        _check_types(job, operator, known, today, recorded)
    _check_key_groups(job, operator, recorded)
    if today is None:
        return known if recorded.key_type else None
    return replace(today, stored=known.stored)


def other_columns(known: Sequence[str], today: Sequence[str]) -> str:
    """What to do where a key is of other columns."""
    renamed = f". If only their names are different, name them {list(known)} in a transform before key_by"
    may_be_renamed = len(known) == len(today) and set(known) != set(today)
    return (
        f"Other columns are another key. Key by {list(known)} again; or give the operator another uid: it starts "
        "empty, and a replay from the first checkpoint fills it" + (renamed if may_be_renamed else "")
    )


def _check_keyed(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    if not operator.keyed:
        raise StateMigrationError(
            f"{_where(job, operator)}: its state is stored by key {recorded.key_schema}, the job gives it a stream "
            "without key. Restore the old key_by, or give the operator another uid to start empty"
        )


def _check_second_key(job: StatefulJob, operator: OperatorNode, known: Sequence[str]) -> None:
    """Both streams share the state, so another key of the second one is another key as well."""
    today = operator.second_key
    if known and today and list(today) != list(known):
        raise StateMigrationError(
            f"{_where(job, operator)}: its second stream was keyed by {list(known)}, the job keys it by {list(today)}. "
            f"{other_columns(known, today)}"
        )


def _check_types(
    job: StatefulJob, operator: OperatorNode, known: KeySchema, today: KeySchema, recorded: OperatorCheckpoint
) -> None:
    """Where no more is known of the recorded keys than how they are stored, that decides."""
    if today.is_stored_like(known) if recorded.key_type else today.storage == known.storage:
        return
    if today.names != known.names:
        _refuse_columns(job, operator, known, today.names)
    rewrite = f"engine.state_processor(job).change_key_type('{operator.uid}'"
    if isinstance(operator.inputs[0].key, SelectedKey):  # nothing shows what the function takes its key from
        rewrite = f"say what becomes of an old key: {rewrite}, convert=…)"
    else:
        rewrite += (
            f"), or `statelake change-key-type {job.name} --operator {operator.uid}`, first with a dry run"
        )
    raise StateMigrationError(
        f"{_where(job, operator)}: its state is stored by key {known.declared_text}, the job keys by "
        f"{today.declared_text}. Restore the old key_by. If it is the same key in another type, such as a number as "
        f"text, rewrite the state: {rewrite}. If it is another key, give the operator another uid: it starts empty, "
        "and a replay from the first checkpoint fills it"
    )


def _check_key_groups(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    if recorded.max_parallelism != job.max_parallelism:
        raise StateMigrationError(
            f"{_where(job, operator)}: its state has {counted(recorded.max_parallelism, 'key group')}, the job "
            f"declares max_parallelism={job.max_parallelism}. Declare the old number; or rewrite the state: "
            f"engine.rescale(job, max_parallelism={job.max_parallelism}), or `statelake rescale {job.name} "
            f"--max-parallelism {job.max_parallelism}`"
        )


def _refuse_columns(job: StatefulJob, operator: OperatorNode, known: KeySchema, today: Sequence[str]) -> None:
    """Refuse another key; that of a keyed sink in the words of its author. Raises StateMigrationError."""
    sink = next((n.name for n in job.published.values() if n.operator is operator and n.sink_key), None)
    if sink is not None:
        raise StateMigrationError(
            f"job '{job.name}', sink '{sink}': its table holds a row for each {list(known.names)}, and key= says "
            f"{list(today)} now. Say key={list(known.names)} again; or give the sink another name and another "
            "table, which holds what comes from then on: a replay from the first checkpoint fills it with what came "
            "before"
        )
    raise StateMigrationError(
        f"{_where(job, operator)}: its state is stored by {list(known.names)}, the job keys by {list(today)}. "
        f"{other_columns(known.names, today)}"
    )


def _where(job: StatefulJob, operator: OperatorNode) -> str:
    return f"job '{job.name}', operator '{operator.uid}'"
