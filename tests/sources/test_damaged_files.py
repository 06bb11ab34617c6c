"""Damaged files of every kind, whoever reads them: refused with file and way out, or one letter, and the way out helps.

What looks like a file that somebody is still writing waits, and says so.
"""

from __future__ import annotations

import base64
import bz2
import errno
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from state_engine import FileSource
from state_engine.core.errors import BadFileError, SourceError, StorageError
from state_engine.sources.base import Slice, SourceFrame
from state_engine.sources.parquet.parquet_files import parquet_row_count
from state_engine.spark.no_spark import NO_SPARK
from state_engine.spark.read_failures import UnreadFileError, reading, reading_file
from state_engine.storage.stores.files import Location, normal_uri
from tests.sources.reading import read
from tests.support.limits import limits_of_session

WAYS = ("the driver", "tasks", "Spark")
SCHEMA = "id bigint, t string"


def rows_from(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "t": [f"text {n}" * 3 for n in range(count)]})


def write(path: Path, first: int = 0, count: int = 200, **options: Any) -> None:
    pq.write_table(rows_from(first, count), path, **options)


def edited(edit: Callable[[bytes], bytes], **options: Any) -> Callable[[Path], None]:
    """Writes a file whose bytes are changed."""

    def damage(path: Path) -> None:
        write(path, **options)
        path.write_bytes(edit(path.read_bytes()))

    return damage


def put(content: bytes, at: int) -> Callable[[bytes], bytes]:
    """Puts bytes in the place of others; from the end where the place is negative."""

    def edit(of_file: bytes) -> bytes:
        start = at % len(of_file)
        return of_file[:start] + content + of_file[start + len(content) :]

    return edit


def footer_bytes(content: bytes) -> int:
    """How long the footer is, with its length and the mark."""
    return int.from_bytes(content[-8:-4], "little") + 8


def footer_of_another(path: Path) -> None:
    write(path, count=3000)
    other = path.read_bytes()
    write(path)
    mine = path.read_bytes()
    path.write_bytes(mine[: -footer_bytes(mine)] + other[-footer_bytes(other) :])


def unknown_codec(content: bytes) -> bytes:
    """Brotli is 4, which a footer has as 8; no codec is 15."""
    first = len(content) - footer_bytes(content)
    return content[:first] + content[first:].replace(b"\x15\x08", b"\x15\x1e")


class OwnKeys(pe.KmsClient):
    def __init__(self, _config: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _master: str) -> bytes:
        return base64.b64decode(wrapped_key)


def encrypted(path: Path, *, plain_footer: bool) -> None:
    config = pe.EncryptionConfiguration(
        footer_key="a", column_keys={"b": ["id", "t"]}, plaintext_footer=plain_footer
    )
    factory = pe.CryptoFactory(OwnKeys)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, rows_from(0, 1).schema, encryption_properties=properties) as writer:
        writer.write_table(rows_from(0, 200))


def of_other_types(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "t": ["b"]}), path)


def put_in(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@dataclass(frozen=True)
class Damage:
    """A file that cannot be read.

    Attributes:
        make: it, at a path.
        words: of the message and the letter, the way out among them.
        ways: of reading, that cannot read it.
        written_again: options of Arrow's writer that the way out asks for.
    """

    make: Callable[[Path], None]
    words: str = "[Rr]epair or remove the file"
    ways: tuple[str, ...] = WAYS
    written_again: dict[str, Any] = field(default_factory=dict)


PAGES: dict[str, Any] = {"use_dictionary": False}
DAMAGES = {
    "the head of a page": Damage(edited(put(b"\xff" * 30, 10))),
    "a packed page": Damage(edited(put(bytes(40), 300), **PAGES)),
    "a page with a checksum": Damage(
        edited(put(bytes(40), 300), compression="none", write_page_checksum=True, **PAGES)
    ),
    "bytes are missing": Damage(edited(lambda content: content[:100] + content[600:])),
    "the footer": Damage(edited(put(b"\x7f" * 40, -60))),
    "the length of the footer": Damage(edited(put(b"\xff\xff\xff\x7f", -8))),
    "the footer of another file": Damage(footer_of_another, "that of another file.*write the file again"),
    "a text": Damage(partial(put_in, content=b"id,t\n1,a\n" * 50)),
    "a short text": Damage(partial(put_in, content=b"id")),
    "an unknown codec": Damage(edited(unknown_codec, compression="brotli")),
    "a codec that Spark lacks": Damage(
        partial(write, compression="brotli"), "with zstd, gzip or snappy", ("Spark",), {"compression": "zstd"}
    ),
    "an encoding that Spark lacks": Damage(
        partial(write, column_encoding={"id": "BYTE_STREAM_SPLIT"}, **PAGES),
        r"with encodings of Parquet 1\.0",
        ("Spark",),
        {"version": "1.0"},
    ),
    "encrypted": Damage(partial(encrypted, plain_footer=False), "is encrypted. Write it without encryption"),
    "encrypted columns": Damage(
        partial(encrypted, plain_footer=True), "is encrypted. Write it without encryption"
    ),
    "other types": Damage(of_other_types, "column 'id' holds string.*write the file with the declared type"),
}


@contextmanager
def reading_by(spark: SparkSession, way: str) -> Iterator[dict[str, Any]]:
    """Options of a source of Parquet whose files are read so."""
    with limits_of_session(spark) as set_limits:
        if way == "tasks":
            set_limits(stored_bytes=-1)
        yield {"options": {"mergeSchema": "false"}} if way == "Spark" else {}


def check_message(message: str) -> None:
    """It is for people, and no stack."""
    assert "Traceback" not in message
    assert "\tat " not in message
    assert len(message) < 1200


@pytest.mark.spark
@pytest.mark.parametrize(
    ("what", "way"), [(what, way) for what, damage in DAMAGES.items() for way in damage.ways]
)
def test_damaged_parquet_is_refused_or_one_letter(
    tmp_path: Path, spark: SparkSession, what: str, way: str
) -> None:
    damage, feed = DAMAGES[what], tmp_path / "in"
    feed.mkdir()
    write(feed / "a.parquet", 1000, 2)
    damage.make(feed / "b.parquet")
    write(feed / "c.parquet", 2000, 2)
    with reading_by(spark, way) as options:
        with pytest.raises(
            BadFileError, match=rf"job 'reads', source 'files'.*b\.parquet.*{damage.words}"
        ) as bad:
            read(spark, tmp_path, SCHEMA, on_bad_file="fail", **options)
        check_message(str(bad.value))
        assert "or set on_bad_file='dead_letter' on its FileSource" in str(bad.value)
        reading = read(spark, tmp_path, SCHEMA, **options)
        assert sorted(row["id"] for row in reading.rows) == [1000, 1001, 2000, 2001]
        ((uri, reason),) = reading.letters
        assert uri == bad.value.uri == f"file://{feed}/b.parquet"
        assert "Nothing of this micro-batch" not in reason
        check_message(reason)
        write(feed / "d.parquet", 3000, 1, **damage.written_again)
        again = read(spark, tmp_path, SCHEMA, **options)
    assert sorted(row["id"] for row in again.rows) == [1000, 1001, 2000, 2001, 3000]
    assert len(again.letters) == 1


WAITING: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no bytes": ("b.parquet", partial(put_in, content=b""), "is empty"),
    "zeros": ("b.parquet", partial(put_in, content=bytes(1000)), "has no Parquet footer yet"),
    "the begin": ("b.parquet", partial(put_in, content=b"PA"), "has no Parquet footer yet"),
    "no footer yet": ("b.parquet", edited(lambda content: content[:-30]), "has no Parquet footer yet"),
    "a text of another name": ("notes.txt", partial(put_in, content=b"what this is"), "is not a Parquet file"),
}  # fmt: skip


@pytest.mark.parametrize("what", WAITING)
def test_what_may_still_be_written_waits_and_says_so(tmp_path: Path, what: str) -> None:
    name, make, reason = WAITING[what]
    write(tmp_path / "a.parquet")
    make(tmp_path / name)
    source = FileSource(str(tmp_path), schema=SCHEMA)
    part = source.plan(NO_SPARK, [])
    assert part is not None
    assert part.labels == [f"file://{tmp_path}/a.parquet"]
    (waits,) = source.waiting(part.elements)
    assert f"{name} {reason}" in waits


UNPACKED = "cannot be unpacked"
TEXTS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "gzip, cut": ("b.json.gz", lambda content: gzip.compress(content)[:-20], UNPACKED),
    "gzip, changed": ("b.json.gz", lambda content: put(b"\xff" * 20, 200)(gzip.compress(content)), UNPACKED),
    "gzip, another checksum": ("b.json.gz", lambda content: put(b"\0", -6)(gzip.compress(content)), UNPACKED),
    "gzip and more": ("b.json.gz", lambda content: gzip.compress(content) + b"more", UNPACKED),
    "no gzip": ("b.json.gz", bytes, UNPACKED),
    "bzip2, cut": ("b.json.bz2", lambda content: bz2.compress(content)[:-10], UNPACKED),
    "deflate, cut": ("b.json.deflate", lambda content: zlib.compress(content)[:-6], UNPACKED),
    "zstd, cut": ("b.json.zst", lambda content: pa.compress(content, "zstd", asbytes=True)[:-3], UNPACKED),
    "no zstd": ("b.json.zst", bytes, UNPACKED),
    "unknown to us": ("b.json.lz4", bytes, r"packed as \.lz4.*pack it with gzip"),
    "UTF-16": ("b.json", lambda content: content.decode().encode("utf-16"), "set the option encoding to UTF-16"),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("way", WAYS[:2])
def test_damaged_text_is_refused_or_one_letter(tmp_path: Path, spark: SparkSession, way: str) -> None:
    content = b"".join(b'{"id": %d}\n' % number for number in range(5000))
    for what, (name, damage, words) in TEXTS.items():
        directory = tmp_path / what
        feed = directory / "in"
        feed.mkdir(parents=True)
        (feed / "a.json").write_text('{"id": 10000}')
        (feed / name).write_bytes(damage(content))
        with reading_by(spark, way):
            with pytest.raises(BadFileError, match=f"source 'files'.*{name}: .*{words}") as bad:
                read(spark, directory, "id bigint", on_bad_file="fail", format="json")
            check_message(str(bad.value))
            reading = read(spark, directory, "id bigint", format="json")
        assert [row["id"] for row in reading.rows] == [10000], what
        ((uri, reason),) = reading.letters
        assert uri == bad.value.uri == f"file://{feed}/{name}"
        check_message(reason)


class VanishesAtOnce(FileSource):
    """A file goes after it was listed."""

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        for file in Path(self.path.removeprefix("file://")).glob("b.*"):
            file.unlink()
        return super().read(spark, part, keep_refused=keep_refused)


class VanishesLater(FileSource):
    """A file goes before tasks read it."""

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        frame = super().read(spark, part, keep_refused=keep_refused)
        for file in Path(self.path.removeprefix("file://")).glob("b.*"):
            file.unlink()
        return frame


@pytest.mark.spark
@pytest.mark.parametrize("on_bad_file", ["fail", "dead_letter"])
@pytest.mark.parametrize("kind", [VanishesAtOnce, VanishesLater])
@pytest.mark.parametrize("way", [*WAYS, "json", "json by tasks"])
def test_a_file_that_vanished_is_named_and_the_next_run_goes_on(
    tmp_path: Path, spark: SparkSession, kind: type[FileSource], on_bad_file: str, way: str
) -> None:
    feed = tmp_path / "in"
    feed.mkdir()
    for place, name in enumerate("abc"):
        if way.startswith("json"):
            put_in(feed / f"{name}.json", b'{"id": %d}' % place)
        else:
            write(feed / f"{name}.parquet", place, 1)
    form = {"format": "json"} if way.startswith("json") else {}
    with reading_by(spark, way.split(" by ")[-1]) as options:
        given = {"on_bad_file": on_bad_file, "kind": kind, **options, **form}
        with pytest.raises(SourceError, match=r"source 'files'.*b\.(parquet|json).*[Rr]un again") as gone:
            read(spark, tmp_path, SCHEMA, **given)
        check_message(str(gone.value))
        assert "Repair or remove" not in str(gone.value)
        reading = read(spark, tmp_path, SCHEMA, **given)
    assert sorted(row["id"] for row in reading.rows) == [0, 2]
    assert reading.letters == []


class _Java:
    def __init__(self, *messages: str) -> None:
        self.messages = messages

    def getMessage(self) -> str:
        return self.messages[0]

    def getClass(self) -> _Java:
        return self

    def getName(self) -> str:
        return "java.lang.RuntimeException"

    def getCause(self) -> _Java | None:
        return _Java(*self.messages[1:]) if self.messages[1:] else None


class _Raised(Py4JJavaError):
    def __init__(self, *messages: str) -> None:
        self.java_exception = _Java(*messages)


def spark_raises(cause: str) -> None:
    failed = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///feed/a.parquet. SQLSTATE: KD001"
    with reading("events", job="sums", into="operator 'sum'"):
        raise _Raised("Job aborted", failed, cause)


def test_of_what_spark_cannot_read_the_storage_may_be_the_cause() -> None:
    with pytest.raises(BadFileError, match="could not read page") as bad:
        spark_raises("could not read page PageHeader in col [id] required int64 id")
    assert bad.value.uri == "file:///feed/a.parquet"
    with pytest.raises(StorageError, match=r"/feed/a\.parquet .*the permission is denied") as refused:
        spark_raises("/feed/a.parquet (Permission denied)")
    assert not isinstance(refused.value, SourceError)
    with pytest.raises(StorageError, match="too many files are open"):
        spark_raises("/feed/a.parquet (Too many open files)")


@pytest.mark.parametrize(
    "error",
    [
        StorageError("/feed/a.parquet cannot be read: the permission is denied"),
        OSError(errno.EAGAIN, "not now", "/feed/a.parquet"),
    ],
)
def test_of_what_arrow_cannot_read_the_storage_may_be_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    uri = normal_uri(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"no footer of Parquet")
    with pytest.raises(BadFileError, match=r"a\.parquet cannot be read as Parquet"):
        parquet_row_count(uri)

    @contextmanager
    def refused(self: Location) -> Iterator[Any]:
        raise error
        yield

    monkeypatch.setattr(Location, "parquet", refused)
    with pytest.raises(OSError, match=r"a\.parquet") as raised:
        parquet_row_count(uri)
    assert raised.value is error


def on_the_driver(error: Exception) -> None:
    """What becomes of an error that a task met as it read a file."""
    uri = "file:///feed/a b.parquet"
    with pytest.raises(UnreadFileError) as unread, reading_file(uri):
        raise error
    name = f"{UnreadFileError.__module__}.{UnreadFileError.__qualname__}"
    with reading("events", job="sums", into="operator 'sum'"):
        raise _Raised(f"Job aborted: Traceback:\n  File x\n{name}: {unread.value}\n\tat org.apache.spark")


def test_of_what_a_task_cannot_read_the_storage_may_be_the_cause() -> None:
    with pytest.raises(BadFileError, match=r"job 'sums', source 'events'.*a b\.parquet: Unexpected") as bad:
        on_the_driver(pa.ArrowInvalid("Unexpected\nend of stream"))
    assert bad.value.uri == "file:///feed/a b.parquet"
    with pytest.raises(BadFileError):
        on_the_driver(FileNotFoundError(2, "No such file", "/feed/a b.parquet"))
    for error in (PermissionError(13, "Permission denied", "/feed/a b.parquet"), StorageError("it is gone")):
        with pytest.raises(StorageError, match=r"permission is denied|is gone"):
            on_the_driver(error)
