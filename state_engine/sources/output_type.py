"""``OutputType``: the columns of a stream, and whether its elements are rows or bare values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_engine.core.operator.element_kinds import own_kind, split
from state_engine.core.types.column_names import check_not_reserved
from state_engine.core.types.columns import as_in_a_stream
from state_engine.core.types.every_type import StructType, TypeInformation

SCALAR_COLUMN = "value"
"""Column that a stream of scalars has."""


@dataclass(frozen=True)
class OutputType:
    """Columns of a stream that an operator makes, and what its elements are.

    Attributes:
        columns: names and types; made by what makes an element: a class, plain tuples (``tuple``) or Rows (``"row"``).
    """

    columns: StructType
    scalar: bool

    @classmethod
    def of(cls, declared: TypeInformation) -> OutputType:
        """A record's own columns; or one column for scalars."""
        if isinstance(declared, StructType):
            check_not_reserved(declared.names, what="output_type")
            return cls(StructType(declared.names, declared.types, declared.made_by), scalar=False)
        return cls(StructType([SCALAR_COLUMN], [declared]), scalar=True)

    @property
    def element(self) -> TypeInformation:
        """What outputs are normalised to: of Rows tuples, for the names go with the columns."""
        if self.scalar:
            return self.columns.types[0]
        if self.columns.made_by == "row":
            return StructType(self.columns.names, self.columns.types)
        return self.columns

    def in_a_stream(self, outputs: list[Any], *, has_kinds: bool = False) -> list[Any]:
        """What a function put out, as the next operator gets it; with kinds, as pairs of kind and value.

        Example:
            >>> from state_engine.core.types.type_parsing import to_type
            >>> OutputType.of(to_type("n bigint, k string", parameter="output_type")).in_a_stream([(1, "a")])
            [Row(n=1, k='a')]
        """
        kinds, plain = split([own_kind(value) for value in outputs]) if has_kinds else ([], outputs)
        shown = as_in_a_stream(plain, self.columns.types[0] if self.scalar else self.columns)
        return list(zip(kinds, shown, strict=True)) if has_kinds else shown
