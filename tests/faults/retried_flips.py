"""One bit is flipped in files of sinks, after a micro-batch one of whose tasks ran twice.

Files that are read to be published are refused by name, and nothing is shown; when the bit is put back, the job runs
on. Files of sinks that are shown without being read (``DeltaSink``, ``FileSink``) are their readers' matter: those that
verify checksums of pages notice. Files of state are in ``test_flips``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import StatelakeError
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.retried_tasks import Bed, shown, written_by

Place = Literal["page", "footer"]
PLACES: tuple[Place, ...] = ("page", "footer")
READ_TO_PUBLISH = ("spark_delta", "sql", "function", "postgres")
"""Sinks whose staged files are read when they are published."""
SHOWN_AS_THEY_ARE = ("delta", "files")


def flips(bed: Bed) -> dict[str, Any]:
    """Files that wait for sinks, then those that sinks show."""
    return {"sinks": _sinks(bed), "readers": _readers(bed)}


def _largest(files: Sequence[DataFile]) -> DataFile:
    return max(files, key=lambda f: f.rows)


def _run(bed: Bed) -> Callable[[], Any]:
    return lambda: bed.site().run()


def _sinks(bed: Bed) -> dict[str, Any]:
    """The second micro-batch is committed; a flip stops its publication where a sink reads the file."""
    bed.put_back("one")
    dying = bed.dying()
    with installed([Fault("before publish")]), pytest.raises(InjectedFault):
        bed.site(dying=dying).run(max_batches=1)
    assert written_by(dying)
    outcomes = {}
    for name, path in _staged(bed, READ_TO_PUBLISH).items():
        for place in PLACES:
            with flipped(path, place):
                outcomes[f"{name} {place}"] = _refused(path, _run(bed))
    bed.site().run()
    return {"outcomes": outcomes, "seen": shown(bed.site())}


def _readers(bed: Bed) -> dict[str, str]:
    """The outcome of a verifying reader on a flipped page that a sink shows."""
    bed.put_back("retried")
    outcomes = {}
    for name in SHOWN_AS_THEY_ARE:
        listed = {
            f.path.rsplit("/", 1)[-1] for s in bed.site().path()[-1].sinks if s.name == name for f in s.files
        }
        path = next(p for p in (bed.work / "sinks" / name).rglob("part-*.parquet") if p.name in listed)
        with flipped(path, "page"):
            outcomes[name] = _refused(None, partial(pq.read_table, path, page_checksum_verification=True))
    return outcomes


def _staged(bed: Bed, kinds: tuple[str, ...]) -> dict[str, Path]:
    """A file that is not published yet, by sink."""
    return {
        sink.name: Path(sink.path.removeprefix("file://")) / _largest(sink.files).path
        for sink in bed.site().path()[-1].sinks
        if sink.name.startswith(kinds)
    }


# -- flips -------------------------------------------------------------------------------------------------------------


@contextmanager
def flipped(path: Path, place: Place) -> Iterator[None]:
    """Flip a bit: the last one of a page of the first column, or one in the middle of the footer."""
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    begin = min(o for o in (column.dictionary_page_offset, column.data_page_offset) if o)
    at = begin + column.total_compressed_size - 1 if place == "page" else len(content) - 8 - footer // 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    try:
        yield
    finally:
        path.write_bytes(content)


def _refused(path: Path | None, action: Callable[[], Any]) -> str:
    """``refused`` where a StatelakeError names the file, or a reader of a sink's file fails; else the outcome."""
    try:
        action()
    except StatelakeError as error:
        return "refused" if path is not None and path.name in str(error) else f"another error: {error}"
    except OSError as error:
        return "refused" if path is None else f"raw: {error!r}"
    except Exception as error:
        return f"raw: {error!r}"
    return "not noticed"
