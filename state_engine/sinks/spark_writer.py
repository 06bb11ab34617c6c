"""Publishing to a Delta table through Spark's writer: for tables, and withdrawals, that Kernel cannot do.

The rows of staged Parquet files are appended, and withdrawn rows replaced by them, in one commit with the same
transaction id as a publish through Kernel, so neither happens twice. Delta silently skips a version that it has
seen: so the commit notes what it is for, and the log is read afterwards. Files for such a table are staged in
``_statelake_staged`` inside of it, where neither readers nor VACUUM look; they stay there, for a later row may add
them again. Withdrawn rows are known by their lineage column only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.errors import CommitFailedError, SinkError
from state_engine.sinks.base import DROP_ROWS, WRITE_ID, SinkTarget, verify_files, write_ids
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log_tail import SYNCED_AFTERWARDS
from state_engine.storage.stores.files import join
from state_engine.storage.stores.locks import table_lock
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES, open_recorded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGED = "_statelake_staged"
"""Where files for such a table wait, inside of it."""

_ROWS_AT_ONCE = 65_536

_SETTINGS = {
    # new rows need not be of the attempts that they replace
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    # staged files lie inside the table, but are none of its own
    "spark.databricks.delta.formatCheck.enabled": "false",
}


def write_once(kernel: DeltaKernel, staged: StagedSink, app: str, checkpoint_id: int) -> None:
    """Append staged rows and take out withdrawn ones in one commit; the caller looks into the log afterwards.

    Raises:
        CommitFailedError: another writer was in the way.
    """
    from pyspark.errors import PySparkException

    what = f"sink '{staged.name}', checkpoint {checkpoint_id}"
    verify_files(staged.path, staged.files, what=what, footers=True)
    session = _session(kernel.spark)
    with table_lock(staged.path):
        try:
            writer = _rows(session, staged).write.format("delta").mode("append")
            if staged.withdrawn:
                known = ", ".join(f"'{w}'" for w in write_ids(staged.withdrawn))
                writer = writer.mode("overwrite").option("replaceWhere", f"{WRITE_ID} IN ({known})")
            writer.options(txnAppId=app, txnVersion=checkpoint_id, userMetadata=note_of(staged)).save(
                staged.path
            )
        except (Py4JJavaError, PySparkException) as error:
            if (kernel.latest_transaction(staged.path, app) or 0) < checkpoint_id:
                _check_pages(staged, what)
                raise _refused(staged, checkpoint_id, error) from error
        kernel.outlasting(staged.path, files=True)


def rows_that_break(
    spark: SparkSession, target: SinkTarget, files: Sequence[DataFile], generated: Mapping[str, str]
) -> dict[str, dict[int, str]]:
    """Rows of staged files that break ``target.checks``, see ``Sink.broken_checks``, in one Spark job.

    Args:
        generated: columns that the table fills in itself, with the expressions that give their values.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    by_name = {f.path.rsplit("/", 1)[-1]: f.path for f in files}
    uris = [join(target.uri, f.path) for f in files]
    rows = _session(spark).read.options(**SPARK_VERIFIES).parquet(*uris)
    place = [F.col(f"_metadata.{name}").alias(f"_staged_{name}") for name in ("file_name", "row_index")]
    rows = rows.select("*", *place)
    for name, sql in generated.items():
        if name not in target.schema.names:
            rows = rows.withColumn(name, F.expr(sql))
    broken = F.lit(None).cast("string")
    for name, sql in reversed(target.checks):
        check = ~F.coalesce(F.expr(sql), F.lit(False))  # Delta does not take a row of which a check is null
        try:
            rows.select(check)
        except AnalysisException:  # it is over a column that only the table knows, such as an identity
            continue
        broken = F.when(check, F.lit(name)).otherwise(broken)
    bad = rows.select(*(c for c in rows.columns if c.startswith("_staged_")), broken.alias("why"))
    places: dict[str, dict[int, str]] = {}
    for name, row, why in bad.where("why IS NOT NULL").collect():
        places.setdefault(by_name[name], {})[row] = f"it breaks {why}"
    return places


def _check_pages(staged: StagedSink, what: str) -> None:
    """Separate damage to staged files, which Spark noticed as it read, from what the table refuses."""
    for file in staged.files:
        for _ in open_recorded(join(staged.path, file.path), file, of=what).batches(_ROWS_AT_ONCE):
            pass


def note_of(staged: StagedSink) -> str:
    """What a commit is for, as text that two different rows never share."""
    lists = ([f.path for f in staged.files], [f.path for f in staged.withdrawn])
    return f"{SYNCED_AFTERWARDS}{hashlib.sha256(repr([sorted(paths) for paths in lists]).encode()).hexdigest()[:32]}"


def _session(spark: SparkSession) -> SparkSession:
    """A session whose settings are ours alone."""
    made = spark.newSession()
    for key, value in _SETTINGS.items():
        made.conf.set(key, value)
    return made


def _rows(session: SparkSession, staged: StagedSink) -> DataFrame:
    if staged.files:
        files = (join(staged.path, f.path) for f in staged.files)
        return session.read.options(**SPARK_VERIFIES).parquet(*files)
    columns = [f"`{field['name']}`" for field in json.loads(staged.schema)["fields"]]
    return session.read.format("delta").load(staged.path).select(*columns).limit(0)


def _refused(staged: StagedSink, checkpoint_id: int, error: Exception) -> SinkError | CommitFailedError:
    java = getattr(error, "java_exception", None)
    texts = [str(java.toString()) if java is not None else str(error)]
    cause = java.getCause() if java is not None else None
    while cause is not None:
        texts.append(str(cause.toString()))
        cause = cause.getCause()
    last = texts[-1].splitlines()
    if any("Concurrent" in text.splitlines()[0] for text in texts):
        return CommitFailedError(
            f"sink '{staged.name}': another writer interfered at {staged.path} ({last[0]}); run again"
        )
    return SinkError(
        f"sink '{staged.name}': {staged.path} does not take the rows of checkpoint {checkpoint_id}: "
        f"{' '.join(last)}. Nothing was published and nothing is lost: let the table take them (drop or widen what "
        f"refuses them) and run again, or {DROP_ROWS}"
    )
