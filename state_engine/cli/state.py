"""Commands about state: ``state diff``, ``state erase-keys``, ``change-key-type`` and ``drop-operators``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.groups import Group
from state_engine.cli.options import DryRun, Job, Limit, key_columns
from state_engine.cli.output import Record, plain, print_records, report
from state_engine.cli.queries import at_most, records_of, remark_more, show_table
from state_engine.cli.session import console, declared, known, listed, opened, say
from state_engine.cli.tables import print_table, table
from state_engine.core.checkpoints.time_travel import moment
from state_engine.core.counted_nouns import counted
from state_engine.state_processor.erase import EraseReport
from state_engine.state_processor.erase_tables import ErasedTable
from state_engine.state_processor.key_change import KeyTypeReport
from state_engine.state_processor.operator_drop import OperatorDropReport

state = Group("Look at keyed state, and erase keys.")


@state.command()
def diff(
    job: Job,
    before: Annotated[str, typer.Argument(metavar="FROM", help="Id of a checkpoint, or a time.")],
    after: Annotated[str, typer.Argument(metavar="TO", help="Id of a checkpoint, or a time.")],
    operator: Annotated[str | None, typer.Option(metavar="UID", help="Only of this operator.")] = None,
    name: Annotated[str | None, typer.Option("--state", metavar="NAME", help="Only this state.")] = None,
    limit: Limit = 100,
) -> None:
    """Show what changed in keyed state between two checkpoints, entry by entry."""
    with opened() as engine:
        ends = [int(at) if at.isdigit() else moment(at) for at in (before, after)]
        records: list[Record] = []
        for change in engine.diff(job, *ends, operator=operator, state=name):
            counts = change.counts()
            names = {"operator": change.operator, "state": change.state}
            if for_people():
                text = listed((f"{n:,} {kind}" for kind, n in counts.items() if n), none="no change")
                say(f"{change.operator}.{change.state}: {text}")
            if any(counts.values()):
                rows = at_most(change.changes, limit)
                if for_people():
                    show_table(rows, limit=limit)
                else:
                    records += [names | row for row in records_of(rows, limit=limit)]
                    remark_more(rows, limit=limit)
    if not for_people():
        print_records(records, ("operator", "state", "change", "before", "after"))


@state.command()
def erase_keys(
    job: Job,
    key: Annotated[
        list[str],
        typer.Option("--key", help="""A key as JSON, such as '{"tailnum": "N123"}'; may be repeated."""),
    ],
    operator: Annotated[str | None, typer.Option(help="Only this operator.")] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also compact, expire older checkpoints, and vacuum.")
    ] = False,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="With --purge, also delete rows from Delta sinks.")
    ] = False,
    drop_branch: Annotated[
        list[str] | None,
        typer.Option("--drop-branch", help="With --purge, a branch to drop; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Erase keys from all states, timers and published tables, and show what else still holds them.

    Rewrites the files of a published table that held the keys, even if a deletion vector hid them. Shows until when
    older versions of the table keep the keys, and the VACUUM that removes them. If this stops halfway, run it again.
    """
    given = [key_columns(text) for text in key]
    with opened("Erasing") as engine:
        done = engine.state_processor(job).erase_keys(
            given,
            operator=operator,
            dry_run=dry_run,
            purge=purge,
            sinks=sinks,
            drop_branches=drop_branch or (),
        )
    report({**plain(done), "dry_run": dry_run}, _erased(done, dry_run=dry_run))
    if done.traces and for_people():
        print_table(console, _traces(done))


def change_key_type(
    job: Job,
    operator: Annotated[str, typer.Option(help="Uid of the operator.")],
    key_type: Annotated[
        str | None,
        typer.Option(help="Columns and types of the key, if the sources have no input yet that shows them."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Rewrite the state of an operator under keys of the type that the job's code declares; old keys are cast."""
    code = declared(job)
    with opened(f"{job}: reading the state of {operator}") as engine:
        code.prepare()
        processor = engine.state_processor(code.job)
        done = processor.change_key_type(operator, key_type=key_type, dry_run=dry_run)
    report({**plain(done), "dry_run": dry_run}, _key_type_lines(done, dry_run=dry_run))


def drop_operators(
    job: Job,
    operator: Annotated[list[str], typer.Option(help="Uid of the operator; may be repeated.")],
    dry_run: DryRun = False,
) -> None:
    """Let operators that the code no longer has leave the job, with their state and timers: one row of metadata."""
    code = known(job)
    with opened() as engine:
        done = engine.state_processor(code).drop_operators(*operator, dry_run=dry_run)
    report({**plain(done), "dry_run": dry_run}, _dropped_lines(done, dry_run=dry_run))


def _dropped_lines(done: OperatorDropReport, *, dry_run: bool) -> Iterator[str]:
    verb = "would leave" if dry_run else "left"
    for uid, states in done.operators.items():
        sizes = (f"{name} {'?' if n is None else f'{n:,}'}" for name, n in states.items())
        yield f"{done.job}, {uid}: its state {verb} the job; entries: {listed(sizes, none='none')}"
    if done.committed_id is not None:
        yield (
            f"checkpoint {done.committed_id} records this; restore checkpoint {done.parent_id} to go back, with the "
            "code that has them"
        )


def _erased(report: EraseReport, *, dry_run: bool) -> Iterator[str]:
    done = report.transform
    verb = "would leave" if dry_run else "left"
    for one in (s for s in done.states if s.deleted):
        yield f"{one.operator}, {one.state}: {counted(one.deleted, 'entry', 'entries')} {verb} the state"
    if not done.changes:
        yield f"{report.job}: the state at checkpoint {done.parent_id} does not hold the keys"
    if done.committed_id is not None:
        yield f"{report.job}: checkpoint {done.committed_id} records this"
    for erased in report.tables:
        yield from _erased_table(erased, dry_run=dry_run)
    if report.expired:
        yield f"expired: checkpoints {listed(report.expired)}"
    for what in report.not_looked_at:
        yield f"not searched: {what}"
    if report.traces:
        yield "still held by:"
    elif not any(one.older_files for one in report.tables):
        yield "nothing that was searched holds them now"


def _erased_table(erased: ErasedTable, *, dry_run: bool) -> Iterator[str]:
    name = f"table {erased.name}"
    leave, rewrite = ("would leave", "to rewrite") if dry_run else ("left", "rewritten")
    rows, files = counted(erased.rows, "row"), counted(erased.files, "file")
    yield f"{name}: {rows} {leave} it; {files} with the keys {rewrite}"
    if erased.kept_until is not None:
        held = f"{counted(erased.older_files, 'file')} of older versions"
        until = f"{erased.kept_until:%Y-%m-%d %H:%M:%S} UTC"
        yield f"{name}: {held} {'would hold' if dry_run else 'hold'} the keys until {until}; then run {erased.remedy}"
    elif erased.remedy and erased.rows:
        yield f"{name}: the files of the database hold deleted rows; {erased.remedy} takes them away"


def _traces(report: EraseReport) -> Table:
    rows = [(one.kind, one.name, f"{one.rows:,}", one.remedy) for one in report.traces]
    names = ("where", "name", "rows", "remedy")
    return table(names, rows, folds=("name", names[-1]), right=("rows",))


def _key_type_lines(report: KeyTypeReport, *, dry_run: bool) -> list[str]:
    change = f"{report.job}, {report.operator}: {report.before} → {report.after}"
    if not report.is_needed:
        return [change, "both types of keys are stored the same way, so there is nothing to write"]
    entries = listed(f"{state} {n:,}" for state, n in report.entries.items())
    done = "to rewrite" if dry_run else "rewritten"
    lines = [change, f"{counted(report.keys, 'key')} {done}; entries: {entries}"]
    if report.committed_id is not None:
        lines.append(
            f"checkpoint {report.committed_id} holds them; run the job to continue from there, or restore checkpoint "
            f"{report.parent_id} to go back"
        )
    return lines
