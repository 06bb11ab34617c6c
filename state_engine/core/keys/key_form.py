"""``DeclaredKey``: what a job says its keys are; ``KeyForm``: makes a key that, for ``get_current_key()``.

Inside the engine a key is what its stored form holds: text, a number, a tuple. That is also what a function sees,
unless the declared type is one that storage does not have (a time of day, an ``Instant``, a pickled object) or has a
class of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from typing import Any

import pyarrow as pa

from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.every_type import InstantType, StructType, TimeType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import arrow_type

_OTHERS = (TimeType, InstantType)
"""Types that readers of states see as they are stored."""


@dataclass(frozen=True)
class DeclaredKey:
    """The type of a key.

    Attributes:
        record: of the whole key, where that is a record which a function makes.
    """

    names: tuple[str, ...]
    types: tuple[TypeInformation, ...]
    record: StructType | None = None

    @classmethod
    def of(cls, name: str, kind: TypeInformation) -> DeclaredKey:
        """A key that a function makes; its one column has the name, unless it is a record."""
        if isinstance(kind, StructType):
            return cls(kind.names, kind.types, kind)
        return cls((name,), (kind,))

    @property
    def whole(self) -> TypeInformation:
        """The type of a key: of several columns a tuple."""
        if self.record is not None:
            return self.record
        return self.types[0] if len(self.types) == 1 else StructType(self.names, self.types)

    @property
    def schema(self) -> KeySchema:
        """As Arrow types, which is what is recorded of a key."""
        times = [
            name for name, kind in zip(self.names, self.types, strict=True) if isinstance(kind, TimeType)
        ]
        return KeySchema(self.names, tuple(kind.arrow for kind in self.types), times=tuple(times))

    @property
    def form(self) -> KeyForm | None:
        """What makes such keys; None where keys are as declared already."""
        return KeyForm.of(self.types, self.record)

    def shown(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """A key by its columns, whose parts are as readers of states see them, with times of day and instants."""
        kinds = dict(zip(self.names, self.types, strict=True))
        return {n: _of_readers(kinds.get(n), p) for n, p in parts.items()}

    def columns(self, keys: list[Any]) -> list[pa.Array]:
        """Normal keys, or None, as the columns of the key."""
        made = self.whole.to_arrow(keys, storage=False)
        return list(made.flatten()) if isinstance(self.whole, StructType) else [made]


class KeyForm:
    """Makes declared keys of plain ones.

    Args:
        record: the type of the whole key, where that is a ``Row`` or a class of the user's.
        remembered: so many keys made last are at hand; all keys of a subtask would not fit into memory.

    Example:
        >>> from state_engine.core.types.types_namespace import Types
        >>> KeyForm((Types.SQL_TIME(),))(1_000_000)
        datetime.time(0, 0, 1)
    """

    def __init__(
        self, types: tuple[TypeInformation, ...], record: StructType | None = None, remembered: int = 10_000
    ) -> None:
        self._types, self._record, self._remembered = types, record, remembered
        self._known: dict[Any, Any] = {}

    @classmethod
    def of(cls, types: tuple[TypeInformation, ...], record: StructType | None = None) -> KeyForm | None:
        """The form of such keys; None where keys are as declared already."""
        own = None if record is None or record.made_by is tuple else record
        plain = all(
            type(arrow_type(kind.arrow)) is type(kind) and not isinstance(kind, StructType) for kind in types
        )
        return None if plain and own is None else cls(types, own)

    def __call__(self, key: Any) -> Any:
        made = self._known.get(key)
        if made is None:
            if len(self._known) >= self._remembered:
                self._known.clear()
            made = self._known[key] = self._made(
                key
            )  # not looked up again: another thread may have cleared it
        return made

    def __getstate__(self) -> Any:
        return self._types, self._record

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _made(self, key: Any) -> Any:
        parts = key if len(self._types) > 1 else (key,)
        made = [_declared(kind, part) for kind, part in zip(self._types, parts, strict=True)]
        if self._record is not None:
            return self._record.from_columns([[part] for part in made])[0]
        return made[0] if len(made) == 1 else tuple(made)


def _of_readers(kind: TypeInformation | None, part: Any) -> Any:
    if isinstance(kind, TimeType) and isinstance(part, str):
        return time.fromisoformat(part)
    return _declared(kind, part) if isinstance(kind, _OTHERS) else part


def _declared(kind: TypeInformation, plain: Any) -> Any:
    """A part of a key: as it would come out of a column."""
    return kind.from_arrow(arrow_type(kind.arrow).to_arrow([plain], storage=False))[0]
