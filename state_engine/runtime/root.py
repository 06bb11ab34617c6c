"""The state root: a directory with an id, under which every job keeps its tables.

The id is random and made with the root, so that two roots that write to one sink are told apart. Storage that cannot
keep a Delta log safe is refused: network file systems (their locks cannot be trusted), and object stores without
put-if-absent unless the caller vouches for a single writer.
"""

from __future__ import annotations

import json
from uuid import uuid4

import pyarrow.fs as pafs

from state_engine.backends.delta.locks import table_lock
from state_engine.backends.files import is_local, join, open_location
from state_engine.core.errors import RootError
from state_engine.core.format_versions import FORMAT_VERSION, newer, older
from state_engine.runtime.file_systems import refuse_network_root

MARKER = "_statelake.json"
_NO_PUT_IF_ABSENT = ("s3", "s3a", "s3n")


def open_root(uri: str, *, create: bool) -> str | None:
    """The id of a root; made if asked for, else None where there is no root.

    Raises:
        RootError: the root has another format, or is a directory of something else.
    """
    found = read_marker(uri)
    if found is None and create:
        with table_lock(uri):
            found = read_marker(uri) or _made(uri)
    if found is None:
        return None
    if int(found["format"]) > FORMAT_VERSION:
        raise newer(uri, int(found["format"]))
    if int(found["format"]) < FORMAT_VERSION:
        raise older(uri, int(found["format"]))
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


def read_marker(uri: str) -> dict[str, str] | None:
    """What a root says of itself: its id and its format; None where there is no root. Raises RootError."""
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


def write_marker(uri: str, content: dict[str, str]) -> None:
    """Write what a root says of itself, whole or not at all."""
    at = open_location(join(uri, MARKER))
    # an object appears when it is complete; a local file may be seen half written
    path = f"{at.path}.{uuid4().hex}" if is_local(uri) else at.path
    with at.fs.open_output_stream(path) as stream:
        stream.write(json.dumps(content).encode())
    if path != at.path:
        at.fs.move(path, at.path)


def _made(uri: str) -> dict[str, str]:
    made = {"root_id": uuid4().hex, "format": str(FORMAT_VERSION)}
    if not is_local(uri):
        at = open_location(uri)
        at.fs.create_dir(at.path, recursive=True)
    write_marker(uri, made)
    return made
