"""Files as others write them, and files of text with random edits: each row is what was put in, or a letter.

No row comes out that is not in the file. For each line either a row comes out, or a letter.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sources.other_values import BINARY, FLAT, NESTED, Kind, Rows, comparable, drawn_kinds, drawn_rows
from tests.sources.other_writers import Writer, writers
from tests.sources.reading import Reading, read
from tests.support.limits import limits_of_session

pytestmark = pytest.mark.spark
FILES, ROWS = 8, 5
WAYS = ("the driver", "tasks", "Spark")
"""Who reads the files: few are read by the driver, and Parquet by Spark where options are given."""


def kept(rng: Random, kind: Kind, writer: Writer) -> Any:
    """A value that the program keeps; null where it keeps none of the kind that is drawn soon."""
    drawn = (kind.draw(rng) for _ in range(50))
    return next((value for value in drawn if writer.holds(kind.ddl, value)), None)


def files(rng: Random, writer: Writer, directory: Path, spark: SparkSession) -> Rows:
    """Files of one schema; returns the rows of all."""
    kinds: tuple[Kind, ...] = FLAT + (NESTED if writer.nested else ())
    if writer.format == "parquet":
        kinds += (BINARY,)
    columns = drawn_kinds(rng, kinds, rng.randrange(1, 6))
    (directory / "in").mkdir(parents=True)
    everything = Rows(columns, [])
    for number in range(FILES):
        rows = drawn_rows(rng, columns, number * ROWS, ROWS, nulls=writer.nulls)
        for row in rows.rows:
            for name, kind in list(columns.items())[1:]:
                if row[name] is not None and not writer.holds(kind.ddl, row[name]):
                    row[name] = kept(rng, kind, writer)
        writer.write(rows, directory / "in" / f"{number}.{writer.format}", spark)
        everything.rows.extend(rows.rows)
    return everything


def differences(rows: Rows, reading: Reading) -> list[str]:
    """Rows that came out otherwise than they were put in, twice, or not at all."""
    wrong = []
    came = {row["id"]: row for row in reading.rows}
    if len(came) < len(reading.rows):
        wrong.append("rows came twice")
    for row in rows.rows:
        got = came.get(row["id"])
        if got is None or comparable(got) != comparable({name: row[name] for name in got}):
            wrong.append(f"put in {row}, came out {got}")
    return wrong


NAMES = [name for name in writers() if name != "jq" or shutil.which("jq")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.long)], ids=["once", "more"]
)
def test_what_other_programs_wrote_is_read_as_they_wrote_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, seeds: range
) -> None:
    writer = writers()[name]
    wrong: list[str] = []
    for seed in seeds:
        directory, way = tmp_path / str(seed), WAYS[seed % len(WAYS)]
        rows = files(Random(f"{name} {seed}"), writer, directory, spark)
        options = (
            {"mergeSchema": "false"} if way == "Spark" and writer.format == "parquet" else writer.options
        )
        with limits_of_session(spark) as set_limits:
            if way == "tasks":
                set_limits(stored_bytes=-1)
            reading = read(spark, directory, rows.ddl, format=writer.format, options=options)
        wrong += differences(rows, reading)
        wrong += [f"refused {text}: {error}" for text, error in reading.letters]
    assert not wrong, "\n".join(wrong)


DDL = "id bigint, name string, amount decimal(8,2), day date, good boolean"
COLUMNS = ("id", "name", "amount", "day", "good")
EDITS = '",\\:{}[]0e.- x\né\t1truelsn+/'
LINES, FILES = 6, 12


def _row(rng: Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": rng.choice(("Ann", 'an inch is 1"', "a,b", "", "x y")),
        "amount": Decimal(rng.randrange(-10_000, 10_000)).scaleb(-2),
        "day": date(2024, 1, rng.randrange(1, 28)),
        "good": rng.random() < 0.5,
    }


def _edited(rng: Random, text: str) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        kept = rng.choice((0, 1))
        text = text[:at] + rng.choice(("", rng.choice(EDITS))) + text[at + kept :]
    return text


def _json_text(rows: list[dict[str, Any]]) -> str:
    lines = (
        f'{{"id": {r["id"]}, "name": {json.dumps(r["name"])}, "amount": {r["amount"]}, "day": "{r["day"]}", '
        f'"good": {json.dumps(r["good"])}}}'
        for r in rows
    )
    return "".join(f"{line}\n" for line in lines)


def _csv_text(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(COLUMNS)
    writer.writerows([r["id"], r["name"], r["amount"], str(r["day"]), json.dumps(r["good"])] for r in rows)
    return file.getvalue()


class _Refused(Exception):
    pass


def _converted(name: str, cell: str) -> Any:
    """A cell as its column declares it."""
    try:
        if name == "id":
            return int(cell)
        if name == "amount":
            number = Decimal(cell)
            if not number.is_finite() or number != round(number, 2) or abs(number) >= 10**6:
                raise _Refused
            return round(number, 2)
        if name == "day":
            year, month, day = map(int, cell.split("-"))
            return date(year, month, day)
    except (ValueError, InvalidOperation) as error:
        raise _Refused from error
    if name == "good":
        if cell.lower() not in ("true", "false"):
            raise _Refused
        return cell.lower() == "true"
    return cell


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Refused
    return dict(pairs)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_once)


def _values_of(line: str) -> list[Any]:
    """The values of a line, one behind the other."""
    values, at = [], 0
    try:
        while at < len(line):
            value, at = _DECODER.raw_decode(line, at)
            values.append(value)
            at += len(line[at:]) - len(line[at:].lstrip(" \t\r"))
    except ValueError as error:
        raise _Refused from error
    return values


def _of_json(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused
    row: dict[str, Any] = {}
    for name in COLUMNS:
        cell = value.get(name)
        if cell is None or (name == "name" and isinstance(cell, str)):
            row[name] = cell
        elif isinstance(cell, bool):
            row[name] = _converted(name, json.dumps(cell))
        else:
            row[name] = _converted(name, str(cell))
    return row


def _json_rows(text: str) -> tuple[list[dict[str, Any]], int]:
    """The rows of a text, and how many lines are none."""
    rows, refused = [], 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            values = _values_of(line.strip())
        except _Refused:
            refused += 1
            continue
        for value in values:
            try:
                rows.append(_of_json(value))
            except _Refused:
                refused += 1
    return rows, refused


def _csv_rows(text: str) -> tuple[list[dict[str, Any]], int]:
    records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    header, rows, refused = records[0], [], 0
    if {name.strip().lower() for name in header if name.lower() not in COLUMNS} & set(COLUMNS):
        raise csv.Error("a name with blanks around it may be a declared one: such a file is a letter")
    for record in records[1:]:
        if not record:
            continue
        try:
            if len(record) != len(header):
                raise _Refused
            cells = dict(zip(header, record, strict=True))
            given = {n: _converted(n, cells[n]) if cells.get(n) else cells.get(n) for n in COLUMNS}
            rows.append({**given, "id": None if given["id"] == "" else given["id"]})
        except _Refused:
            refused += 1
    return rows, refused


def _same(row: dict[str, Any]) -> str:
    """A row as text; an empty text of CSV may be a null."""
    return repr({name: comparable(value or None if value == "" else value) for name, value in row.items()})


RowsAndRefused = tuple[list[dict[str, Any]], int]
FORMATS: dict[str, tuple[dict[str, str], Callable[..., str], Callable[[str], RowsAndRefused]]] = {
    "json": ({}, _json_text, _json_rows),
    "csv": ({"header": "true"}, _csv_text, _csv_rows),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 40), marks=pytest.mark.long)], ids=["twice", "more"]
)
def test_an_edited_file_gives_its_rows_or_letters(
    tmp_path: Path, spark: SparkSession, format_: str, seeds: range
) -> None:
    """Where a file has a quote that RFC 4180 does not have, nobody knows where its records end: it has a letter."""
    options, text_of, rows_of = FORMATS[format_]
    for seed in seeds:
        rng, directory = Random(f"{format_} {seed}"), tmp_path / str(seed)
        (directory / "in").mkdir(parents=True)
        put_in, refused, texts = [], 0, []
        torn: set[int | None] = set()
        for number in range(FILES):
            ids = range(number * LINES, (number + 1) * LINES)
            texts.append(_edited(rng, text_of([_row(rng, one) for one in ids])))
            (directory / "in" / f"{number}.{format_}").write_text(texts[-1], newline="")
            try:
                good, bad = rows_of(texts[-1])
            except csv.Error:
                torn |= {*ids, None}  # the header may have lost its ids
                good, bad = [], 1
            put_in += good
            refused += bad
        reading = read(spark, directory, DDL, format=format_, options=options)
        rows, came = (
            Counter(_same(row) for row in some if row["id"] not in torn) for some in (put_in, reading.rows)
        )
        assert came - rows == Counter(), (seed, texts)
        assert (rows - came).total() + refused <= len(reading.letters), (
            seed,
            rows - came,
            reading.letters,
            texts,
        )
