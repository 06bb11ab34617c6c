"""Where a row of a slice came from: the place of its file in the slice, as a Spark expression.

A scan gives a row's file as a URI of Hadoop's making (``file:/a%20b``), the slice as ours (``file:///a b``). The
expression compares 64-bit hashes of the former, in a form that costs little a row for one file and for thousands. A
file that the slice does not know is an error in the job, never a wrong place.
"""

from __future__ import annotations

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

_FEW_FILES = 64
_LEGAL = "/-_.!~'()*,;:$&+=@"
_PATTERN = re.compile(r"[*?\[\]{}\\]").search
"""Finds what Hadoop takes for a pattern."""
_ASCII = re.compile(r"[\x00-\x7f]+")


def place_columns(uris: Sequence[str], row: Column) -> list[Column]:
    """The hidden columns of a scan: place of the file in the slice, and row.

    Args:
        uris: of the files, each once, not escaped.
        row: number of the row in its file.
    """
    return [_file_place(uris).cast("int").alias(FILE_COLUMN), row.cast("bigint").alias(ROW_COLUMN)]


def scanned(uris: Sequence[str], scan: Callable[[list[str]], DataFrame]) -> DataFrame:
    """The rows of files, from as few scans as give each of them once.

    Spark gives all files of a scan again for a name among them that it takes for a pattern, so such a file has a scan
    of its own.

    Args:
        uris: of the files.
        scan: gives the rows of some of them.
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
    if len(uris) <= 1:
        return F.lit(0)
    path = F.col("_metadata.file_path")
    path_hash = F.xxhash64(path)
    unknown = F.raise_error(F.concat(F.lit("a file that is not in the slice was read: "), path)).cast("int")
    spellings = [scan_uris(u) for u in uris]
    if len(uris) <= _FEW_FILES:  # an array is data to generated code, which is then compiled only once
        hashes = [hash_string(s[i]) for i in range(len(spellings[0])) for s in spellings]
        place = F.array_position(F.lit(hashes), path_hash)
        return F.when(place == 0, unknown).otherwise((place - 1) % len(uris))
    # as text, parsed in one go: an expression of thousands of columns would take as many round trips to the JVM
    value = "_metadata.file_path"
    if len(spellings[0]) > 1:  # one spelling a file keeps the search small; it is made on the scan's side
        short = f"concat('file:', substr({value}, 8))"
        value = f"CASE WHEN startswith({value}, 'file:///') THEN {short} ELSE {value} END"
    ordered = sorted((hash_string(s[-1]), i) for i, s in enumerate(spellings))
    return F.coalesce(F.expr(_search(f"xxhash64({value})", ordered)), unknown)


def _search(value: str, ordered: list[tuple[int, int]]) -> str:
    """A binary search as SQL: a map literal would be scanned from its start for every row."""
    if len(ordered) == 1:
        uri_hash, place = ordered[0]
        return f"CASE WHEN {value} = {uri_hash}L THEN {place} END"
    middle = len(ordered) // 2
    left, right = _search(value, ordered[:middle]), _search(value, ordered[middle:])
    return f"CASE WHEN {value} < {ordered[middle][0]}L THEN {left} ELSE {right} END"
