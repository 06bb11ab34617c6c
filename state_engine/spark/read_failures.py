"""What Spark raises while it reads a source, turned into a SourceError: job, source, file, record and cause."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError

from state_engine.core.errors import BadFileError, SourceError, StorageError
from state_engine.storage.stores.failures import java_storage_error, storage_error
from state_engine.storage.stores.files import open_location

_FILE = re.compile(r"\[FAILED_READ_FILE[^]]*\][^:]*? file (\S.*?)\.\s", re.DOTALL)
_KAFKA = ("org.apache.spark.sql.kafka010.", "org.apache.kafka.")
"""Begin the names of what Spark's reader of Kafka, or Kafka's client in it, raises."""
_IN_TASK = re.compile(r"^state_engine\.core\.errors\.SourceError: (.+)$", re.MULTILINE)
"""What the code of a source raised in a task."""
_FILE_IN_TASK = re.compile(r"^state_engine\.spark\.read_failures\.UnreadFileError: (\{.+\})$", re.MULTILINE)
_RECORD_IN_TASK = re.compile(
    r"^state_engine\.spark\.read_failures\.RefusedRecordError: (\{.+\})$", re.MULTILINE
)
_STATE = re.compile(r"\s+SQLSTATE: \w+$")
_GONE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (\S.*?)\.(?: SQLSTATE|\s|$)")
_RUN_AGAIN = "Run again, which lists the files again and leaves out what is gone"
_SET_ASIDE = ", or set on_bad_file='dead_letter' on its FileSource"
_OVERFLOW = "long overflow"
"""What Java says of a time that Spark cannot hold."""
_WAYS_OUT = {
    # what Hadoop raises for a name that it takes for a URI
    "Relative path in absolute URI": "The file may be whole, but cannot be opened under this name. Rename the file",
    "does not exist|No such file": _RUN_AGAIN,
    "Unsupported encoding": "Spark cannot read pages of this encoding. Write the file with encodings of Parquet 1.0 "
    "(plain, dictionary)",
    "Codec\\b": "Spark cannot unpack this compression. Write the file with zstd, gzip or snappy",
    _OVERFLOW: "A time of it is too far from 1970 for Spark, whose times are microseconds in 64 bits. Write such times "
    "as bigint or text",
    "crypt": "The file is encrypted. Write it without encryption",
    "": "Repair or remove the file",
}
"""By words in a cause, what helps."""
_RECORD_WAY_OUT = (
    "Repair the file or the schema, or set on_error='dead_letter' on the job to keep such rows aside"
)


class RefusedRecordError(Exception):
    """What is raised where a record does not fit and is not kept aside: JSON, which ``reading`` understands."""

    @classmethod
    def of(cls, place: str, problem: str) -> RefusedRecordError:
        """The error of a record.

        Args:
            place: the file, or what else holds the record.
        """
        return cls(json.dumps({"file": place, "problem": problem}))


class UnreadFileError(Exception):
    """What a task raises where Arrow cannot read a file of a source: JSON, which ``reading`` understands."""


@contextmanager
def reading_file(uri: str) -> Iterator[None]:
    """Read a file of a source with Arrow in a task, so that ``reading`` on the driver knows which one fails and why."""
    try:
        yield
    except MemoryError:  # no fault of the file
        raise
    except BadFileError as error:
        cause = str(error).removeprefix(f"{uri}: ")
        raise UnreadFileError(json.dumps({"file": uri, "cause": cause, "storage": False})) from error
    except (OSError, pa.ArrowException) as error:
        refused = storage_error(error, uri, "read") if isinstance(error, OSError) else None
        cause = " ".join(str(refused or error).split())
        storage = refused is not None or isinstance(error, StorageError)
        raise UnreadFileError(json.dumps({"file": uri, "cause": cause, "storage": storage})) from error


@contextmanager
def finding_files() -> Iterator[None]:
    """Make a DataFrame of files that were listed; BadFileError where Spark finds one no more."""
    from pyspark.errors.exceptions.captured import AnalysisException

    try:
        yield
    except AnalysisException as error:
        gone = _GONE.search(str(error))
        if gone is None:
            raise
        uri = re.sub("^file:/(?!/)", "file:///", gone.group(1))
        raise BadFileError(f"{uri} vanished after it was listed. {_RUN_AGAIN}", uri) from error


@contextmanager
def reading(source: str | None, *, job: str, into: str) -> Iterator[None]:
    """Run a Spark action that reads a source; other failures pass as they are.

    Args:
        source: its name; None where rows come from an operator.
    """
    from pyspark.errors.exceptions.captured import CapturedException

    where = f"job '{job}', source '{source or 'unknown'}', on the way to {into}: "
    try:
        yield
    except UnreadFileError as error:  # of this very process
        raise _unread(error.args[0], where) from error
    except RefusedRecordError as error:
        raise _refused(error.args[0], where) from error
    except (Py4JJavaError, CapturedException) as error:
        texts = messages(error)
        if (raised := _said(_IN_TASK, texts)) is not None:
            raise SourceError(f"job '{job}', on the way to {into}: {raised}") from error
        if (failed := _of_kafka(error, where)) is not None:
            raise failed from error
        if (unread := _said(_FILE_IN_TASK, texts)) is not None:
            raise _unread(unread, where) from error
        if (record := _said(_RECORD_IN_TASK, texts)) is not None:
            raise _refused(record, where) from error
        if (uri := _said(_FILE, [f"{text} " for text in texts])) is None:
            raise
        refused = java_storage_error("\n".join(texts), uri)
        if refused is not None:  # the file may be whole
            raise refused from error
        raise _bad_file(uri, _STATE.sub("", texts[-1]), where) from error


def _said(sign: re.Pattern[str], texts: list[str]) -> str | None:
    return next((match.group(1) for text in texts if (match := sign.search(text))), None)


def _of_kafka(error: Any, where: str) -> SourceError | None:
    raised = (java for java in _causes(error) if java.getClass().getName().startswith(_KAFKA))
    cause = next((" ".join(str(java.getMessage()).split()) for java in raised), None)
    if cause is None:
        return None
    return SourceError(
        f"{where}Kafka could not be read ({cause}). Nothing of this micro-batch was committed: run again; that names "
        "offsets that are gone for good"
    )


def _unread(packed: str, where: str) -> SourceError | StorageError:
    what = json.loads(packed)
    if what["storage"]:
        return StorageError(what["cause"], path=what["file"])
    return _bad_file(what["file"], what["cause"], where)


def _refused(packed: str, where: str) -> SourceError:
    what = json.loads(packed)
    return SourceError(_message(what["file"], what["problem"], _RECORD_WAY_OUT, where))


def way_out_of(cause: str) -> str:
    """What helps where a file cannot be read.

    Example:
        >>> way_out_of("no decryption found")
        "The file is encrypted. Write it without encryption, or set on_bad_file='dead_letter' on its FileSource"
    """
    way_out = next(way for words, way in _WAYS_OUT.items() if re.search(words, cause))
    return way_out if way_out == _RUN_AGAIN else way_out + _SET_ASIDE


def _bad_file(uri: str, cause: str, where: str) -> BadFileError:
    if cause == _OVERFLOW and (columns := _with_far_times(uri)):
        cause = f"column {', '.join(map(repr, columns))}: {cause}"
    way_out = way_out_of(cause)
    letter = f"{uri}: {cause.rstrip('.')}. {way_out.removesuffix(_SET_ASIDE)}"
    return BadFileError(_message(uri, cause, way_out, where), uri, letter=letter)


def _with_far_times(uri: str) -> list[str]:
    """Columns of a Parquet file with a time that microseconds in 64 bits do not hold, as far as its statistics say."""
    try:
        with open_location(uri).opened() as file:
            footer = pq.read_metadata(file)
    except (OSError, pa.ArrowException):
        return []
    chunks = [
        footer.row_group(group).column(place)
        for group in range(footer.num_row_groups)
        for place in range(footer.num_columns)
    ]
    columns = (
        chunk.path_in_schema
        for chunk in chunks
        if (stats := chunk.statistics) is not None
        and "timeUnit=milliseconds" in str(stats.logical_type)
        and stats.has_min_max
        and max(abs(stats.min_raw), abs(stats.max_raw)) * 1000 >= 2**63
    )
    return list(dict.fromkeys(columns))


def _message(uri: str, problem: str, way_out: str, where: str) -> str:
    return f"{where}{uri}: {problem.rstrip('.')}. Nothing of this micro-batch was committed. {way_out}"


def messages(error: Any) -> list[str]:
    """Messages of a Java exception and its causes, outermost first."""
    return [str(java.getMessage()) for java in _causes(error)] or [str(error)]


def _causes(error: Any) -> Iterator[Any]:
    """A Java exception and its causes, outermost first."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(20):
        if java is None:
            return
        yield java
        java = java.getCause()
