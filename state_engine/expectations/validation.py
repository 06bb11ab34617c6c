"""Suites of expectations, checked by Great Expectations on Spark, with Data Docs; it is imported on first use.

It takes seconds and 200 MB to import, so never while definitions load.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pyarrow as pa

from state_engine import DeltaSink, StatefulJob
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.extras import optional
from state_engine.expectations.suites import OfSink, OfState, Suite
from state_engine.sinks.files import FileSink
from state_engine.sources.delta_table import SourceTable
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from state_engine import StateEngine

_SHOWN_ROWS = 20
_SITE = "docs"
_NAME = "name"


@dataclass(frozen=True)
class Outcome:
    """What became of one expectation.

    Attributes:
        observed: value of the whole table, as text; empty where rows were looked at one by one.
        sample: some of the rows that are not as expected; as JSON values.
    """

    met: bool
    observed: str = ""
    looked_at: int = 0
    unexpected: int = 0
    sample: tuple[Any, ...] = ()
    error: str = ""

    @property
    def summary(self) -> str:
        """What was observed, or how many rows are not as expected, as one line."""
        if self.error:
            return f"it could not be checked: {self.error}"
        if self.observed:
            return f"observed: {self.observed}"
        if self.met and not self.unexpected:
            return (
                f"{counted(self.looked_at, 'row is', 'rows are')} as expected"
                if self.looked_at
                else "there are no rows"
            )
        return f"{self.unexpected:,} of {counted(self.looked_at, 'row is', 'rows are')} not as expected"


_UNJUDGED = Outcome(met=False, error="Great Expectations did not take it: check its type and arguments")


def frame_of(engine: StateEngine, job: StatefulJob, suite: Suite) -> DataFrame:
    if isinstance(suite.of, OfState):
        return _flat(engine.read_state(job, suite.of.operator, suite.of.state))
    return sink_frame(engine, job, suite.of.sink, asked_by=f"suite '{suite.name}'")


def sink_frame(engine: StateEngine, job: StatefulJob, name: str, *, asked_by: str) -> DataFrame:
    from state_engine.spark.engine_session import handed_out  # PySpark is imported on first use

    node = job.sinks.get(name)
    if node is None:
        raise ConfigurationError(f"{asked_by}: job '{job.name}' has no sink '{name}'")
    sink = node.sink
    if isinstance(sink, DeltaSink):
        return handed_out(SourceTable(engine.context.spark, sink.location).newest_rows())
    if isinstance(sink, FileSink):
        reader = engine.context.spark.read.option("header", "true").format(sink.format)
        return handed_out(reader.load(sink.path))
    raise ConfigurationError(
        f"{asked_by}: rows of a sink of kind '{sink.kind}' cannot be read back; expect something of a state, "
        "or of a DeltaSink"
    )


def validate(suite: Suite, frame: DataFrame, *, docs: Path) -> tuple[dict[str, Outcome], str]:
    """Check a suite; the outcomes by name, and the URL of the page that shows them.

    Args:
        docs: absolute directory of the Data Docs, which are added to.
    """
    with _quiet_context() as (gx, context), TemporaryDirectory() as made:
        outcomes, page = _validated(gx, context, suite, frame, Path(made))
        # a site is built anew each time, without the pages of earlier runs: they are kept by adding to them
        shutil.copytree(made, docs, dirs_exist_ok=True)
    return outcomes, (docs / page).as_uri()


def judged(suite: Suite, rows: pa.Table) -> dict[str, Outcome]:
    """The outcomes of a suite for rows in memory, by name; without a page."""
    with _quiet_context() as (gx, context):
        table = context.data_sources.add_pandas("statelake").add_dataframe_asset(name=suite.name)
        frame = rows.to_pandas(integer_object_nulls=True)
        batch = table.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
        declared = gx.ExpectationSuite(name=suite.name, expectations=_configured(suite))
        done = batch.validate(declared, result_format=_result_format(suite, rows.column_names))
        return _outcomes(suite, done.results)


def great_expectations() -> Any:
    """The module, imported when it is needed.

    On its way it imports Spark Connect, which takes a main module without a file (a run that Dagster's daemon or web
    server launched has such a one) for a doctest, and ends the process.
    """
    main = sys.modules["__main__"]
    nameless = not hasattr(main, "__file__")
    if nameless:
        main.__file__ = "<statelake>"
    try:
        return optional("great_expectations", needed_by="checking expectations")
    finally:
        if nameless:
            del main.__file__


@contextmanager
def _quiet_context() -> Iterator[tuple[Any, Any]]:
    """The module, and a context of its own that reports no progress and sends nothing anywhere."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other people's code, which we can do nothing about
        gx = great_expectations()
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        yield gx, context


def _result_format(suite: Suite, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "result_format": "SUMMARY",
        "partial_unexpected_count": _SHOWN_ROWS,
        "unexpected_index_column_names": [c for c in suite.identified_by if c in columns],
    }


def _validated(
    gx: Any, context: Any, suite: Suite, frame: DataFrame, docs: Path
) -> tuple[dict[str, Outcome], Path]:
    table = context.data_sources.add_spark("statelake", persist=False).add_dataframe_asset(name=suite.name)
    declared = context.suites.add(gx.ExpectationSuite(name=suite.name, expectations=_configured(suite)))
    batch = table.add_batch_definition_whole_dataframe("whole")
    definition = gx.ValidationDefinition(name=suite.name, data=batch, suite=declared)
    context.add_data_docs_site(site_name=_SITE, site_config=_site(docs))
    checkpoint = gx.Checkpoint(
        name=suite.name,
        validation_definitions=[context.validation_definitions.add(definition)],
        actions=[gx.checkpoint.UpdateDataDocsAction(name=_SITE, site_names=[_SITE])],
        result_format=_result_format(suite, frame.columns),
    )
    run = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    [(page, done)] = run.run_results.items()
    [url] = [u["site_url"] for u in context.get_docs_sites_urls(resource_identifier=page, site_name=_SITE)]
    return _outcomes(suite, done.results), Path(url2pathname(urlparse(str(url)).path)).relative_to(docs)


def _configured(suite: Suite) -> list[Any]:
    """For a suite as a whole: added one by one, the second of a type on a column would replace the first."""
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return [
        ExpectationConfiguration(type=one.type, kwargs=dict(one.arguments), meta={_NAME: one.name})
        for one in suite.expectations
    ]


def _outcomes(suite: Suite, results: Iterable[Any]) -> dict[str, Outcome]:
    outcomes = dict.fromkeys((one.name for one in suite.expectations), _UNJUDGED)
    shown = (one.to_json_dict() for one in results)
    return outcomes | {one["expectation_config"]["meta"][_NAME]: _outcome(one) for one in shown}


def _site(docs: Path) -> Any:
    return {
        "class_name": "SiteBuilder",
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _outcome(judged: Mapping[str, Any]) -> Outcome:
    result = judged.get("result") or {}
    sample = result.get("partial_unexpected_index_list") or result.get("partial_unexpected_list") or []
    observed = result.get("observed_value")
    return Outcome(
        met=bool(judged["success"]),
        observed="" if observed is None else json.dumps(observed, default=str),
        looked_at=int(result.get("element_count") or 0),
        unexpected=int(result.get("unexpected_count") or 0),
        sample=tuple(json.loads(json.dumps(sample[:_SHOWN_ROWS], default=str))),
        error=_error(judged.get("exception_info") or {}),
    )


def _error(info: Mapping[str, Any]) -> str:
    """What was raised; of several metrics the first, one line of it."""
    for one in (info, *(v for v in info.values() if isinstance(v, Mapping))):
        if one.get("raised_exception"):
            return str(one.get("exception_message") or "").strip().split("\n")[0]
    return ""


def _flat(frame: DataFrame) -> DataFrame:
    kind = frame.schema["value"].dataType
    if not isinstance(kind, T.StructType):
        return frame
    fields = [F.col(f"value.`{name}`").alias(f"value_{name}") for name in kind.names]
    return frame.select(*[c for c in frame.columns if c != "value"], *fields)


__all__ = ["OfSink", "OfState", "Outcome", "Suite", "frame_of", "validate"]
