"""``OutputType``: the columns of a stream, and whether its elements are rows or bare values."""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.types import StructType, TypeInformation

SCALAR_COLUMN = "value"
"""Column that a stream of scalars has."""


@dataclass(frozen=True)
class OutputType:
    """Columns of a stream that an operator makes, and whether its elements are bare values of the one column."""

    columns: StructType
    scalar: bool

    @classmethod
    def of(cls, declared: TypeInformation) -> OutputType:
        """A record's own columns, made of its own class or of plain tuples; or one column for scalars."""
        if isinstance(declared, StructType):
            made_by = declared.made_by if isinstance(declared.made_by, type) else tuple
            return cls(StructType(declared.names, declared.types, made_by), scalar=False)
        return cls(StructType([SCALAR_COLUMN], [declared]), scalar=True)

    @property
    def element(self) -> TypeInformation:
        """What outputs are normalised to."""
        return self.columns.types[0] if self.scalar else self.columns
