"""What Spark raises while it reads a source, turned into a SourceError: job, source, file, record and cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from state_engine.core.errors import BadFileError, SourceError
from state_engine.storage.storage_errors import java_storage_error

_FILE = re.compile(r"\[FAILED_READ_FILE[^]]*\][^:]*? file (\S.*?)\.\s", re.DOTALL)
_RECORD = re.compile(r"\[MALFORMED_RECORD_IN_PARSING[^]]*\].*?: (\[.*?\])\.\s", re.DOTALL)
_KAFKA = ("org.apache.spark.sql.kafka010.", "org.apache.kafka.")
"""Begin the names of what Spark's reader of Kafka, or Kafka's client in it, raises."""
_IN_TASK = re.compile(r"^state_engine\.core\.errors\.SourceError: (.+)$", re.MULTILINE)
"""What the code of a source raised in a task."""
_STATE = re.compile(r"\s+SQLSTATE: \w+$")


@contextmanager
def reading(source: str | None, *, job: str, into: str) -> Iterator[None]:
    """Run a Spark action that reads a source; other failures pass as they are.

    Args:
        source: its name; None where rows come from an operator.
        job: name.
        into: what the rows are read for, as text.

    Raises:
        SourceError: a file cannot be read (``BadFileError``), or a record cannot be parsed.
        StorageError: the storage refused to read a file.
    """
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        yield
    except (Py4JJavaError, CapturedException) as error:
        texts = messages(error)
        raised = next((m.group(1) for text in texts if (m := _IN_TASK.search(text))), None)
        if raised is not None:
            raise SourceError(f"job '{job}', on the way to {into}: {raised}") from error
        raised_there = (java for java in _causes(error) if java.getClass().getName().startswith(_KAFKA))
        kafka = next((str(java.getMessage()) for java in raised_there), None)
        if kafka is not None:
            raise SourceError(
                f"job '{job}', source '{source or 'unknown'}', on the way to {into}: Kafka could not be read "
                f"({' '.join(kafka.split())}). Nothing of this micro-batch was committed: run again; what is gone for "
                "good is then named with its offsets"
            ) from error
        match = next((m for text in texts if (m := _FILE.search(text + " "))), None)
        if match is None:
            raise
        record = next((m.group(1) for text in texts if (m := _RECORD.search(text + " "))), None)
        refused = java_storage_error("\n".join(texts), match.group(1)) if record is None else None
        if refused is not None:  # the file may be whole
            raise refused from error
        cause = _STATE.sub("", texts[-1])
        if record is None:
            problem, way_out = (
                cause,
                "Repair or remove the file, or set on_bad_file='dead_letter' on its FileSource",
            )
        else:
            problem = f"the record {record} does not fit the declared schema ({cause})"
            way_out = "Repair the file or the schema, or set on_error='dead_letter' on the job to keep such rows aside"
        message = (
            f"job '{job}', source '{source or 'unknown'}', on the way to {into}: {match.group(1)}: {problem}. "
            f"Nothing of this micro-batch was committed. {way_out}"
        )
        raise (BadFileError(message, match.group(1)) if record is None else SourceError(message)) from error


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
