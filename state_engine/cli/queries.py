"""The command ``statelake sql``: SQL over the views of a job, and how answers are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.table import Table

from state_engine.cli import output as output_of
from state_engine.cli.form import Form, form, one_form, printing
from state_engine.cli.options import Job, Limit
from state_engine.cli.session import console, history_of, opened, remark
from state_engine.cli.tables import print_table, table
from state_engine.core.checkpoints.time_travel import path_as_of, why_missing
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.types.beyond_python import python_values
from state_engine.core.types.walk import converter
from state_engine.queries.portable_sql import answer
from state_engine.queries.state_views import SqlView, ViewedJob, views_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Format = Annotated[
    Form,
    typer.Option("--format", help="For people; for spreadsheets; or one JSON object a line."),
]
Cells = tuple[Any, ...]


def sql(
    job: Job,
    query: Annotated[str | None, typer.Argument(help="A SELECT over the job's views.")] = None,
    views: Annotated[
        bool, typer.Option("--views", help="List the views with their columns instead.")
    ] = False,
    checkpoint_id: Annotated[
        int | None, typer.Option("--checkpoint", help="As of this checkpoint, on any path.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="As of this time, such as 2026-03-01T12:30; in UTC.")
    ] = None,
    output: Format = "table",
    limit: Limit = 100,
    spark: Annotated[
        bool, typer.Option("--spark", help="Use Spark even for queries that need no Spark.")
    ] = False,
    unrestricted: Annotated[
        bool, typer.Option("--unrestricted", help="Let the query reach Java methods, files and programs.")
    ] = False,
) -> None:
    """Ask a job's state, operator state and history with SQL, in Spark's dialect; simple queries start no Spark."""
    if (query is None) is not views:
        raise ConfigurationError(f'give a query or --views: statelake sql {job} "SELECT * FROM checkpoints"')
    with printing(one_form(output, form())):
        past = job_as_of(job, checkpoint_id=checkpoint_id, as_of=as_of)
        if query is None:
            listed = views_of(past)
            records = [{"view": v.sql_name, "columns": dict(v.columns), "about": v.about} for v in listed]
            output_of.show(records, lambda: _views(listed))
            return
        if not (spark or unrestricted) and (answered := _answered(past, query)) is not None:
            show_table(answered, limit=limit)
            return
        with opened() as engine:
            rows = engine.sql(job, query, checkpoint_id=checkpoint_id, as_of=as_of, unrestricted=unrestricted)
            show_rows(rows, limit=limit)


def job_as_of(job: str, *, checkpoint_id: int | None = None, as_of: str | None = None) -> ViewedJob:
    """What a job remembers as of a checkpoint; read without Spark, so Spark's own views cannot be made of it."""
    history = history_of(job)
    root = history.layout.root
    path = path_as_of(history.checkpoints, job=job, root=root, checkpoint_id=checkpoint_id, as_of=as_of)
    return ViewedJob(history.layout, history.checkpoints, path, _needs_engine)


def _needs_engine(_: SparkSession) -> DataFrame:
    raise NotImplementedError("views of dead letters need an engine")


def _answered(past: ViewedJob, query: str) -> pa.Table | None:
    try:
        return answer(views_of(past), query)
    except MissingFilesError as error:
        raise why_missing(error, past.history, past.path) from error


def show_rows(frame: DataFrame, *, limit: int) -> None:
    """Print the rows of a DataFrame; say where there are more."""
    show_table(at_most(frame, limit), limit=limit)


def at_most(frame: DataFrame, limit: int) -> pa.Table:
    """The first rows of a DataFrame, and one more to know by that there are more; all rows for 0."""
    from state_engine.queries.spark_sql import fetched  # here: what Spark is not asked for does not load it

    return fetched(frame.limit(limit + 1) if limit else frame)


def show_table(rows: pa.Table, *, limit: int, more: str = "--limit 0 shows all") -> None:
    """Print rows.

    Args:
        limit: so many of them; 0 for all.
    """
    _PRINTERS[form()](rows.column_names, _plain_rows(rows, limit))
    remark_more(rows, limit=limit, more=more)


def remark_more(rows: pa.Table, *, limit: int, more: str = "--limit 0 shows all") -> None:
    """Say where there are more rows than those that are shown."""
    if limit and rows.num_rows > limit:
        remark(f"There are more than {counted(limit, 'row')}; {more}.")


def records_of(rows: pa.Table, *, limit: int) -> list[dict[str, Any]]:
    """The first rows as names and plain values."""
    return [dict(zip(rows.column_names, row, strict=True)) for row in _plain_rows(rows, limit)]


def _plain_rows(rows: pa.Table, limit: int) -> list[Cells]:
    shown = rows.slice(0, limit) if limit else rows
    turned = (converter(c.type, lambda _: output_of.plain, entries=_entries) for c in shown.columns)
    columns = [list(map(turn, python_values(c))) for turn, c in zip(turned, shown.columns, strict=True)]
    return list(zip(*columns, strict=True))


def _print_table(names: Sequence[str], rows: Sequence[Cells]) -> None:
    texts = [[output_of.text(cell) for cell in row] for row in rows]
    sentences = {name for row in texts for name, cell in zip(names, row, strict=True) if " " in cell}
    print_table(console, table(names, texts, folds=sentences))


def _print_json(names: Sequence[str], rows: Sequence[Cells]) -> None:
    output_of.print_json(dict(zip(names, row, strict=True)) for row in rows)


_PRINTERS = {"table": _print_table, "csv": output_of.print_csv, "json": _print_json}


def _entries(kind: pa.DataType, pairs: list[tuple[Any, Any]]) -> Any:
    """Maps are objects where their keys are texts, else arrays of pairs."""
    return dict(pairs) if pa.types.is_string(kind.key_type) else [list(pair) for pair in pairs]


def _views(views: Sequence[SqlView]) -> Table:
    rows = [
        (view.sql_name, ", ".join(f"{name} {kind}" for name, kind in view.columns), view.about)
        for view in views
    ]
    return table(("view", "columns", "a row is"), rows, folds=("columns", "a row is"))
