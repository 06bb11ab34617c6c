"""CSV as RFC 4180 has it: records, and their fields.

A field that begins with a quote ends at the next single one; a quote inside is doubled, or escaped where the options
say so. So separators and line ends inside of quotes are text. A quote elsewhere in a field is itself. What behind a
closing quote is neither separator nor line end, and a quote that is not closed, make a record malformed: it goes to the
end of its last line, so that no part of it is taken for another row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from state_engine.core.errors import BadFileError
from state_engine.sources.text.options import TextOptions

Field = str | None
"""Null is None."""
_LONGEST = 2**24
"""Characters of a record: a quote that is never closed would otherwise take a whole file into memory."""
_END = r"(?:\r\n|\n|\r|\Z)"
_LINE = re.compile(r"[^\r\n]*" + _END).match
_MARK = "\ufeff"
_MARKED = (
    "it begins with a byte-order mark, as files do that were joined: take it out, or put the text into quotes"
)
_MALFORMED = "there is text behind a closing quote, or a quote is not closed"


class CsvDialect:
    """Takes CSV apart."""

    def __init__(self, options: TextOptions) -> None:
        self._options = options
        separator, quote = re.escape(options.separator), re.escape(options.quote)
        # groups are atomic, (?>(?:…)*), not possessive, (?:…)*+: Python 3.11.2 goes on behind where such a group failed
        plain = f"(?:(?!{separator})[^\r\n])*" if len(options.separator) > 1 else f"[^\r\n{separator}]*"
        left = r"[ \t]*" if options.strip_left else ""
        right = r"[ \t]*" if options.strip_right else ""
        if options.quote:
            inside = "" if options.multi_line else "\r\n"
            escape = re.escape(options.escape)
            other = f"[^{quote}{escape}{inside}]*+"
            again = f"{escape}." if escape else quote + quote
            quoted = f"{other}(?>(?:{again}{other})*)"
            field = f"(?:{left}{quote}{quoted}{quote}{right}|(?!{left}{quote}){plain})"
            parts = f"{separator}(?:{left}({quote})({quoted}){quote}{right}|({plain}))"
            self._malformed = re.compile(
                f"(?>(?:[^{quote}\r\n]++|{quote}{quoted}{quote})*){_END}", re.DOTALL
            ).match
        else:
            field, parts, self._malformed = plain, f"{separator}()()({plain})", _LINE
        if not options.multi_line:
            self._malformed = _LINE
        self._record = re.compile(f"({field}(?>(?:{separator}{field})*)){_END}", re.DOTALL).match
        asked = (
            options.escape,
            options.empty_value,
            options.null_value,
            options.strip_left,
            options.strip_right,
        )
        self._plainly = asked == ("", "", None, False, False)
        self._parts = re.compile(parts, re.DOTALL).findall

    def records(self, chunks: Iterable[str], uri: str) -> Iterator[tuple[str, str]]:
        """Every record with its text, and why it is malformed, which is empty where it is not."""
        text, comment = "", self._options.comment
        for chunk, last in _with_last(chunks):
            text, at = text + chunk, 0
            while at < len(text):
                skipped = bool(comment) and text.startswith(comment, at)
                match = (_LINE if skipped else self._record)(text, at)
                problem = _MALFORMED if match is None else _MARKED if text.startswith(_MARK, at) else ""
                match = match or self._malformed(text, at)
                if match is None or (match.end() == len(text) and not last):
                    break
                record = match.group().rstrip("\r\n")
                if record and not skipped:
                    yield record, problem
                at = match.end()
            if len(text) - at > _LONGEST:
                raise BadFileError(f"{uri}: {_MALFORMED}: {text[at : at + 40]!r}… does not end", uri)
            text = text[at:]
        if text:
            yield text, "a quote is not closed"

    def fields(self, record: str) -> list[Field]:
        """The fields of a record; an empty one without quotes is null."""
        options = self._options
        quote, plainly = options.quote, self._plainly
        if not quote or quote not in record:
            parts = record.split(options.separator)
            return [part or None for part in parts] if plainly else list(map(self._plain, parts))
        fields = self._parts(options.separator + record)
        if plainly:
            return [
                text.replace(quote * 2, quote) if begins else plain or None for begins, text, plain in fields
            ]
        return [self._quoted(text) if begins else self._plain(plain) for begins, text, plain in fields]

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        escape, quote = re.escape(self._options.escape), re.escape(self._options.quote)
        return re.compile(f"{escape}([{escape}{quote}])")

    def _quoted(self, text: str) -> Field:
        options = self._options
        if not text:
            text = options.empty_value
        if text == options.null_value:  # as it is written: an escaped \\N is that text
            return None
        if options.escape:
            return self._escaped.sub(r"\1", text)
        return text.replace(options.quote * 2, options.quote)

    def _plain(self, text: str) -> Field:
        if self._options.strip_left:
            text = text.lstrip(" \t")
        if self._options.strip_right:
            text = text.rstrip(" \t")
        return None if text in ("", self._options.null_value) else text


def _with_last(chunks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    before: str | None = None
    for chunk in chunks:
        if before is not None:
            yield before, False
        before = chunk
    yield before or "", True
