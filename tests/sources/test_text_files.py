"""Rows of CSV and JSON: each is what was written, or refused with its column and value; a table of the faults.

Files are as small as the driver reads them, so none of these needs Spark; ``test_text_tasks`` has the tasks.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import re
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine import FileSource
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.text.date_patterns import zone_of
from state_engine.sources.text.text_columns import ColumnReader, csv_column, json_column
from state_engine.sources.text.text_values import JsonNumber, TextRules
from state_engine.spark.no_spark import NO_SPARK
from state_engine.spark.read_failures import UnreadFileError


class Read(NamedTuple):
    """What a file gives: rows without their names, and texts and reasons of what is refused."""

    rows: list[tuple[Any, ...]]
    refused: list[tuple[bytes, str]]


def read(
    directory: Path, content: str | bytes, schema: str, *, format: Any = "csv", name: str = "x", **given: Any
) -> Read:
    """Read one file, and read what it refuses again: the same is refused, for the same reason."""
    file = directory / f"{name}.{format}" if name == "x" else directory / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = FileSource(str(directory), schema=schema, format=format, **given)
    part = source.plan(NO_SPARK, [])
    assert part is not None
    frame = source.read(NO_SPARK, part, keep_refused=True)
    rows, refused = parts(frame)
    if refused:
        again = source.parse(NO_SPARK, [record for record, _ in refused], keep_refused=True)
        assert parts(again) == ([], refused)
    return Read(rows, refused)


def parts(frame: SourceFrame) -> Read:
    """Rows and refused records that the driver has."""
    rows, refused = frame.rows, frame.refused
    assert isinstance(rows, pa.Table)
    assert refused is None or isinstance(refused, pa.Table)
    values = [tuple(row.values()) for row in rows.drop_columns([FILE_COLUMN, ROW_COLUMN]).to_pylist()]
    letters = [] if refused is None else refused.select(["record", "reason"]).to_pylist()
    return Read(values, [(one["record"], one["reason"]) for one in letters])


HEADER = {"header": "true"}
CSV: dict[str, tuple[str | bytes, str, dict[str, str], list[Any]]] = {
    "columns by name": (
        "customer,ship_city,bill_city\nA,s,b\n", "customer string, bill_city string, ship_city string", HEADER,
        [("A", "b", "s")],
    ),
    "a further column": ("x,k\n1,2\n", "k int", HEADER, [(2,)]),
    "a column that is missing": ("k\n1\n", "k int, v string", HEADER, [(1, None)]),
    "a header in another case": ("K\n1\n", "k int", HEADER, [(1,)]),
    "a byte-order mark": ("\ufeffk,v\n1,a\n", "v string, k int", HEADER, [("a", 1)]),
    "a header in quotes": ('"k","a,b"\n1,2\n', "`a,b` int, k int", HEADER, [(2, 1)]),
    "only a header": ("k,v\n", "k int, v int", HEADER, []),
    "a header again": ("k,v\na,1\nk,v\n", "k string, v string", HEADER, [("a", "1"), ("k", "v")]),
    "by position, as Spark does": ("x,y\n1,2\n", "k int, v int", {**HEADER, "enforceSchema": "true"}, [(1, 2)]),
    "doubled quotes": ('"an inch is 1"""\n', "v string", {}, [('an inch is 1"',)]),
    "separators and line ends in quotes": ('"a,b","c\r\nd"\n', "a string, b string", {}, [("a,b", "c\r\nd")]),
    "empty text and null": ('"",\n', "a string, b string", {}, [("", None)]),
    "empty quotes are no number": ('"",1\n', "a int, b int", {}, [(None, 1)]),
    "Spark's null for empty quotes": ('"",1\n', "a string, b int", {"nullValue": ""}, [(None, 1)]),
    "a null value": ('NA,x\n', "a string, b string", {"nullValue": "NA"}, [(None, "x")]),
    "a quote inside of a field": ('5" pipe,a"b\n', "a string, b string", {}, [('5" pipe', 'a"b')]),
    "Spark's escape": ('"a \\"b\\" \\\\",1\n', "a string, b int", {"escape": "\\"}, [('a "b" \\', 1)]),
    "a backslash is a character": ('"C:\\",1\n', "a string, b int", {}, [("C:\\", 1)]),
    "another quote": ("'a,''b',1\n", "a string, b int", {"quote": "'"}, [("a,'b", 1)]),
    "no quote": ('"a,1\n', "a string, b int", {"quote": ""}, [('"a', 1)]),
    "a long separator": ('a||"b||c"\n', "a string, b string", {"sep": "||"}, [("a", "b||c")]),
    "a tab": ("a\t1\n", "a string, b int", {"sep": "\\t"}, [("a", 1)]),
    "comments and blank lines": ("#k\n\n1,2\n#\n", "a int, b int", {"comment": "#"}, [(1, 2)]),
    "blanks": (" 1 , a \n", "a int, b string",
               {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, [(1, "a")]),
    "line ends of three systems": ("1\r\n2\r3\n4", "a int", {}, [(1,), (2,), (3,), (4,)]),
    "another encoding": ("é,1\n".encode("latin-1"), "a string, b int", {"encoding": "ISO-8859-1"}, [("é", 1)]),
    "UTF-16": ("é,1\n".encode("utf-16"), "a string, b int", {"encoding": "UTF-16"}, [("é", 1)]),
    "bytes": (b"caf\xe9,1\n", "a binary, b int", {}, [(b"caf\xe9", 1)]),
    "patterns": (
        "05/01/2024,5 Jan 2024 1:30 PM,2024-01-05 10:00 +0200\n", "a date, b timestamp_ntz, c timestamp",
        {"dateFormat": "dd/MM/yyyy", "timestampNTZFormat": "d MMM yyyy h:mm a",
         "timestampFormat": "yyyy-MM-dd HH:mm Z"},
        [(date(2024, 1, 5), datetime(2024, 1, 5, 13, 30), datetime(2024, 1, 5, 8, 0, tzinfo=UTC))],
    ),
    "a zone": ("2024-07-05 10:00\n", "a timestamp", {"timeZone": "Europe/Berlin"},
               [(datetime(2024, 7, 5, 8, 0, tzinfo=UTC),)]),
}  # fmt: skip


@pytest.mark.parametrize("what", CSV)
def test_csv(tmp_path: Path, what: str) -> None:
    content, schema, options, rows = CSV[what]
    assert read(tmp_path, content, schema, options=options) == Read(rows, [])


BAD_CSV: dict[str, tuple[str | bytes, str, dict[str, str], list[Any], list[tuple[bytes, str]]]] = {
    "too few fields": ("1\n2,3\n", "a int, b int", {}, [(2, 3)], [(b"1", "it has 1 field, and 2 are expected")]),
    "too many fields": ("1,2,3\n", "a int, b int", {}, [], [(b"1,2,3", "it has 3 fields, and 2 are expected")]),
    "text behind a quote": ('"a"x,1\nb,2\n', "a string, b int", {}, [("b", 2)], [(b'"a"x,1', "closing quote")]),
    "text of several lines behind a quote": ('"a\n1,2\nb"x,3\nc,4\n', "a string, b int", {}, [("c", 4)],
                                             [(b'"a\n1,2\nb"x,3', "closing quote")]),
    "a quote that is not closed": ('a,1\n"b,2\nc,3\n', "a string, b int", {}, [("a", 1)],
                                   [(b'"b,2\nc,3\n', "not closed")]),
    "and lines are records": ('"b,2\nc,3\n', "a string, b int", {"multiLine": "false"}, [("c", 3)],
                              [(b'"b,2', "not closed")]),
    "no UTF-8": (b"caf\xe9,1\nb,2\n", "a string, b int", {}, [("b", 2)], [(b"caf\xe9,1", "column 'a': .*not UTF-8")]),
    "another null value": ("NA,1\n", "a int, b int", {}, [], [(b"NA,1", "column 'a': 'NA'")]),
    "half a day twice": ("2024-01-05 10:00 PM\n", "a timestamp", {"timestampFormat": "yyyy-MM-dd HH:mm a"}, [],
                         [(b"2024-01-05 10:00 PM", "10 o'clock is not pm")]),
    "half a day not at all": ("2024-01-05 10:00\n", "a timestamp", {"timestampFormat": "yyyy-MM-dd hh:mm[ a]"}, [],
                              [(b"2024-01-05 10:00", "it says neither am nor pm")]),
    "a byte-order mark of a file behind another": ("\ufeffa,1\n\ufeffb,2\n", "a string, b int", {}, [("a", 1)],
                                                   [("\ufeffb,2".encode(), "as files do that were joined")]),
    "a column that the header names": ("b,a\nx,1\n", "a int, b int", HEADER, [], [(b"x,1", "column 'b': 'x'")]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_CSV)
def test_csv_that_is_refused(tmp_path: Path, what: str) -> None:
    content, schema, options, rows, refused = BAD_CSV[what]
    given = read(tmp_path, content, schema, options=options)
    assert given.rows == rows
    assert [record.rpartition(b"}\n")[2] for record, _ in given.refused] == [record for record, _ in refused]
    for (_, reason), (_, expected) in zip(given.refused, refused, strict=True):
        assert re.search(expected, reason)


JSON: dict[str, tuple[str, dict[str, str], list[Any], list[str]]] = {
    "two on a line": ('{"k":"a"}{"k":"b"} {"k":"c"}', {}, [("a", None), ("b", None), ("c", None)], []),
    "text behind one": ('{"k":"a"} x\n{"k":"b"}', {}, [("b", None)], ["it is not JSON"]),
    "a broken one behind a whole one": ('{"k":"a"}{"k":', {}, [], ["it is not JSON"]),
    "an array": ('[{"k":"a"},{"k":"b"}]\n[]', {}, [("a", None), ("b", None)], []),
    "an array of which one does not fit": ('[{"k":"a"},{"k":"b","v":"x"}]', {}, [("a", None)], ["column 'v': 'x'"]),
    "an array without an end": ('[{"k":"a"}', {}, [], ["it is not JSON"]),
    "several lines": ('{"k":\n"a"}\n{"k":"b",\n"v":1}', {"multiLine": "true"}, [("a", None), ("b", 1)], []),
    "an array of several lines": ('[{"k":"a"},\n{"k":"b"}]\n', {"multiLine": "true"}, [("a", None), ("b", None)], []),
    "text behind several lines": ('{"k":\n"a"} x', {"multiLine": "true"}, [], ["it is not JSON"]),
    "a key twice": ('{"k":"a","k":"b"}', {}, [], ["the key 'k' is there twice"]),
    "a key twice inside": ('{"k":"a","x":{"y":1,"y":1}}', {}, [], ["the key 'y' is there twice"]),
    "keys that differ by case": ('{"K":"a"}\n{"k":"a","K":"b"}', {}, [("a", None)], ["differ in the case"]),
    "a further key": ('{"k":"a","w":1}', {}, [("a", None)], []),
    "no object": ('5\nnull\n"x"\n{"k":"a"}', {}, [("a", None)], ["5 is not", "null is not", "'x' is not"]),
    "a blank line": ('\n \n{"k":"a"}\r\n', {}, [("a", None)], []),
    "half a character": ('{"k":"\\ud800"}', {}, [], ["column 'k': .*not UTF-8"]),
    "half a character inside": ('{"k":{"a":"\\ud800"}}', {}, [], ["column 'k': .*not UTF-8"]),
    "an array in an array": ('[[{"k":"a"}],{"k":"b"}]', {}, [("b", None)], ["is not an object"]),
    "an array of lines": ('[\n{"k":"a"},\n{"k":"b"}\n]', {}, [("b", None)], ["set the option multiLine to true"] * 3),
    "a byte-order mark of a file behind another": ('{"k":"a"}\n\ufeff{"k":"b"}', {}, [("a", None)], ["it is not JSON"]),
    "what is deep": ("[" * 100_000, {}, [], ["nested too deeply"]),
    "a control character": ('{"k":"a\tb"}', {}, [], ["it is not JSON"]),
    "that is allowed": ('{"k":"a\tb"}', {"allowUnquotedControlChars": "true"}, [("a\tb", None)], []),
    "numbers as text": ('{"k":1.50}\n{"k":12345678901234567890}\n{"k":{"a":[1.0,true,null,"é"]}}', {},
                        [("1.50", None), ("12345678901234567890", None), ('{"a":[1.0,true,null,"é"]}', None)], []),
}  # fmt: skip


@pytest.mark.parametrize("what", JSON)
def test_json(tmp_path: Path, what: str) -> None:
    content, options, rows, reasons = JSON[what]
    given = read(tmp_path, content, "k string, v int", format="json", options=options)
    assert given.rows == rows
    assert len(given.refused) == len(reasons)
    for (_, reason), expected in zip(given.refused, reasons, strict=True):
        assert re.search(expected, reason)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_declared_column_that_is_missing_is_refused_where_the_source_says_so(
    tmp_path: Path, form: str
) -> None:
    if form == "json":
        given = read(
            tmp_path, '{"k":1}\n{"k":1,"v":2,"w":3}', "k int, v int", format="json", missing="refuse"
        )
        assert given.rows == [(1, 2)]
        assert "has no column 'v'" in given.refused[0][1]
    else:
        with pytest.raises(UnreadFileError, match="has no column 'v'"):
            read(tmp_path, "k,w\n1,2\n", "k int, v int", options=HEADER, missing="refuse")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_further_column_is_refused_where_the_source_says_so(tmp_path: Path, form: str) -> None:
    said = "'w' besides the declared columns"
    if form == "json":
        lines = '{"k":1,"v":2}\n{"k":1,"v":2,"w":3}\n{"k":3}'
        given = read(tmp_path, lines, "k int, v int", format="json", further="refuse")
        assert given.rows == [(1, 2), (3, None)]
        assert said in given.refused[0][1]
    else:
        with pytest.raises(UnreadFileError, match=said):
            read(tmp_path, "k,w,v\n1,2,3\n", "k int, v int", options=HEADER, further="refuse")


HEADERS = {
    "none of the columns": ("x,y\n1,2\n", "names none of the declared columns"),
    "one twice": ("k,k\n1,2\n", "differ in the case of letters only, or not at all"),
    "two that differ by case": ("k,K\n1,2\n", "differ in the case"),
    "a second byte-order mark": ("\ufeff\ufeffk,v\n1,2\n", "begins with a byte-order mark, as files do"),
    "one that does not end": ('"k\n1\n', "not closed"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_does_not_say_what_is_where(tmp_path: Path, what: str) -> None:
    content, reason = HEADERS[what]
    with pytest.raises(UnreadFileError, match=reason):
        read(tmp_path, content, "k int, v int", options=HEADER)


VALUES: dict[str, dict[str, Any]] = {
    "tinyint": {"127": 127, "128": None, "-128": -128},
    "int": {"4": 4, "-0": 0, "4.0": None, "1e3": None, "2147483648": None, "1,000": None, "0x1": None},
    "bigint": {"9223372036854775807": 2**63 - 1, "9223372036854775808": None, "9" * 5000: None},
    "double": {"1e400": None, "1e-400": None, "0e9": 0.0, "1.5": 1.5, "9007199254740993": None,
               "9007199254740992": 2.0**53, "12345678901234567000": 12345678901234567000.0, "1,5": None,
               "9007199254740993.0": None, "9007199254740992.5": None, "9007199254740993e0": None,
               "0.1": 0.1, "0.10": 0.1, "0.10000000000000001": 0.1, "0.30000000000000004": 0.1 + 0.2,
               "0.1000000000000000055511151231257827021181583404541015625": 0.1, "0.10000000000000000001": None,
               "3.14159265358979323846": None, "3.141592653589793": math.pi, "3.1415926535897931": math.pi,
               "4.9E-324": 5e-324, "1.7976931348623157e308": 1.7976931348623157e308, "0." + "0" * 2000: 0.0,
               "1." + "0" * 2000: 1.0, "1." + "0" * 2000 + "1": None},
    "float": {"16777217": None, "16777216": 2.0**24, "1e39": None, "1.5": 1.5, "16777217.0": None,
              "0.1": 0.10000000149011612, "0.10000000149011612": 0.10000000149011612, "0.1234567890123": None,
              "3.4028235e38": 3.4028234663852886e38, "1.17549435E-38": 1.1754943508222875e-38},
    "decimal(10,2)": {"10.005": None, "10.000": Decimal("10.00"), "1e2": Decimal("100.00"), "1e-3": None,
                      "999999999": None, "1e99999999999999999999": None, "NaN": None},
    "boolean": {"1": None},
    "timestamp": {"1704067200": datetime(2024, 1, 1, tzinfo=UTC), "1704067200000": None, "1.5": None},
    "timestamp_ntz": {"1704067200": None},
    "date": {"19723": None},
}  # fmt: skip
"""By type, numbers as JSON has them, and their values; None for what is refused."""
TEXTS: dict[str, dict[str, Any]] = {
    "boolean": {"true": True, "FALSE": False, "yes": None},
    "int": {" 4": None, "4 ": None, "1_0": None},
    "double": {"NaN": "nan", "Infinity": float("inf"), "-inf": float("-inf"), "1d": None},
    "date": {"2024-01-05": date(2024, 1, 5), "2024-1-5": date(2024, 1, 5), "2024-01-05T00:00:00": date(2024, 1, 5),
             "2024-01-05 10:00": None, "2024": None, "2024-01": None, "10:00": None, "10000-01-01": None,
             "2023-02-29": None, "20240105": None},
    "timestamp": {
        "2024-01-05T10:00:00Z": datetime(2024, 1, 5, 10, tzinfo=UTC), "2024-01-05": datetime(2024, 1, 5, tzinfo=UTC),
        "2024-01-05 10:00": datetime(2024, 1, 5, 10, tzinfo=UTC),
        "2024-01-05T10:00:00.123456+02:00": datetime(2024, 1, 5, 8, 0, 0, 123456, tzinfo=UTC),
        "2024-07-05 10:00:00 Europe/Berlin": datetime(2024, 7, 5, 8, tzinfo=UTC),
        "2024-01-05T10:00:00.1234567Z": None, "2024-01-05T10:00:00.1234560Z": datetime(
            2024, 1, 5, 10, 0, 0, 123456, tzinfo=UTC),
        "10:00": None, "2024-01": None, "2024-01-05T24:00:00Z": None, "56134-01-01T00:00:00Z": None,
        "0001-01-01T00:00:00+05:00": None, "2024-01-05T10:00:00 Nowhere/Land": None},
    "timestamp_ntz": {"2024-01-05T10:00:00": datetime(2024, 1, 5, 10), "2024-01-05T10:00:00Z": None},
}  # fmt: skip
"""By type, texts and their values."""


def same(value: Any, expected: Any) -> bool:
    return str(value) == "nan" if expected == "nan" else bool(value == expected)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_numbers_lose_nothing(tmp_path: Path, form: str, kind: str) -> None:
    for text, expected in VALUES[kind].items():
        if form == "csv" and kind.startswith("timestamp"):
            continue  # in CSV, a number is no time
        if form == "json" and not _is_json(text):
            continue
        content = f'"{text}"\n' if form == "csv" else f'{{"v":{text}}}\n'
        given = read(tmp_path, content, f"v {kind}", format=form)
        check(given, text, expected)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_texts_are_complete_or_refused(tmp_path: Path, form: str, kind: str) -> None:
    for text, expected in TEXTS[kind].items():
        if form == "json" and kind == "boolean":
            expected = None  # JSON has its own
        content = f'"{text}"\n' if form == "csv" else json.dumps({"v": text})
        check(read(tmp_path, content, f"v {kind}", format=form), text, expected)


def check(given: Read, text: str, expected: Any) -> None:
    if expected is None:
        assert given.rows == []
        assert "column 'v': " in given.refused[0][1]
        assert text[:20] in given.refused[0][1]
    else:
        assert given.refused == []
        assert same(given.rows[0][0], expected)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)
    except ValueError:
        return False
    return True


class WayOut(NamedTuple):
    """A form of other programs that is refused, and what the refusal says to do.

    Attributes:
        format: of the file.
        content: of it.
        schema, options: that it is read with.
        words: of the way out.
        then_schema, then_options: that the way out asks for.
        rows: that come then.
    """

    format: str
    content: str
    schema: str
    words: str
    then_schema: str
    rows: list[tuple[Any, ...]]
    options: dict[str, str] = {}  # noqa: RUF012
    then_options: dict[str, str] | None = None


AS_TEXT = "declare the column as string, and convert it in a transform"
WAYS_OUT = {
    "decimal commas of a spreadsheet": WayOut(
        "csv", "v\n1,50\n", "v decimal(9,2)", f"column 'v': '1,50': it is not a decimal: {AS_TEXT}", "v string",
        [("1,50",)], {**HEADER, "sep": ";"}),
    "thousands of a spreadsheet": WayOut(
        "csv", '"1,234.50"\n', "v double", f"'1,234.50': it is not a number: {AS_TEXT}", "v string", [("1,234.50",)]),
    "dates of a spreadsheet": WayOut(
        "csv", "05.01.2024\n", "v date", "set the option dateFormat", "v date", [(date(2024, 1, 5),)], {},
        {"dateFormat": "dd.MM.yyyy"}),
    "times of a spreadsheet": WayOut(
        "csv", "1/5/2024 3:04 PM\n", "v timestamp", "set the option timestampFormat", "v timestamp",
        [(datetime(2024, 1, 5, 15, 4, tzinfo=UTC),)], {}, {"timestampFormat": "M/d/yyyy h:mm a"}),
    "local times of a spreadsheet": WayOut(
        "csv", "05.01.24\n", "v timestamp_ntz", "timestamp_ntz timestampNTZFormat", "v timestamp_ntz",
        [(datetime(2024, 1, 5),)], {}, {"timestampNTZFormat": "dd.MM.yy"}),
    "truth of PostgreSQL": WayOut(
        "csv", "t\n", "v boolean", f"'t': it is neither true nor false: {AS_TEXT}", "v string", [("t",)]),
    "truth of MySQL": WayOut("csv", "1\n", "v boolean", AS_TEXT, "v int", [(1,)]),
    "whole numbers of pandas beside nulls": WayOut(
        "csv", "1.0\n", "v bigint", f"'1.0': it is not a whole number, as the type bigint has them: {AS_TEXT}",
        "v string", [("1.0",)]),
    "numbers of BigQuery": WayOut(
        "json", '{"v": "123"}', "v bigint", f"column 'v': '123': it is not a number: {AS_TEXT}", "v string",
        [("123",)]),
    "nanoseconds of Java": WayOut(
        "json", '{"v": "2024-01-05T10:00:00.123456789Z"}', "v timestamp", "digits behind the microsecond", "v string",
        [("2024-01-05T10:00:00.123456789Z",)]),
    "a time as Go prints it": WayOut(
        "json", '{"v": "2024-01-05 10:00:00 +0000 UTC"}', "v timestamp", AS_TEXT, "v string",
        [("2024-01-05 10:00:00 +0000 UTC",)]),
    "milliseconds of pandas and JavaScript": WayOut(
        "json", '{"v": 1704448800000}', "v timestamp", "declare the column as bigint", "v bigint", [(1704448800000,)]),
    "a year of Java": WayOut(
        "json", '{"v": "+10000-01-01T00:00:00Z"}', "v timestamp", AS_TEXT, "v string", [("+10000-01-01T00:00:00Z",)]),
    "a number beyond its type": WayOut(
        "json", '{"v": 3000000000}', "v int", "declare a wider type", "v bigint", [(3000000000,)]),
    "a number with more digits": WayOut(
        "json", '{"v": 10.005}', "v decimal(10,2)", "declare a wider type", "v decimal(10,3)", [(Decimal("10.005"),)]),
    "a number beyond doubles": WayOut("json", '{"v": 1e400}', "v double", AS_TEXT, "v string", [("1e400",)]),
    "a number that a double rounds": WayOut(
        "json", '{"v": 9007199254740993}', "v double", "declare decimal", "v decimal(20,0)",
        [(Decimal(9007199254740993),)]),
    "bytes in hexadecimal": WayOut("json", '{"v": "\\\\x00"}', "v binary", AS_TEXT, "v string", [("\\x00",)]),
    "an object in place of a value": WayOut(
        "json", '{"v": {"$date": "2024-01-05"}}', "v date", AS_TEXT, "v string", [('{"$date":"2024-01-05"}',)]),
}  # fmt: skip


@pytest.mark.parametrize("what", WAYS_OUT)
def test_what_a_refusal_says_to_do_helps(tmp_path: Path, what: str) -> None:
    way = WAYS_OUT[what]
    given = read(tmp_path, way.content, way.schema, format=way.format, options=way.options)
    assert given.rows == []
    ((_, reason),) = given.refused
    assert "column 'v': " in reason
    assert way.words in reason
    then = way.options if way.then_options is None else way.then_options
    assert read(tmp_path, way.content, way.then_schema, format=way.format, options=then) == Read(way.rows, [])


SEPARATORS = {
    "said": ("sep=;\r\nb;a\r\n1;2\r\n", ";", [(2, 1)]),
    "said, with quotes": ('sep=;\n"b";"a"\n1;2\n', ";", [(2, 1)]),
    "alone": ("sep=,\n", ",", []),
    "of a tab": ("sep=\t\nb\ta\n1\t2\n", "\t", [(2, 1)]),
}


@pytest.mark.parametrize("what", SEPARATORS)
def test_a_separator_that_a_file_says_is_no_header(tmp_path: Path, what: str) -> None:
    content, separator, rows = SEPARATORS[what]
    assert read(tmp_path, content, "a int, b int", options={**HEADER, "sep": separator}) == Read(rows, [])
    with pytest.raises(UnreadFileError, match=r"its first line says .*set the option sep to "):
        read(tmp_path, content, "a int, b int", options={**HEADER, "sep": "|"})


def test_an_escaped_text_that_looks_like_null_is_a_text(tmp_path: Path) -> None:
    """As MySQL writes ``\\N``; what is not escaped is null, with quotes or without."""
    options = {"escape": "\\", "nullValue": "\\N"}
    content = '"\\\\N",1\n\\N,2\n"\\N",3\n'
    rows = [("\\N", 1), (None, 2), (None, 3)]
    assert read(tmp_path, content, "a string, b int", options=options) == Read(rows, [])


def test_nested_values_are_refused_with_their_column(tmp_path: Path) -> None:
    schema = "s struct<a: int, b: array<decimal(4,1)>>, m map<string, date>"
    lines = [
        '{"s":{"a":1,"b":[1.5,null]},"m":{"x":"2024-01-05"}}',
        '{"s":{"b":[1.55]}}',
        '{"m":{"x":"soon"}}',
        '{"s":1}',
    ]
    given = read(tmp_path, "\n".join(lines), schema, format="json")
    assert given.rows == [({"a": 1, "b": [Decimal("1.5"), None]}, [("x", date(2024, 1, 5))])]
    reasons = [reason for _, reason in given.refused]
    assert "column 's': field 'b': 1.55" in reasons[0]
    assert "column 'm': key 'x': 'soon'" in reasons[1]
    assert "column 's': 1 is not an object with the fields ['a', 'b']" in reasons[2]


PACKED = {
    "x.csv.gz": gzip.compress(b"a,1\n") + gzip.compress(b"b,2\n"),
    "x.csv.bz2": bz2.compress(b"a,1\nb,2\n"),
    "x.csv.deflate": zlib.compress(b"a,1\nb,2\n"),
    "x.csv.zst": pa.compress(b"a,1\nb,2\n", "zstd").to_pybytes(),
}


@pytest.mark.parametrize("name", PACKED)
def test_files_are_unpacked_as_their_names_say(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, PACKED[name], "a string, b int", name=name).rows == [("a", 1), ("b", 2)]


NO_TEXT = {
    "gzip": (PACKED["x.csv.gz"], "end its name with .gz", "y.csv.gz"),
    "bzip2": (PACKED["x.csv.bz2"], "end its name with .bz2", "y.csv.bz2"),
    "zstd": (PACKED["x.csv.zst"], "end its name with .zst", "y.csv.zst"),
    "xz": (lzma.compress(b"a,1\n"), "pack it with gzip", ""),
    "lz4": (pa.compress(b"a,1\n", "lz4").to_pybytes(), "pack it with gzip", ""),
    "a workbook": (b"PK\x03\x04\x14\0\6\0", "save it as CSV", ""),
    "Parquet": (b"PAR1\x15\x04", "set format='parquet'", ""),
    "Avro": (b"Obj\x01\x04", "write it as Parquet, CSV or JSON", ""),
}
"""What begins as another form than text: content, the way out, and the name that it says to give the file."""


@pytest.mark.parametrize("schema", ["a string", "a binary", "a string, b int"])
@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("what", NO_TEXT)
def test_a_file_that_is_no_text_is_a_bad_one_whatever_its_name_says(
    tmp_path: Path, what: str, form: str, schema: str
) -> None:
    content, way_out, renamed = NO_TEXT[what]
    for name in (f"x.{form}", f"x.{form}.GZ", "x"):
        with pytest.raises(UnreadFileError, match=f"it begins as .* does: .*{way_out}"):
            read(tmp_path, content, schema, format=form, name=name)
        (tmp_path / (f"x.{form}" if name == "x" else name)).unlink()
    if renamed and form == "csv" and "b int" in schema:
        assert read(tmp_path, content, schema, name=renamed).rows == [("a", 1), ("b", 2)]


def test_deflate_of_several_streams_that_all_end(tmp_path: Path) -> None:
    """A cut at the end of a line looks like a whole file, but for its mark."""
    parts = zlib.compress(b"a,1\n") + zlib.compress(b"b,2\n")
    assert read(tmp_path, parts, "a string, b int", name="x.csv.deflate").rows == [("a", 1), ("b", 2)]
    with pytest.raises(UnreadFileError, match="cannot be unpacked"):
        read(tmp_path, parts[:-5], "a string, b int", name="x.csv.deflate")


def test_bytes_that_are_not_of_the_encoding_are_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnreadFileError, match="is not ascii: set the option encoding"):
        read(tmp_path, "é,1\n", "a string, b int", options={"encoding": "US-ASCII"})


@pytest.mark.parametrize(
    ("form", "content"),
    [("csv", "k, v\n1,2\n"), ("csv", "k,V\u00a0\n1,2\n"), ("csv", "k,\ufeffv\n1,2\n")],
)
def test_a_column_that_differs_in_blanks_only_is_not_null(tmp_path: Path, form: str, content: str) -> None:
    with pytest.raises(UnreadFileError, match="differs from 'v' in blanks only: rename it there"):
        read(tmp_path, content, "k int, v int", format=form, options=HEADER)


NEAR = {"café": "cafe\u0301", "straße": "STRASSE", "file": "\ufb01le", "n1": "\uff4e\uff11"}
"""Declared names, and others that look alike."""


@pytest.mark.parametrize("name", NEAR)
def test_a_column_whose_name_looks_like_a_declared_one_is_not_null(tmp_path: Path, name: str) -> None:
    (lines := tmp_path / "csv").mkdir()
    schema, near = f"k int, `{name}` int", NEAR[name]
    why = "differs from .* only in the characters that its letters are made of: rename it there, or declare"
    with pytest.raises(UnreadFileError, match=why):
        read(lines, f"k,{near}\n1,2\n", schema, options=HEADER)
    (objects := tmp_path / "json").mkdir()
    ((_, reason),) = read(objects, json.dumps({"k": 1, near: 2}), schema, format="json").refused
    assert re.search(why, reason)
    as_declared = read(lines, f"k,{near},{name}\n1,2,3\n", schema, options=HEADER)
    assert as_declared.rows == [(1, 3)]
    assert read(lines, f"k,{near}\n1,2\n", f"k int, `{near}` int", options=HEADER).rows == [(1, 2)]


def test_a_name_in_another_encoding_is_not_null(tmp_path: Path) -> None:
    (lines := tmp_path / "csv").mkdir()
    content, schema = "k,café\n1,2\n".encode("latin-1"), "k int, `café` int"
    with pytest.raises(
        UnreadFileError, match=r"whose name is not UTF-8, and none 'caf.*: set the option encoding"
    ):
        read(lines, content, schema, options=HEADER)
    assert read(lines, content, schema, options={**HEADER, "encoding": "ISO-8859-1"}).rows == [(1, 2)]
    (objects := tmp_path / "json").mkdir()
    ((_, reason),) = read(objects, b'{"k": 1, "caf\xe9": 2}', schema, format="json").refused
    assert "whose name is not UTF-8" in reason


def test_a_name_of_an_object_that_differs_in_blanks_only_is_refused(tmp_path: Path) -> None:
    ((_, reason),) = read(tmp_path, '{"k": 1, "v ": 2}\n', "k int, v int", format="json").refused
    assert "the object has a column 'v ', which differs from 'v' in blanks only" in reason


def test_blanks_around_names_of_a_header_are_taken_off_where_they_are_around_fields(tmp_path: Path) -> None:
    options = {**HEADER, "ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}
    assert read(tmp_path, "k , v\n1 , 2\n", "v int, k int", options=options).rows == [(2, 1)]


OPTIONS: dict[str, tuple[str, dict[str, str], str]] = {
    "an encoding that is no encoding": ("csv", {"encoding": "base64"}, "there is no such encoding"),
    "a line end as a separator": ("csv", {"sep": "\n"}, "a line end ends a record"),
    "two quotes": ("csv", {"quote": "ab"}, "a single character"),
    "a quote that separates": ("csv", {"sep": '"'}, "must be different characters"),
    "a compression": ("csv", {"compression": "gzip"}, "the end of its name"),
    "a pattern without a year": ("csv", {"timestampFormat": "HH:mm"}, "it has no year"),
    "a pattern of half days": (
        "csv",
        {"timestampFormat": "yyyy-MM-dd hh:mm"},
        "no a says which half of the day",
    ),
    "a pattern with an open quote": ("csv", {"dateFormat": "yyyy'T"}, "is not closed"),
    "a language": ("csv", {"locale": "de-DE"}, "in English only"),
    "a line end": ("json", {"lineSep": "|"}, "lines end with"),
    "a guess": ("csv", {"inferSchema": "true"}, "which has false"),
    "other quotes": ("json", {"allowSingleQuotes": "true"}, "which has false"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_options_are_checked_when_they_are_given(tmp_path: Path, what: str) -> None:
    form, options, message = OPTIONS[what]
    with pytest.raises(ConfigurationError, match=message):
        FileSource(str(tmp_path), schema="k int", format=form, options=options)  # type: ignore[arg-type]


def test_a_column_that_no_text_says_is_named_when_the_source_is_made() -> None:
    with pytest.raises(
        ValueTypeError,
        match=r"column 'm': no text says .*map<string, int32> is: declare the column as string",
    ):
        FileSource("/in", schema="k int, m map<string, int>", format="csv")


def test_options_have_any_case(tmp_path: Path) -> None:
    assert read(tmp_path, "k;v\n1;2\n", "v int, k int", options={"HEADER": "TRUE", "Sep": ";"}).rows == [
        (2, 1)
    ]


def test_a_letter_of_an_earlier_version_has_no_header(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="k int, v int", format="csv", options=HEADER)
    assert parts(source.parse(NO_SPARK, [b"1,2"], keep_refused=True)) == ([(1, 2)], [])


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_letter_has_the_values_of_its_directory(tmp_path: Path, form: Any) -> None:
    """Also where others that are sent with it have none."""
    rows = {"csv": ["k,v", "1,{}"], "json": ['{{"k":1,"v":"{}"}}']}[form]
    for directory, value in (("day=2024-01-05", "a"), ("day=2024-01-06", "b"), ("", "c")):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / f"x.{form}").write_text("\n".join(rows).format(value))
    options = HEADER if form == "csv" else {}
    given = {"format": form, "options": options}
    source = FileSource(str(tmp_path), schema="v int, day date, k int", **given)
    part = source.plan(NO_SPARK, [])
    assert part is not None
    rows_there, refused = parts(source.read(NO_SPARK, part, keep_refused=True))
    assert (rows_there, len(refused)) == ([], 3)
    repaired = FileSource(str(tmp_path), schema="v string, day date, k int", **given)
    again = parts(repaired.parse(NO_SPARK, [record for record, _ in refused], keep_refused=True))
    days = {"a": date(2024, 1, 5), "b": date(2024, 1, 6), "c": None}
    assert (sorted(again.rows), again.refused) == ([(v, day, 1) for v, day in days.items()], [])


KINDS = ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(38,0)", "decimal(4,4)",
         "boolean", "string", "date", "timestamp", "timestamp_ntz"]  # fmt: skip
COLUMN_TEXTS = [
    "0", "-0", "+1", "127", "128", "-129", "2147483648", "9223372036854775807", "9223372036854775808",
    "999999999999999999",
    "1.5", "-1.50", "1.", ".5", "0.1", "1e3", "1E-7", "1e99", "1e308", "1e309", "16777217", "9007199254740993",
    "0.30000000000000004", "9007199254740993.0", "0.10000000000000001",
    "3.14159265358979323846", "123456789012345.678901234567890123456789", "1234567.89", "9999999.99", "99999999.99",
    "1.005",
    "NaN", "nan", "Infinity", "-inf", "true", "False", "", " 1", "1 ", "1\n", "٣", "0x1f", "1_0", "é", "\udce9",
    "2024-01-05", "2024-1-5", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "1582-10-10", "12024-01-05",
    "2024-01-05T10:00:00Z", "2024-01-05 10:00:00", "2024-01-05T10:00:00.123456", "2024-01-05T10:00:00.1Z",
    "2024-01-05T24:00:00", "2024-01-05T10:60:00", "2024-01-05T10:00:60Z", "2024-01-05T10:00:00.1234567Z",
    "2024-01-05T10:00", "2024-01-05T10:00:00+02:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "1582-10-10T00:00:00", "2024-01-05\n", "10:00",
]  # fmt: skip


def value_of(reader: ColumnReader, text: Any) -> Any:
    """What the definition gives; the error where it refuses."""
    try:
        return None if text is None else reader.read(text)
    except ValueTypeError as error:
        return f"refused: {error}"


def check_column(reader: ColumnReader, texts: list[Any]) -> None:
    array, faults = reader.array(texts)
    assert array.type == reader.kind.arrow
    for place, (text, value) in enumerate(zip(texts, reader.kind.from_arrow(array), strict=True)):
        expected = value_of(reader, text)
        if isinstance(expected, str) and expected.startswith("refused: "):
            assert value is None
            assert faults[place] == f"column 'c': {expected.removeprefix('refused: ')}"
        elif isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(value)
        else:
            assert (value, place in faults) == (expected, False), text
            assert not isinstance(expected, float) or math.copysign(1, value) == math.copysign(1, expected)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_text_alone_and_all_together(kind: str, zone: str) -> None:
    declared, rules = to_type(kind, parameter="c"), TextRules(zone=zone_of(zone))
    for text in [*COLUMN_TEXTS, None]:
        check_column(csv_column("c", declared, rules), [text, None])
        check_column(json_column("c", declared, rules), [text])
        if text is not None:
            check_column(json_column("c", declared, rules), [JsonNumber(text), None, JsonNumber("7")])
    check_column(csv_column("c", declared, rules), COLUMN_TEXTS)
    check_column(json_column("c", declared, rules), [True, None, False])
    check_column(json_column("c", declared, rules), [{"a": 1}, [1]] if kind == "string" else [{}, []])


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(
    texts=st.lists(st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True))
)
def test_any_numbers(kind: str, texts: list[str]) -> None:
    declared, rules = to_type(kind, parameter="c"), TextRules()
    check_column(csv_column("c", declared, rules), texts)
    check_column(json_column("c", declared, rules), list(map(JsonNumber, texts)))


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
@settings(deadline=None)
@given(
    texts=st.lists(
        st.from_regex(
            r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?Z?)?",
            fullmatch=True,
        )
    )
)
def test_any_times(kind: str, texts: list[str]) -> None:
    check_column(csv_column("c", to_type(kind, parameter="c"), TextRules()), texts)
