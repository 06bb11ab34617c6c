"""JSON as records: each object of a file is one, whether it is on a line of its own, behind another or in an array.

A line that is no JSON, or holds something besides, is refused whole: none of its objects is a row. With ``multi_line``
that holds for the file. An object that is JSON and does not fit is refused alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from state_engine.core.errors import ValueTypeError
from state_engine.sources.text.options import TextOptions
from state_engine.sources.text.text_values import json_decoder, short

_BLANK = re.compile(r"[ \t\r\n]*").match
Record = tuple[str, Any, str]
"""The text of a record, what it says, and why it is refused, which is empty where it is not."""


class JsonDialect:
    """Takes JSON apart."""

    def __init__(self, options: TextOptions) -> None:
        self._multi_line = options.multi_line
        self._decoder = json_decoder(control_characters=options.control_characters)

    def records(self, chunks: Iterable[str]) -> Iterator[Record]:
        for text in ["".join(chunks)] if self._multi_line else _lines(chunks):
            if text and not text.isspace():
                yield from self._records_of(text)

    def _records_of(self, text: str) -> list[Record]:
        records: list[Record] = []
        at = _end_of_blank(text, 0)
        try:
            while at < len(text):
                if text[at] == "[":
                    at = self._array(text, at, records)
                else:
                    at = self._object(text, at, records)
                at = _end_of_blank(text, at)
        except ValueTypeError as error:
            return [(text, None, str(error))]
        except (ValueError, RecursionError) as error:
            return [(text, None, f"it is not JSON: {_why(error)}{self._way_out(text)}")]
        return records

    def _way_out(self, line: str) -> str:
        is_part = line.strip()[0] not in "{[" or line.strip()[-1] not in "}]"
        if self._multi_line or not is_part:
            return ""
        return ". If it is part of an object or array of several lines, set the option multiLine to true"

    def _object(self, text: str, at: int, records: list[Record]) -> int:
        value, end = self._decoder.raw_decode(text, at)
        problem = "" if isinstance(value, dict) else f"{short(value)} is not an object"
        # an array in an array is read again as that, and not as an array of records
        record = f"[{text[at:end]}]" if isinstance(value, list) else text[at:end]
        records.append((record, value, problem))
        return end

    def _array(self, text: str, at: int, records: list[Record]) -> int:
        at = _end_of_blank(text, at + 1)
        if text[at : at + 1] == "]":
            return at + 1
        while True:
            at = _end_of_blank(text, self._object(text, at, records))
            mark = text[at : at + 1]
            if mark == "]":
                return at + 1
            if mark != ",":
                raise ValueError(f"a comma or the end of the array is missing at character {at}")
            at = _end_of_blank(text, at + 1)


def _why(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _end_of_blank(text: str, at: int) -> int:
    match = _BLANK(text, at)
    assert match is not None
    return match.end()


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """The lines of a text; only line ends of JSON end one."""
    rest = ""
    for chunk in chunks:
        text = rest + chunk
        end = text.rfind("\n") + 1
        yield from text[:end].replace("\r", "\n").split("\n")
        rest = text[end:]
    yield from rest.replace("\r", "\n").split("\n")
