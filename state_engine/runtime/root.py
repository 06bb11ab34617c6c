"""The state root: a directory with an id, under which every job keeps its tables.

The id is random and made with the root, so that two roots that write to one sink are told apart. Storage that cannot
keep a Delta log safe is refused: network file systems (their locks cannot be trusted), and object stores without
put-if-absent unless the caller vouches for a single writer.
"""

from __future__ import annotations

import json
from uuid import uuid4

import pyarrow.fs as pafs

from state_engine.backends.delta.layout import FORMAT_VERSION
from state_engine.backends.delta.locks import table_lock
from state_engine.backends.files import is_local, join, open_location
from state_engine.core.errors import RootError
from state_engine.runtime.file_systems import refuse_network_root

MARKER = "_statelake.json"
_NO_PUT_IF_ABSENT = ("s3", "s3a", "s3n")


def open_root(uri: str, *, create: bool) -> str | None:
    """The id of a root; made if asked for, else None where there is no root.

    Raises:
        RootError: the root has another format, or is a directory of something else.
    """
    found = _read(uri)
    if found is None and create:
        with table_lock(uri):
            found = _read(uri) or _write(uri)
    if found is None:
        return None
    if int(found["format"]) > FORMAT_VERSION:
        raise RootError(
            f"{uri} has format {found['format']}, this version reads up to {FORMAT_VERSION}: upgrade Statelake"
        )
    if int(found["format"]) < FORMAT_VERSION:
        raise RootError(
            f"{uri} has format {found['format']} of an unreleased version, this one reads {FORMAT_VERSION}: remove the "
            "root, or take another one, and run the jobs anew"
        )
    return str(found["root_id"])


def check_storage(uri: str, *, log_store: str | None, single_writer: bool) -> None:
    """Refuse storage on which commits are not safe.

    Args:
        uri: of the root.
        log_store: Delta log store that is configured for the scheme, if any.
        single_writer: the caller vouches that nobody else writes.
    """
    scheme = uri.split(":")[0]
    if scheme in _NO_PUT_IF_ABSENT and log_store is None and not single_writer:
        raise RootError(
            f"{uri}: S3 without a multi-writer log store loses commits when two runners meet. Configure one "
            f"(spark.delta.logStore.{scheme}.impl, for example S3DynamoDBLogStore), or pass single_writer=True if "
            "only one process will ever run this root"
        )
    refuse_network_root(uri)


def _read(uri: str) -> dict[str, str] | None:
    at = open_location(join(uri, MARKER))
    if at.info().type != pafs.FileType.File:
        return None
    with at.fs.open_input_stream(at.path) as stream:
        try:
            found: dict[str, str] = json.loads(stream.read())
        except ValueError as error:
            raise RootError(
                f"{uri}/{MARKER} is damaged ({error}): restore it from a backup of the root"
            ) from None
    if not {"root_id", "format"} <= set(found):
        raise RootError(f"{uri}/{MARKER} was not written by this engine: use another directory as root")
    return found


def _write(uri: str) -> dict[str, str]:
    made = {"root_id": uuid4().hex, "format": str(FORMAT_VERSION)}
    at = open_location(join(uri, MARKER))
    if not is_local(uri):
        at.fs.create_dir(at.path.rsplit("/", 1)[0], recursive=True)
    with at.fs.open_output_stream(at.path) as stream:
        stream.write(json.dumps(made).encode())
    return made
