"""Where a row of a slice came from: the place of its file in the slice, as a Spark expression.

A scan gives a row's file as a URI of Hadoop's making (``file:/a%20b``), the slice as ours (``file:///a b``). The
expression compares 64-bit hashes of the former, in a form that costs little a row for one file and for thousands. A
file that the slice does not know is an error in the job, never a wrong place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import quote

from state_engine.core.keys.hashing import hash_string
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN
from state_engine.spark.spark_names import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LEGAL = "/-_.!~'()*,;:$&+=@"
_PATTERN = re.compile(r"[*?\[\]{}\\]").search
"""Finds what Hadoop takes for a pattern."""
_ASCII = re.compile(r"[\x00-\x7f]+")
STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "__globPaths__": "false"}
"""What a session may say otherwise: rows would be lost silently. The last, as Spark's own file stream has it: names are
no patterns."""


def place_columns(uris: Sequence[str], row: Column) -> list[Column]:
    """The hidden columns of a scan: place of the file in the slice, and row.

    Args:
        uris: of the files, each once, not escaped.
    """
    return [_file_place(uris).cast("int").alias(FILE_COLUMN), row.cast("bigint").alias(ROW_COLUMN)]


def scanned(uris: Sequence[str], scan: Callable[[list[str]], DataFrame]) -> DataFrame:
    """The rows of files, from as few scans as give each of them once.

    Spark gives all files of a scan again for a name among them that it takes for a pattern, so such a file has a scan
    of its own.
    """
    plain = [uri for uri in uris if not _PATTERN(uri)]
    groups = [plain] if plain else []
    groups += [[uri] for uri in uris if _PATTERN(uri)]
    return reduce(lambda above, below: above.union(below), map(scan, groups))


def scan_uris(uri: str) -> list[str]:
    """How a scan may spell a URI: escaped as Java does it, with one slash or three where it is local.

    Example:
        >>> scan_uris("file:///a b/ü.parquet")
        ['file:///a%20b/ü.parquet', 'file:/a%20b/ü.parquet']
    """
    scheme, rest = uri.split("://", 1)
    authority, slash, path = rest.partition("/")
    escaped = _ASCII.sub(lambda match: quote(match.group(), safe=_LEGAL), slash + path)
    spelled = [f"{scheme}://{authority}{escaped}"]
    return [*spelled, f"file:{escaped}"] if scheme == "file" else spelled


def _file_place(uris: Sequence[str]) -> Column:
    """A look-up in arrays of arrays: they are data to generated code, which does not grow by them."""
    if len(uris) <= 1:
        return F.lit(0)
    path = F.col("_metadata.file_path")
    unknown = F.raise_error(F.concat(F.lit("a file that is not in the slice was read: "), path)).cast("int")
    spellings = [scan_uris(uri) for uri in uris]
    if len(spellings[0]) > 1:  # one spelling a file keeps the arrays small; it is made on the scan's side
        path = F.when(
            F.startswith(path, F.lit("file:///")), F.concat(F.lit("file:"), F.substr(path, F.lit(8)))
        ).otherwise(path)
    path_hash = F.xxhash64(path)
    hashes: list[list[int]] = [[] for _ in uris]
    places: list[list[int]] = [[] for _ in uris]
    for place, spelled in enumerate(spellings):
        uri_hash = hash_string(spelled[-1])
        hashes[uri_hash % len(uris)].append(uri_hash)
        places[uri_hash % len(uris)].append(place)
    bucket = (F.pmod(path_hash, F.lit(len(uris))) + 1).cast("int")
    inside = F.array_position(F.element_at(_literal(hashes, "bigint"), bucket), path_hash).cast("int")
    return F.when(inside == 0, unknown).otherwise(
        F.element_at(F.element_at(_literal(places, "int"), bucket), inside)
    )


def _literal(arrays: list[list[int]], kind: str) -> Column:
    """Arrays of numbers, parsed once: as columns of their own they would take a round trip to the JVM each."""
    return F.from_json(F.lit(json.dumps(arrays)), f"array<array<{kind}>>")
